/*
 * cuda_carried.h - edges of a communicator's lists that the host carries: slots and flags in pinned memory of this rank.
 *
 * Both directions of an edge lie in one piece of registered memory, so that a NIC may send from the slots:
 *
 *   ready of out | credit of out | ready of in | credit of in, a cache line a flag; then slots of out, slots of in
 *
 * Each is taken when a list first has the edge, and stays until the lists are closed.
 *
 * Threads: edge() by the communicator's caller; release() by any.
 */
#ifndef RR_CUDA_CARRIED_H
#define RR_CUDA_CARRIED_H

#include "cuda_api.h"
#include "enqueued.h"

struct rr_cuda_carried;

/* Slots are of the size and, while all of them fit the budget, the number given; at least one a direction. */
rr_status rr_cuda_carried_open(const struct rr_cuda *cuda, uint64_t slot_bytes, uint32_t slot_count, struct rr_cuda_carried **out);
/* The context is current, and nothing runs any more. */
void rr_cuda_carried_close(struct rr_cuda_carried *carried);

/* An edge as streams and as the host have it. */
struct rr_cuda_carried_edge {
	struct rr_enqueued_link out, in, host_out, host_in;
};

/* The context is current. */
rr_status rr_cuda_carried_edge(struct rr_cuda_carried *carried, int32_t peer, uint32_t channel, struct rr_cuda_carried_edge *out);
/* All flags = 1: whoever waits for one of them goes on. Nobody carries any more. */
void rr_cuda_carried_release(struct rr_cuda_carried *carried);
/* Of host memory that is pinned. */
uint64_t rr_cuda_carried_bytes(struct rr_cuda_carried *carried);

#endif
