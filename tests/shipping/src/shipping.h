/*
 * shipping.h - the links that ship, in a simulated world: all ranks' engines in one thread under native/src/sim.c's scheduler.
 *
 *   world.c    rr_shipping_run(): one run
 *   memory.c   where a rank's vectors lie in an operation: ordinary, a list, registered, read by the kernel; all with guards
 *   watch.c    stands before each link's operations: delays by seed, and what was sent is what lies there until it is released
 *   shm.c      a node's segments in one process
 *   stream.c   the stream edge over pipes that are cut anywhere
 *   verbs.c    edges over the substitute libibverbs
 *   far.c      control connections, for the last two
 */
#ifndef SHIPPING_H
#define SHIPPING_H

#include "sim.h"

enum shipping_transport { SHIPPING_SHM = 0, SHIPPING_STREAM = 1, SHIPPING_VERBS = 2 };

typedef struct rr_shipping_spec {
	uint32_t transport;    /* enum shipping_transport */
	uint32_t window;       /* transfers in flight that a link is held to, implied ones aside; 0: what it has room for */
	uint64_t serial_start; /* of links on shared memory and verbs */
	uint32_t streams;      /* of an edge; queue pairs over verbs */
	uint32_t pipe_bytes;   /* that one stream holds at most in each direction */
	uint32_t hold;         /* one of so many calls of a link is told to come again; 0: none */
	uint32_t wait_ms;      /* of real time without any progress, over verbs: a deadlock */
	uint32_t reserved;
} rr_shipping_spec;

#define SHIPPING_WORLD_MAX 8

enum shipping_kind { SHIPPING_ORDINARY = 0, SHIPPING_REGION = 1, SHIPPING_LIST = 2, SHIPPING_CMA = 3 };

struct shipping;

struct shipping_ops {
	rr_status (*open)(struct shipping *world);
	/* The peers of rank r may reach this region from now on. NULL: nothing to do. */
	rr_status (*reach)(struct shipping *world, int32_t r, const struct rr_region *region);
	rr_status (*turn)(struct shipping *world, int32_t r);
	void (*ended)(struct shipping *world, int32_t r);
	bool (*wait)(struct shipping *world);
	void (*before_close)(struct shipping *world); /* the engines, which close the links */
	void (*close)(struct shipping *world);
};

struct block; /* memory.c */

struct shipping {
	rr_shipping_spec spec;
	const struct shipping_ops *ops;
	struct rr_sim *sim; /* from open on */
	struct watch **watches;
	uint32_t watch_count;
	struct block *blocks[SHIPPING_WORLD_MAX][RR_BUFFER_COUNT]; /* of the operation under way */
	struct block *all;
	rr_error fault; /* found where a link's operation returns nothing; message[0]: none so far */
	void *state;    /* of the transport */
};

static inline struct shipping *shipping_of(struct rr_sim *sim)
{
	return sim->user;
}

/* world.c: this thread's error is the run's, told by the next turn. */
void shipping_fault(struct shipping *world);

/* memory.c */
rr_status shipping_begin(struct rr_sim *sim, int32_t r, struct rr_buffer buffers[RR_BUFFER_COUNT],
			 struct rr_place places[RR_BUFFER_COUNT]);
rr_status shipping_end(struct rr_sim *sim, int32_t r);
rr_status shipping_memory_free(struct shipping *world); /* an error: memory of an operation that was over has changed */

/* watch.c: takes the place of the operations of both ends of the direction from -> to. */
rr_status shipping_watch(struct shipping *world, int32_t from, int32_t to, struct rr_link *out, struct rr_link *in);
void shipping_unwatch(struct shipping *world);

extern const struct shipping_ops shipping_shm, shipping_stream, shipping_verbs;

/* far.c: each rank a node of its own, joined by control connections over loopback as far as links ask for them. */
struct rr_far;
struct rr_hello;
struct shipping_far;
rr_status shipping_far_open(int32_t world, struct shipping_far **out);
struct rr_far *shipping_far_of(struct shipping_far *far, int32_t r);
struct rr_hello *shipping_far_hello(struct shipping_far *far, int32_t r);
void shipping_far_end(struct shipping_far *far, int32_t r); /* as when it closes its communicator */
void shipping_far_close(struct shipping_far *far);

#endif
