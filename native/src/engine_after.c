/* engine_after.c - may this slice go: dependencies on earlier rows, in bytes. */
#include "engine_slice.h"

/* How many bytes of [0, row bytes) of an earlier row the given slice needs; 0: none. */
static uint64_t bytes_needed(const struct rr_open_row *work, const struct rr_slice *slice,
			     const struct rr_row_state *earlier)
{
	uint64_t begin = work->state->begin + slice->offset, end = begin + slice->bytes;
	uint64_t earlier_end = earlier->begin + earlier->bytes;

	if (work->state->begin >= earlier_end || work->state->begin + work->state->bytes <= earlier->begin)
		return earlier->bytes; /* they share a scratch cell, not bytes of the vector: all of it */
	if (begin >= earlier_end || end <= earlier->begin)
		return 0;
	return (end < earlier_end ? end : earlier_end) - earlier->begin;
}

static bool sends_released(const struct rr_open_row *work, uint32_t earlier_row, uint32_t slices)
{
	struct rr_engine *engine = work->engine;
	const struct rr_row *row = &work->plan->rows->rows[earlier_row];

	for (int32_t i = row->send_begin; i < row->send_end; i++) {
		struct rr_link *out = engine->out[work->plan->rows->sends[i].link];
		const struct rr_send_state *send = rr_engine_send(engine, work->round, (uint32_t)i);
		if (send->sent < slices)
			return false;
		uint64_t end = send->first + slices < out->held_end ? send->first + slices : out->held_end;
		if (end > send->first && !rr_link_has_released(out, end)) {
			rr_engine_waits(engine, true, RR_WAIT_READERS, out->peer);
			return false;
		}
	}
	return true;
}

static bool touches_cell(const struct rr_row *row, int32_t cell)
{
	return (row->buffer == RR_SCRATCH && row->cell == cell) ||
	       (row->operand_buffer == RR_SCRATCH && row->operand_cell == cell);
}

/*
 * An empty row was through at once, before the rows it comes after. Who overwrites its cell waits for those
 * instead: their bytes may still be read there.
 */
static bool cell_is_free(const struct rr_open_row *work, uint32_t empty_row)
{
	const struct rr_schedule *rows = work->plan->rows;

	for (int32_t i = rows->rows[empty_row].after_begin; i < rows->rows[empty_row].after_end; i++) {
		const struct rr_after *after = &rows->afters[i];
		const struct rr_row_state *earlier = rr_engine_state(work->engine, work->round, (uint32_t)after->row);

		if (!touches_cell(&rows->rows[after->row], work->row->cell))
			continue;
		if (!earlier->bytes ? !cell_is_free(work, (uint32_t)after->row)
		    : after->kind == RR_AFTER_DONE ? earlier->done < earlier->slices
						   : !sends_released(work, (uint32_t)after->row, earlier->slices))
			return false;
	}
	return true;
}

bool rr_slice_may_go(const struct rr_open_row *work, const struct rr_slice *slice)
{
	const struct rr_schedule *rows = work->plan->rows;

	for (int32_t i = work->row->after_begin; i < work->row->after_end; i++) {
		const struct rr_after *after = &rows->afters[i];
		const struct rr_row_state *earlier = rr_engine_state(work->engine, work->round, (uint32_t)after->row);
		uint64_t need = bytes_needed(work, slice, earlier);
		uint32_t slices = (uint32_t)((need + work->plan->slice_bytes - 1) / work->plan->slice_bytes);

		if (!earlier->bytes && work->row->buffer == RR_SCRATCH && !cell_is_free(work, (uint32_t)after->row))
			return false;
		if (need == 0)
			continue;
		if (after->kind == RR_AFTER_DONE ? earlier->done < slices
						 : !sends_released(work, (uint32_t)after->row, slices))
			return false;
	}
	return true;
}
