/* link_cuda_ipc.c - where slots and flags lie; see link_cuda_ipc.h. */
#include "link_cuda_ipc.h"

#include "order.h"
#include "status.h"
#include "wire.h"

#define ALIGN 4096u
#define WORLD_MAX 1024u /* ranks of a node */
#define SLOTS_MAX 1024u

uint64_t rr_cuda_ipc_slots_offset(const rr_cuda_block *block)
{
	uint64_t bytes = rr_cuda_ipc_flag_count(block) * 2 * sizeof(uint32_t);

	return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

rr_status rr_cuda_ipc_check(const rr_cuda_block *block)
{
	if (block->world < 1 || block->world > WORLD_MAX || block->channels < 1 || block->channels > RR_CHANNELS_MAX ||
	    block->slot_count < 1 || block->slot_count > SLOTS_MAX)
		return rr_fail(RR_ERR_ARGUMENT,
			       "world %u, channels %u, slot_count %u: accepted are 1 to %u, 1 to %u and 1 to %u", block->world,
			       block->channels, block->slot_count, WORLD_MAX, RR_CHANNELS_MAX, SLOTS_MAX);
	if (block->slot_bytes < ALIGN || block->slot_bytes % ALIGN || block->slot_bytes > UINT32_MAX)
		return rr_fail(RR_ERR_ARGUMENT, "slot_bytes is %llu: accepted are multiples of %u below 4 GiB",
			       (unsigned long long)block->slot_bytes, ALIGN);
	return RR_OK;
}

rr_status rr_cuda_ipc_check_flags(const uint64_t *flags, const void *own_flags, int32_t rank)
{
	if (!own_flags != !(flags && flags[rank]))
		return rr_fail(RR_ERR_ARGUMENT, "own_flags and flags[%d] say the same place, for the host and for the GPU: give both, "
						"or neither", rank);
	return RR_OK;
}

uint64_t rr_cuda_block_flag_bytes(const rr_cuda_block *block)
{
	return rr_cuda_ipc_check(block) < 0 ? 0 : 2 * rr_cuda_ipc_flag_count(block) * sizeof(uint32_t);
}

uint64_t rr_cuda_block_bytes(const rr_cuda_block *block)
{
	if (rr_cuda_ipc_check(block) < 0)
		return 0;
	return rr_cuda_ipc_slots_offset(block) + rr_cuda_ipc_flag_count(block) * block->slot_bytes;
}

void rr_cuda_ipc_store_flags(const rr_cuda_block *block, _Atomic uint32_t *flags, uint32_t ready, uint32_t credit)
{
	uint64_t count = rr_cuda_ipc_flag_count(block);

	for (uint64_t i = 0; i < 2 * count; i++)
		rr_publish32(&flags[i], i < count ? ready : credit); /* pairs with the waits of lists */
}

rr_status rr_cuda_flags_reset(const rr_cuda_block *block, void *own_flags)
{
	rr_status status = rr_cuda_ipc_check(block);

	if (status == RR_OK && !own_flags)
		status = rr_fail(RR_ERR_ARGUMENT, "own_flags is NULL: flags in GPU memory are set by rr_cuda_block_reset()");
	if (status == RR_OK)
		rr_cuda_ipc_store_flags(block, own_flags, 0, 1);
	return status;
}

/* The first slot, or flag, of the links with `other` in a channel. */
static uint64_t first_of(const rr_cuda_block *block, uint32_t channel, int32_t other)
{
	return ((uint64_t)channel * block->world + (uint32_t)other) * block->slot_count;
}

static struct rr_enqueued_link direction(const rr_cuda_block *block, int32_t from, int32_t to, uint32_t channel,
					 struct rr_cuda_ipc_end sender, struct rr_cuda_ipc_end receiver)
{
	uint64_t at = first_of(block, channel, from);
	uint64_t credit = rr_cuda_ipc_flag_count(block) + first_of(block, channel, to);

	return (struct rr_enqueued_link){
		.slots = (char *)(uintptr_t)(receiver.block + rr_cuda_ipc_slots_offset(block) + at * block->slot_bytes),
		.slot_bytes = block->slot_bytes,
		.slot_count = block->slot_count,
		.flag_stride = 1,
		.ready = (uint32_t *)(uintptr_t)(receiver.flags + at * sizeof(uint32_t)),
		.credit = (uint32_t *)(uintptr_t)(sender.flags + credit * sizeof(uint32_t)),
	};
}

void rr_cuda_ipc_edge(const rr_cuda_block *block, int32_t rank, int32_t peer, uint32_t channel,
		      struct rr_cuda_ipc_end ours, struct rr_cuda_ipc_end theirs, struct rr_enqueued_link *out,
		      struct rr_enqueued_link *in)
{
	*out = direction(block, rank, peer, channel, ours, theirs);
	*in = direction(block, peer, rank, channel, theirs, ours);
}
