/* stage.c - see stage.h. */
#include "stage.h"

#include <stdlib.h>

#include "status.h"

#define NO_READER -1
#define NOT_STAGED -2
#define SCRATCH_BYTES_MIN (64u << 10) /* it grows by doubling from here: peers map it anew each time */

/*
 * Of a row that sends input: the first of its peers that is near, if all of those send here too; NO_READER: none is
 * near; NOT_STAGED: one does not.
 */
static int32_t staged_row(const struct rr_comm *comm, const struct rr_schedule *rows, const struct rr_row *row)
{
	int32_t found = NO_READER;

	for (int32_t i = row->send_begin; i < row->send_end; i++) {
		int32_t peer = rows->sends[i].peer;
		if (!rr_shm_has(&comm->shm, peer))
			continue;
		if (!rows->receives_from[peer])
			return NOT_STAGED;
		found = found == NO_READER ? peer : found;
	}
	return found;
}

/* readers[c]: who reads chunk c, or NO_READER. */
static void collect(struct rr_plan *plan, const int32_t *readers)
{
	uint32_t end, count = plan->rows->chunk_count;

	for (uint32_t c = 0; c < count; c = end) {
		for (end = c + 1; end < count && readers[end] == readers[c];)
			end++;
		if (readers[c] != NO_READER)
			plan->staged[plan->staged_count++] = (struct rr_staged){
				{plan->chunk_offsets[c], plan->chunk_offsets[end]}, readers[c]};
	}
}

rr_status rr_stage_find(const struct rr_comm *comm, struct rr_plan *plan)
{
	const struct rr_schedule *rows = plan->rows;
	int32_t *readers = calloc((size_t)rows->chunk_count, sizeof(*readers));
	int32_t found = NO_READER;

	plan->staged = calloc((size_t)rows->chunk_count, sizeof(*plan->staged));
	if (!readers || !plan->staged) {
		free(readers);
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for a plan of %u chunks", rows->chunk_count);
	}
	for (uint32_t c = 0; c < rows->chunk_count; c++)
		readers[c] = NO_READER;
	for (uint32_t r = 0; r < rows->row_count && found != NOT_STAGED; r++) {
		const struct rr_row *row = &rows->rows[r];
		found = row->buffer == RR_INPUT ? staged_row(comm, rows, row) : NO_READER;
		for (int32_t c = row->chunk_begin; found >= 0 && c < row->chunk_end; c++)
			readers[c] = readers[c] == NO_READER ? found : readers[c];
	}
	if (found != NOT_STAGED)
		collect(plan, readers);
	free(readers);
	return RR_OK;
}

/* `zero`: where coordinate 0 would lie in the copy. past: its readers are far (apart.h). */
static void copy_range(const struct rr_plan *plan, const struct rr_buffer *input, uint64_t zero,
		       const struct rr_range *range, bool past)
{
	if (input->zero) {
		rr_plan_copy(plan, (void *)(uintptr_t)(zero + range->begin), input->zero + range->begin,
			     range->end - range->begin, past);
		return;
	}
	for (uint32_t i = 0; i < input->count; i++) {
		uint64_t begin = input->starts[i], end = begin + input->extents[i].bytes, first = begin;
		if (begin < range->begin)
			begin = range->begin;
		if (end > range->end)
			end = range->end;
		if (begin < end)
			rr_plan_copy(plan, (void *)(uintptr_t)(zero + begin),
				     (const char *)input->extents[i].address + (begin - first), end - begin, past);
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
	uint64_t zero = (uint64_t)(uintptr_t)stage - plan->input_begin;
	for (uint32_t i = 0; i < plan->staged_count; i++) {
		const struct rr_range *range = &plan->staged[i].range;
		bool past = rr_apart_look(&comm->shm, plan->staged[i].reader, (uint32_t)(range->end - range->begin));
		copy_range(plan, &work->input, zero, range, past);
	}
	return RR_OK;
}
