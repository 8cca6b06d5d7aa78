/* cuda_list.c - a plan's list with its slots and flags; see cuda_list.h. */
#include "cuda_list.h"

#include <stdlib.h>

#include "cuda_kernel_abi.h"
#include "link_cuda_ipc.h"
#include "status.h"

static rr_status check_passes(const struct rr_plan *plan, const void *kernel)
{
	for (uint32_t r = 0; r < plan->rows->row_count; r++) {
		const struct rr_row *row = &plan->rows->rows[r];
		uint32_t sources = (uint32_t)(row->receive_end - row->receive_begin) + (row->operand_buffer >= 0 ? 1 : 0);
		bool scaled = (row->flags & RR_ROW_LAST) && plan->post;
		if (sources > RR_CUDA_SOURCES_MAX)
			return rr_fail(RR_ERR_UNSUPPORTED, "row %u adds %u vectors, a kernel at most %d: use another algorithm", r, sources,
				       RR_CUDA_SOURCES_MAX);
		if (!kernel && (sources > 1 || scaled))
			return rr_fail(RR_ERR_ARGUMENT, "kernel is NULL, but row %u combines or scales", r);
	}
	return RR_OK;
}

static rr_status map_links(struct rr_cuda_listed *listed, int32_t rank, const rr_cuda_block *block, const uint64_t *blocks,
			   const uint64_t *flags)
{
	const struct rr_schedule *rows = listed->plan->rows;

	listed->out = calloc(rows->link_count, sizeof(*listed->out));
	listed->in = calloc(rows->link_count, sizeof(*listed->in));
	if (!listed->out || !listed->in)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for %u links", rows->link_count);
	for (uint32_t i = 0; i < listed->plan->link_total; i++) {
		uint32_t link = listed->plan->links[i], peer = link % rows->world;
		if (!blocks[peer])
			return rr_fail(RR_ERR_ARGUMENT, "blocks[%u] is 0: the schedule has a link to that rank", peer);
		rr_cuda_ipc_edge(block, rank, (int32_t)peer, link / rows->world, rr_cuda_ipc_end_of(blocks, flags, rank),
				 rr_cuda_ipc_end_of(blocks, flags, (int32_t)peer), &listed->out[link], &listed->in[link]);
	}
	return RR_OK;
}

rr_status rr_cuda_listed_make(int32_t rank, int32_t world, const rr_plan_spec *spec, const rr_cuda_block *block,
			      const uint64_t *blocks, const uint64_t *flags, void *kernel, struct rr_cuda_listed **out)
{
	uint32_t *channels = calloc(block->world, sizeof(*channels));
	struct rr_cuda_listed *listed = calloc(1, sizeof(*listed));
	rr_status status = RR_OK;

	if (!channels || !listed) {
		status = rr_fail(RR_ERR_NO_MEMORY, "no memory for a list of %u ranks", block->world);
		goto free_channels;
	}
	for (uint32_t r = 0; r < block->world; r++)
		channels[r] = block->channels;
	listed->kernel = kernel;
	status = rr_plan_make(rank, world, block->slot_bytes, channels, spec, &listed->plan);
	if (status == RR_OK)
		status = rr_enqueue_make(listed->plan, block->channels, &listed->enqueue);
	if (status == RR_OK)
		status = check_passes(listed->plan, kernel);
	if (status == RR_OK)
		status = map_links(listed, rank, block, blocks, flags);
	if (status == RR_OK)
		*out = listed;

free_channels:
	free(channels);
	if (status < 0)
		rr_cuda_listed_free(listed);
	return status;
}

void rr_cuda_listed_free(struct rr_cuda_listed *listed)
{
	if (!listed)
		return;
	rr_enqueue_free(listed->enqueue);
	if (listed->plan)
		rr_plan_unmake(listed->plan);
	free(listed->out);
	free(listed->in);
	free(listed);
}

/* Of a row in all rounds, as it travels. */
static uint64_t row_bytes(const struct rr_plan *plan, const struct rr_row *row, bool wide)
{
	uint64_t bytes = 0;

	for (uint32_t round = 0; round < plan->round_count; round++) {
		struct rr_range range = rr_enqueue_range(plan, row, round);
		bytes += range.end - range.begin;
	}
	return wide ? 2 * bytes : bytes;
}

void rr_cuda_listed_bytes(const struct rr_cuda_listed *listed, uint64_t *sent, uint64_t *received)
{
	const struct rr_schedule *rows = listed->plan->rows;

	for (uint32_t r = 0; r < rows->row_count; r++) {
		const struct rr_row *row = &rows->rows[r];
		for (int32_t i = row->send_begin; i < row->send_end; i++)
			sent[rows->sends[i].link % rows->world] += row_bytes(listed->plan, row, row->flags & RR_ROW_WIDE);
		for (int32_t i = row->receive_begin; i < row->receive_end; i++)
			received[rows->receives[i].link % rows->world] +=
				row_bytes(listed->plan, row, row->flags & RR_ROW_TAKES_WIDE);
	}
}

rr_status rr_cuda_listed_emit(const struct rr_cuda_listed *listed, struct rr_cuda_streams *streams,
			      struct rr_buffer buffers[RR_BUFFER_COUNT])
{
	streams->kernel = listed->kernel;
	streams->element_bytes = listed->plan->element_bytes;
	return rr_enqueue_emit(listed->enqueue, &streams->device, listed->out, listed->in, buffers);
}
