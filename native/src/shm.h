/*
 * shm.h - the ranks of one node that can map each other's memory.
 *
 * Peers are numbered by their rank in the world; `index` numbers those of this node, which is how a
 * segment lays out its rings and slots. A rank on another node has no index, no page and no socket here.
 * Every rank's segment is mapped by all; a unix socket joins each pair and carries descriptors of
 * registered memory; a pidfd tells of a peer's death. Links and mailboxes work on these mappings.
 *
 * Threads: the driver of the communicator only, but rr_shm_wake() of any page.
 */
#ifndef RR_SHM_H
#define RR_SHM_H

#include <stdbool.h>
#include <stdint.h>

#include "apart.h"
#include "hello.h"
#include "memory.h"
#include "page.h"
#include "pin.h"
#include "rdmaring.h"
#include "shm_common.h"

#define RR_STAGED_RANKS_MIN 5 /* of a node: its ranks copy ordinary input to where the others read it in place (stage.h) */

/* A peer's registered region as this process sees it. */
struct rr_mapping {
	uint32_t id;
	char *address;
	uint64_t bytes;
};

struct rr_shm_peer {
	struct rr_page *page;
	int socket; /* SOCK_SEQPACKET; -1 for oneself */
	int pidfd;  /* -1 where the kernel has none */
	int bell;   /* its eventfd, where it may sleep in epoll; -1 */
	int32_t pid; /* as seen from this process */
	bool cma;    /* we may read the peer's ordinary memory */
	bool cma_of_us; /* the peer may read ours */
	int cma_errno;
	struct rr_mapping *mappings;
	uint32_t mapping_count, mapping_room;
	struct rr_pin_range slots; /* of its segment */
	struct rr_apart apart;     /* how far it is as a reader of ours */
};

#define RR_NODE_COUNT_MAX 512 /* ranks of one node: a socket and a segment a pair */
#define RR_SHM_PARTED (-2) /* it tells of this node, which has come apart */

struct rr_shm {
	int32_t rank, world;
	int32_t count;  /* ranks on this node */
	bool crowded;   /* they share processors */
	int32_t *index; /* [world] among them, -1, or RR_SHM_PARTED */
	struct rr_layout layout;
	uint64_t serial_start; /* of every link's first transfer */
	uint8_t token[RR_TOKEN_BYTES];
	int bell; /* our own eventfd where this communicator has far ranks, else -1 */
	struct rr_page *page; /* our own */
	int memfd;
	bool cma_wanted;
	struct rr_shm_peer *peers; /* [world] */
	uint32_t *announced;       /* ids of regions that the peers were told of */
	uint32_t announced_count, announced_room;
	uint64_t seen_generation;
	uint64_t apart_ns;         /* of a probe's lines, from which on readers are far */
	struct rr_apart common_apart; /* how far those are that read in common */
	int32_t probe_reader;      /* that was the first found to have answered the last common probe */
	struct rr_common *common;  /* what our common slots are in use for; NULL until the first */
	uint64_t open_limit; /* OPENs below this do not overwrite one that a peer may still read */
};

/* Our token, socket and wishes into the hello; *listener is the caller's to close. */
rr_status rr_shm_prepare(int32_t rank, int32_t world, const rr_options *options, struct rr_shm *shm,
			 struct rr_hello *hello, int *listener);
/* A world of one. */
rr_status rr_shm_alone(struct rr_shm *shm, const struct rr_hello *hello);
/*
 * Join the ranks r with node[r] == node[rank], until deadline_ns. Two exchanges, made by all ranks of the world. A node that
 * cannot prove itself is taken apart: node[] then numbers its ranks apart, on all ranks alike, and *reason says why.
 */
rr_status rr_shm_join(struct rr_shm *shm, const struct rr_hello *hellos, int32_t *node, int listener, uint64_t deadline_ns,
		      rr_exchange_fn exchange, void *user, char *reason, size_t size);
/*
 * Their sockets, until then, and their segments; see shm_meet.c. RR_ERR_SETUP: it did not come to that. RR_ERR_LINK: since another rank
 * has given up.
 */
rr_status rr_shm_meet(struct rr_shm *shm, int listener, const struct rr_hello *hellos, uint64_t until_ns);
/* Its end will be seen. */
void rr_shm_watch_process(struct rr_shm_peer *peer, int32_t pid);
/* Say RUNNING; the eventfd (or -1) on which we sleep goes to the node's ranks. */
rr_status rr_shm_start(struct rr_shm *shm, int bell);
/* Unmaps everything; goes on after a failure. The page must say CLOSED or FAILED before. */
void rr_shm_close(struct rr_shm *shm);

/* Let the peers map a region of ours. RR_AGAIN: a peer's socket is full, try later. */
rr_status rr_shm_announce(struct rr_shm *shm, const struct rr_region *region);
/* A region that a peer announced. */
rr_status rr_shm_mapping(struct rr_shm *shm, int32_t peer, uint32_t id, struct rr_mapping *out);
/* Read what the peers' sockets hold; the number of a dead peer, or -1. A closed peer is not dead. */
int32_t rr_shm_look(struct rr_shm *shm);

/* Whether the process of a rank of this node has ended. */
bool rr_shm_gone(const struct rr_shm *shm, int32_t r);

/* Whether rank r is on this node. */
static inline bool rr_shm_has(const struct rr_shm *shm, int32_t r)
{
	return shm->index[r] >= 0;
}

/* Whether it tells of this node, and shared memory with it was given up. */
static inline bool rr_shm_parted(const struct rr_shm *shm, int32_t r)
{
	return shm->index[r] == RR_SHM_PARTED;
}
/* Wake a rank of this node (or ourselves) if it sleeps. After something was published for it. */
void rr_shm_wake(struct rr_shm *shm, int32_t r);

/* A segment is mapped: its slots may be pinned, until rr_shm_part(). */
void rr_shm_own_slots(struct rr_shm *shm, int32_t r);
/* Forget a peer: its page, socket and descriptors. */
void rr_shm_part(struct rr_shm *shm, int32_t r);

/* Of all segments that this process owns. */
uint64_t rr_shm_bytes_used(void);
void rr_shm_bytes_add(int64_t bytes);

/* Sockets of a pair: see shm_socket.c. */
int rr_shm_listen(const char *name, int backlog);
int rr_shm_connect(const char *name, uint64_t until_ns);
rr_status rr_shm_send(int socket, const void *message, size_t bytes, int fd);
/* Up to `bytes`; *fd is -1 where none came. RR_AGAIN: nothing there. RR_ERR_LINK: the peer has gone. */
rr_status rr_shm_receive(int socket, void *message, size_t bytes, size_t *got, int *fd);

#endif
