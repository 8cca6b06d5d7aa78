/*
 * cuda_list.h - a plan's list, bound to the blocks of a set of ranks: host memory only.
 *
 *   api_cuda_list.c   lists by themselves, each with streams of its own
 *   cuda_lists.c      lists of a communicator, which share streams
 *
 * Threads: does not change once it is made.
 */
#ifndef RR_CUDA_LIST_H
#define RR_CUDA_LIST_H

#include "cuda_carried.h"
#include "cuda_stream.h"
#include "engine_carry.h"
#include "engine_enqueue.h"
#include "rdmaring_lists.h"

struct rr_cuda_listed {
	struct rr_plan *plan; /* its own: rows are bound to the block's channels */
	struct rr_enqueue *enqueue;
	struct rr_enqueued_link *out, *in; /* [rows->link_count] */
	struct rr_carrier *carrier;        /* NULL: streams alone move all of it */
	void *kernel;
};

/* Where slots and flags lie: blocks, flags and places as of rr_lists_spec; the other edges' are in `carried`. */
struct rr_cuda_room {
	int32_t rank, world;
	const rr_cuda_block *block;
	const uint64_t *blocks, *flags;
	const int32_t *places; /* NULL: every rank's is its number */
	struct rr_cuda_carried *carried;
};

/* The context is current where edges are carried. kernel: CUfunction; NULL where nothing is combined or scaled. RR_ERR_UNSUPPORTED: the progress executor must serve it. */
rr_status rr_cuda_listed_make(const struct rr_cuda_room *room, const rr_plan_spec *spec, void *kernel, struct rr_cuda_listed **out);
void rr_cuda_listed_free(struct rr_cuda_listed *listed);
/* What streams move over each edge in one call, without what is carried: [world] each. */
void rr_cuda_listed_bytes(const struct rr_cuda_listed *listed, const struct rr_cuda_room *room, uint64_t *sent, uint64_t *received);
/* Behind what stream 0 holds, which ends behind all of it. The context is current; there are streams and events enough. */
rr_status rr_cuda_listed_emit(const struct rr_cuda_listed *listed, struct rr_cuda_streams *streams,
			      struct rr_buffer buffers[RR_BUFFER_COUNT]);

#endif
