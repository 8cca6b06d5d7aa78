/* stage.c - see stage.h. */
#include "stage.h"

#include <stdlib.h>

#include "status.h"

#define SCRATCH_BYTES_MIN (64u << 10) /* it grows by doubling from here: peers map it anew each time */

/* Of a row that sends input: 1 if one of its peers is near and all of those send here too, -1 if one does not. */
static int staged_row(const struct rr_comm *comm, const struct rr_schedule *rows, const struct rr_row *row)
{
	int found = 0;

	for (int32_t i = row->send_begin; i < row->send_end; i++) {
		int32_t peer = rows->sends[i].peer;
		if (!rr_shm_has(&comm->shm, peer))
			continue;
		if (!rows->receives_from[peer])
			return -1;
		found = 1;
	}
	return found;
}

/* sent[c]: chunk c is read by a rank of this node. sent[chunk_count] stays false. */
static void collect(struct rr_plan *plan, const bool *sent)
{
	for (uint32_t c = 0; c < plan->rows->chunk_count; c++) {
		uint32_t begin = c;
		while (sent[c])
			c++;
		if (c > begin)
			plan->staged[plan->staged_count++] =
				(struct rr_range){plan->chunk_offsets[begin], plan->chunk_offsets[c]};
	}
}

rr_status rr_stage_find(const struct rr_comm *comm, struct rr_plan *plan)
{
	const struct rr_schedule *rows = plan->rows;
	bool *sent = calloc((size_t)rows->chunk_count + 1, sizeof(*sent));
	int found = 0;

	plan->staged = calloc((size_t)rows->chunk_count + 1, sizeof(*plan->staged));
	if (!sent || !plan->staged) {
		free(sent);
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for a plan of %u chunks", rows->chunk_count);
	}
	for (uint32_t r = 0; r < rows->row_count && found >= 0; r++) {
		const struct rr_row *row = &rows->rows[r];
		found = row->buffer == RR_INPUT ? staged_row(comm, rows, row) : 0;
		for (int32_t c = row->chunk_begin; found > 0 && c < row->chunk_end; c++)
			sent[c] = true;
	}
	if (found >= 0)
		collect(plan, sent);
	free(sent);
	return RR_OK;
}

static void copy(const struct rr_plan *plan, void *to, const void *from, uint64_t bytes)
{
	struct rr_combine pass = {.dst = &to, .dst_count = 1, .src = &from, .src_count = 1,
				  .count = bytes / plan->element_bytes};

	plan->pass(&pass);
}

/* `zero`: where coordinate 0 would lie in the copy. */
static void copy_range(const struct rr_plan *plan, const struct rr_buffer *input, uint64_t zero,
		       const struct rr_range *range)
{
	if (input->zero) {
		copy(plan, (void *)(uintptr_t)(zero + range->begin), input->zero + range->begin, range->end - range->begin);
		return;
	}
	for (uint32_t i = 0; i < input->count; i++) {
		uint64_t begin = input->starts[i], end = begin + input->extents[i].bytes, first = begin;
		if (begin < range->begin)
			begin = range->begin;
		if (end > range->end)
			end = range->end;
		if (begin < end)
			copy(plan, (void *)(uintptr_t)(zero + begin),
			     (const char *)input->extents[i].address + (begin - first), end - begin);
	}
}

static bool make_room(struct rr_comm *comm, uint64_t bytes)
{
	uint64_t grown = SCRATCH_BYTES_MIN;

	while (grown < bytes)
		grown *= 2;
	return bytes <= comm->scratch_bytes || rr_comm_scratch(comm, grown) == RR_OK;
}

rr_status rr_stage_input(struct rr_comm *comm, struct rr_work *work, struct rr_place *place)
{
	struct rr_plan *plan = work->plan;
	uint64_t bytes = plan->input_end - plan->input_begin;
	uint64_t at = (plan->scratch_bytes + 63) / 64 * 64;

	if (!plan->staged_count || !bytes || !make_room(comm, at + bytes))
		return RR_OK;
	char *stage = (char *)comm->scratch + at;
	rr_status status = rr_operation_place(comm, stage, bytes, plan->input_begin, place);
	if (status != RR_OK)
		return status;
	for (uint32_t i = 0; i < plan->staged_count; i++)
		copy_range(plan, &work->input, (uint64_t)(uintptr_t)stage - plan->input_begin, &plan->staged[i]);
	return RR_OK;
}
