/*
 * link_cuda_ipc.h - edges inside a node over GPU memory that ranks map from each other by IPC handles.
 *
 * Each rank has one block, opened by the others:
 *
 *   ready flags | credit flags | slots, each [channel][peer][slot]
 *
 * A rank's block has the slots and ready flags of the links to it, and the credit flags of its links out. Whoever sets
 * up the block (Python) makes and opens handles; here are only addresses. The links are ENQUEUED only: no host word
 * joins them. The flags may lie elsewhere, in host memory: there the host releases waits by plain stores, which do not
 * queue behind the waits where streams share a hardware queue.
 */
#ifndef RR_LINK_CUDA_IPC_H
#define RR_LINK_CUDA_IPC_H

#include <stdbool.h>

#include "enqueued.h"
#include "rdmaring_lists.h"

/* Flags of a block, of either kind. */
static inline uint64_t rr_cuda_ipc_flag_count(const rr_cuda_block *block)
{
	return (uint64_t)block->channels * block->world * block->slot_count;
}

/*
 * By the host: all flags of a block that lie in host memory. 0 and 1: as before the first list, with no list under way; 1 and 1:
 * whoever waits for one of them goes on.
 */
void rr_cuda_ipc_store_flags(const rr_cuda_block *block, _Atomic uint32_t *flags, uint32_t ready, uint32_t credit);

/* Where the slots begin. */
uint64_t rr_cuda_ipc_slots_offset(const rr_cuda_block *block);
rr_status rr_cuda_ipc_check(const rr_cuda_block *block);
/* Whether flags[rank] and own_flags are both given, or neither; flags may be NULL. */
rr_status rr_cuda_ipc_check_flags(const uint64_t *flags, const void *own_flags, int32_t rank);

/* A rank's block, and its flags: in front of it, or in host memory that the GPUs map; addresses as this rank maps them. */
struct rr_cuda_ipc_end {
	uint64_t block, flags;
};

/* flags: of each rank, or NULL: all in front of their blocks. */
static inline struct rr_cuda_ipc_end rr_cuda_ipc_end_of(const uint64_t *blocks, const uint64_t *flags, int32_t rank)
{
	return (struct rr_cuda_ipc_end){blocks[rank], flags && flags[rank] ? flags[rank] : blocks[rank]};
}

/* The edge between `rank` and `peer` in one channel. */
void rr_cuda_ipc_edge(const rr_cuda_block *block, int32_t rank, int32_t peer, uint32_t channel,
		      struct rr_cuda_ipc_end ours, struct rr_cuda_ipc_end theirs, struct rr_enqueued_link *out,
		      struct rr_enqueued_link *in);

#endif
