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

static int32_t place_of(const struct rr_cuda_room *room, int32_t rank)
{
	return room->places ? room->places[rank] : rank;
}

static rr_status map_shared(struct rr_cuda_listed *listed, const struct rr_cuda_room *room, uint32_t link, int32_t peer)
{
	if (!room->blocks[peer])
		return rr_fail(RR_ERR_ARGUMENT, "blocks[%d] is 0: the schedule has a link to that rank", peer);
	rr_cuda_ipc_edge(room->block, place_of(room, room->rank), place_of(room, peer), link / listed->plan->rows->world,
			 rr_cuda_ipc_end_of(room->blocks, room->flags, room->rank),
			 rr_cuda_ipc_end_of(room->blocks, room->flags, peer), &listed->out[link], &listed->in[link]);
	return RR_OK;
}

/* host: [2 * link_count] out's, then in's, of those that are carried. */
static rr_status map_links(struct rr_cuda_listed *listed, const struct rr_cuda_room *room, struct rr_enqueued_link *host)
{
	const struct rr_schedule *rows = listed->plan->rows;
	rr_status status = RR_OK;

	for (uint32_t i = 0; i < listed->plan->link_total && status == RR_OK; i++) {
		uint32_t link = listed->plan->links[i];
		int32_t peer = (int32_t)(link % rows->world);
		struct rr_cuda_carried_edge edge;
		if (place_of(room, peer) >= 0) {
			status = map_shared(listed, room, link, peer);
			continue;
		}
		status = rr_cuda_carried_edge(room->carried, peer, link / rows->world, &edge);
		if (status < 0)
			break;
		listed->out[link] = edge.out;
		listed->in[link] = edge.in;
		host[link] = edge.host_out;
		host[rows->link_count + link] = edge.host_in;
	}
	return status;
}

static rr_status join_links(struct rr_cuda_listed *listed, const struct rr_cuda_room *room)
{
	uint32_t count = listed->plan->rows->link_count;
	struct rr_enqueued_link *host = calloc(2 * (size_t)count, sizeof(*host));
	rr_status status;

	listed->out = calloc(count, sizeof(*listed->out));
	listed->in = calloc(count, sizeof(*listed->in));
	if (listed->out && listed->in && host)
		status = map_links(listed, room, host);
	else
		status = rr_fail(RR_ERR_NO_MEMORY, "no memory for %u links", count);
	if (status == RR_OK)
		status = rr_carrier_make(listed->enqueue, host, host + count, &listed->carrier);
	free(host);
	return status;
}

rr_status rr_cuda_listed_make(const struct rr_cuda_room *room, const rr_plan_spec *spec, void *kernel, struct rr_cuda_listed **out)
{
	uint32_t *channels = calloc((size_t)room->world, sizeof(*channels));
	struct rr_cuda_listed *listed = calloc(1, sizeof(*listed));
	rr_status status = RR_OK;

	if (!channels || !listed) {
		status = rr_fail(RR_ERR_NO_MEMORY, "no memory for a list of %d ranks", room->world);
		goto free_channels;
	}
	for (int32_t r = 0; r < room->world; r++)
		channels[r] = room->block->channels;
	listed->kernel = kernel;
	status = rr_plan_make(room->rank, room->world, room->block->slot_bytes, channels, spec, &listed->plan);
	if (status == RR_OK)
		status = rr_enqueue_make(listed->plan, room->block->channels, &listed->enqueue);
	if (status == RR_OK)
		status = check_passes(listed->plan, kernel);
	if (status == RR_OK)
		status = join_links(listed, room);
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
	rr_carrier_free(listed->carrier);
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

void rr_cuda_listed_bytes(const struct rr_cuda_listed *listed, const struct rr_cuda_room *room, uint64_t *sent, uint64_t *received)
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
	for (int32_t r = 0; r < room->world; r++) {
		if (place_of(room, r) >= 0)
			continue;
		sent[r] = 0; /* links count what they carry */
		received[r] = 0;
	}
}

rr_status rr_cuda_listed_emit(const struct rr_cuda_listed *listed, struct rr_cuda_streams *streams,
			      struct rr_buffer buffers[RR_BUFFER_COUNT])
{
	streams->kernel = listed->kernel;
	streams->element_bytes = listed->plan->element_bytes;
	return rr_enqueue_emit(listed->enqueue, &streams->device, listed->out, listed->in, buffers);
}
