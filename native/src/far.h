/*
 * far.h - ranks on other nodes: one control connection an edge, made when first needed.
 *
 * The lower rank dials, the higher accepts; both prove the job's key. The connection carries what is
 * slow: set-up messages of the edge's transport, STATE, FAILED and CLOSED. What a far rank says of
 * itself is written into its mirror page, which watch.c reads as it reads a near rank's own.
 *
 *   IDLE -> JOINING -> UP -> ENDED
 *
 * Threads: the driver of the communicator only. Nothing here blocks.
 */
#ifndef RR_FAR_H
#define RR_FAR_H

#include <stdbool.h>
#include <stdint.h>

#include "hello.h"
#include "page.h"
#include "proof.h"
#include "rdmaring.h"

#define RR_FAR_BODY_MAX 4096u   /* of one control message */
#define RR_FAR_STREAMS_MAX 16u  /* data sockets of a channel */
#define RR_FAR_CHANNELS_MAX (RR_CHANNELS_MAX + 1u)

struct rr_far;

/*
 * What the transport of one channel of an edge is told. user: the transport's. All may be NULL. They are called by rr_far_look(),
 * on the driver.
 */
struct rr_edge_ops {
	/* The control connection is up (once: an edge lives once). */
	void (*up)(void *user);
	/* A set-up message of the peer's transport; body is valid during the call. */
	void (*message)(void *user, const void *body, uint32_t bytes);
	/* A data socket, proven, non-blocking, number `stream` of those asked for; it is the transport's to close. */
	void (*stream)(void *user, uint32_t stream, int socket);
	/* Go on with what was begun; called while rr_far_attend() says so, also when no operation uses the channel. */
	void (*attend)(void *user);
};

/* Whether the node of a rank lives whose connection ended by silence. */
enum rr_inquiry {
	RR_INQUIRY_NONE = 0,
	RR_INQUIRY_OPEN = 1,  /* others are asked */
	RR_INQUIRY_LIVES = 2, /* somebody hears from it: the edge is cut */
	RR_INQUIRY_GONE = 3,
	RR_INQUIRY_ALONE = 4 /* no other node is heard: it is this one that is cut off */
};

/* What a rank sees of one of its own node. */
struct rr_neighbour {
	int32_t life; /* rr_life */
	uint64_t quiet_ns;
	uint64_t op_done, op_entered;
};
/* False: `peer` is no rank of this node. */
typedef bool (*rr_far_neighbour_fn)(void *user, int32_t peer, struct rr_neighbour *out);
/* Transfers that this rank has sent to `peer` on the links of a channel and that are with its kernel; UINT32_MAX: not known. */
typedef uint32_t (*rr_far_sent_fn)(void *user, int32_t peer, uint32_t channel);

enum rr_edge_state { RR_EDGE_IDLE = 0, RR_EDGE_JOINING = 1, RR_EDGE_UP = 2, RR_EDGE_ENDED = 3 };

/* ---- for transports ---- */

/*
 * Who serves the next channel of the edge to `peer`, and how many data sockets it wants (0..RR_FAR_STREAMS_MAX).
 * Called for both ends' channels in the same order. Returns the channel's number, from 0. late, of the last channel:
 * its sockets are joined only when one of the two ranks wants the channel.
 */
uint32_t rr_far_serve(struct rr_far *far, int32_t peer, const struct rr_edge_ops *ops, void *user, uint32_t streams,
		      bool late);
/*
 * Begin to join the edge, with the sockets of this channel, if that has not begun, and go on with it. Errors: no
 * address of the peer can be reached.
 */
rr_status rr_far_want(struct rr_far *far, int32_t peer, uint32_t channel);
enum rr_edge_state rr_far_state(const struct rr_far *far, int32_t peer);
/* A set-up message to the peer's transport of the channel. The edge is UP. RR_AGAIN: no room now. */
rr_status rr_far_send(struct rr_far *far, int32_t peer, uint32_t channel, const void *body, uint32_t bytes);
/* The channel's transport goes: nothing is told to it any more. */
void rr_far_unserve(struct rr_far *far, int32_t peer, uint32_t channel);
/* From now on, or no longer: call `attend` of all channels. Counted. */
void rr_far_attend(struct rr_far *far, bool on);
/* A peer's OPEN came: its mirror page tells that it is in `op`. descriptor: may be NULL. */
void rr_far_told(struct rr_far *far, int32_t peer, uint64_t op, const struct rr_descriptor *descriptor);
/* The RDMA ports that a rank told of in its hello. */
const struct rr_rail *rr_far_rails(const struct rr_far *far, int32_t rank, uint32_t *count);
/* A line for the program's log, of what befell a link and is no error. */
void rr_far_note(struct rr_far *far, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Let the driver's sleep end when fd has news (edge-triggered). Remove before closing fd. */
rr_status rr_far_sleep_on(struct rr_far *far, int fd);
void rr_far_sleep_off(struct rr_far *far, int fd);
/*
 * How often a driver passes without success before it sleeps: links that must be armed are so by half of it. Few where a
 * pass asks the kernel for sockets, since waking takes less than a network's trip; many where it reads memory.
 */
uint32_t rr_far_passes(const struct rr_far *far);
/* Whether others compute on this rank's processor: then it sleeps soon, and links are armed for that. */
void rr_far_crowded(struct rr_far *far, bool crowded);
/* Whether each pass asks the kernel. */
bool rr_far_pass_is_dear(const struct rr_far *far);
/* Where the peer is, and why it is no rank of this node. */
void rr_far_facts(const struct rr_far *far, int32_t peer, rr_link_facts *facts);
/* "10.0.0.1:4000 -> 10.0.0.2:5000", or "" before the edge is up. */
void rr_far_path(const struct rr_far *far, int32_t peer, char *text, size_t size);

/* ---- for the communicator ---- */

/* Listen; where to reach this rank goes into the hello. */
rr_status rr_far_prepare(int32_t rank, int32_t world, struct rr_hello *hello, struct rr_far **out);
/* All hellos are here. key: of the job. own: this rank's page, from which STATE is told. near: ranks of this node. */
rr_status rr_far_start(struct rr_far *far, const struct rr_hello *hellos, const int32_t *node,
		       const uint8_t key[RR_KEY_BYTES], struct rr_page *own);
void rr_far_close(struct rr_far *far);
/* Whether connections are on their way to be proven: a few looks at each end. */
bool rr_far_joins(const struct rr_far *far);
/* The mirror page of a far rank. */
struct rr_page *rr_far_page(struct rr_far *far, int32_t peer);
/* On which a sleeping driver waits, and the eventfd that wakes it. */
int rr_far_sleeper(const struct rr_far *far);
int rr_far_bell(const struct rr_far *far);
/* Read and write what is there. The number of a rank whose connection ended unexpectedly, or -1. */
int32_t rr_far_look(struct rr_far *far);
/* Why: "its connection ended (Connection reset by peer)". */
const char *rr_far_lost(const struct rr_far *far, int32_t peer);
/* What its connection tells of a far rank's process. */
rr_life rr_far_life(const struct rr_far *far, int32_t peer);
/* The same; and what ranks of its node have told of it lately goes into *seen. */
void rr_far_see(const struct rr_far *far, int32_t peer, uint64_t now_ns, rr_rank_seen *seen);
/* Who answers for ranks of this node. */
void rr_far_neighbours(struct rr_far *far, rr_far_neighbour_fn neighbour, rr_far_sent_fn sent, void *user);
/* far_state.c: of `received` transfers and more on a channel: how many more the peer has sent, as it has told for a while; 0: none. */
uint32_t rr_far_lacks(const struct rr_far *far, int32_t peer, uint32_t channel, uint32_t received, uint64_t now_ns);
/* Ask all far ranks what they know of `about` (-1: of themselves), which they tell at once if they look. */
void rr_far_ask(struct rr_far *far, int32_t about);
/* Of a rank whose connection ended by silence. heard_by: with RR_INQUIRY_LIVES, by whom its node is heard. */
enum rr_inquiry rr_far_inquire(struct rr_far *far, int32_t peer, int32_t *heard_by);
/* This rank has waited in `op`: tell all far ranks, joining edges to those that have none. */
void rr_far_tell_state(struct rr_far *far, uint64_t op);
/* The page says FAILED or CLOSED: tell every joined far rank. */
void rr_far_tell_end(struct rr_far *far);
/* The oldest line that was not taken yet; any thread. False: there is none. */
bool rr_far_take_note(struct rr_far *far, char *text, size_t size);
/* Strangers turned away since the beginning; the last one's address and why. */
uint64_t rr_far_strangers(const struct rr_far *far, char *last, size_t size);

#endif
