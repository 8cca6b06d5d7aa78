/*
 * engine_row.c - one open row: receive part, send part, and the pass that does both at once.
 *
 * Receive part of slice k: runs when the bytes it depends on are done, its inputs are here and it may
 * overwrite its dst; it never waits for output credit. Send part: from dst, when the link has credit.
 * Where credit is at hand the two are one pass: all destinations = op(all sources).
 */
#include <string.h>

#include "engine_slice.h"
#include "order.h"

static struct rr_open_row work_of(struct rr_engine *engine, uint64_t instance)
{
	const struct rr_schedule *rows = engine->plan->rows;
	uint32_t index = (uint32_t)(instance % rows->row_count);
	uint64_t round = instance / rows->row_count;

	return (struct rr_open_row){.engine = engine, .plan = engine->plan, .row = &rows->rows[index],
				    .state = rr_engine_state(engine, round, index), .round = round, .index = index};
}

void rr_engine_row_open(struct rr_engine *engine, uint64_t instance)
{
	struct rr_open_row work = work_of(engine, instance);
	const struct rr_row *row = work.row;
	uint32_t round = (uint32_t)work.round;
	struct rr_row_state *state = work.state;
	uint64_t end = 0;

	memset(state, 0, sizeof(*state));
	if (row->chunk_end > row->chunk_begin) {
		if (work.plan->round_count == 1) {
			state->begin = work.plan->chunk_offsets[row->chunk_begin];
			end = work.plan->chunk_offsets[row->chunk_end];
		} else { /* such a plan's rows have one chunk each: checked when it was made */
			state->begin = rr_plan_part(work.plan, (uint32_t)row->chunk_begin, round);
			end = rr_plan_part(work.plan, (uint32_t)row->chunk_begin, round + 1);
		}
		state->bytes = end - state->begin;
	}
	state->slices = (uint32_t)((state->bytes + work.plan->slice_bytes - 1) / work.plan->slice_bytes);
	if (work.plan->paired && !state->slices)
		state->slices = 1; /* empty here, but perhaps not at the other end: its first slice tells */
	for (int32_t i = row->send_begin; i < row->send_end; i++)
		*rr_engine_send(engine, work.round, (uint32_t)i) = (struct rr_send_state){0};
}

/* ---- receive part ---- */

/* The pass is over: give the inputs back, send what was fused, say what is done. */
static rr_status finish_slice(const struct rr_open_row *work, uint64_t fused)
{
	struct rr_engine *engine = work->engine;
	const struct rr_row *row = work->row;
	struct rr_row_state *state = work->state;
	uint32_t number = state->done;
	uint32_t bytes = rr_slice_bytes(work, rr_slice_offset(work, number));
	struct rr_sums sums = {0};
	rr_status status = work->plan->check ? rr_slice_result(work, fused, number, &sums) : RR_OK;

	if (status < 0) {
		rr_slice_abort(work, fused);
		return status;
	}
	uint64_t now_ns = rr_trace_slice(engine->trace, work->plan->rows,
					 &(struct rr_trace_place){engine->op, work->index, number},
					 (uint32_t)work->round, bytes, state->pass_begin_ns);
	rr_trace_released(engine->trace, engine->out, work->plan->links, work->plan->link_total);
	for (int32_t i = row->receive_begin; i < row->receive_end; i++) {
		struct rr_link *in = engine->in[work->plan->rows->receives[i].link];
		in->ops->release(in, bytes * rr_slice_width_received(row));
	}
	rr_slice_commit(work, fused, number, &sums, now_ns);
	state->done++;
	if (engine->position)
		rr_note64(engine->position, (uint64_t)work->index << 32 | number);
	return RR_OK;
}

static rr_status receive_slice(const struct rr_open_row *work)
{
	struct rr_row_state *state = work->state;
	struct rr_slice slice;
	rr_status status;

	slice.number = state->done;
	slice.offset = rr_slice_offset(work, slice.number);
	slice.bytes = rr_slice_bytes(work, slice.offset);
	slice.landed = false;
	slice.past = false;
	slice.fused = 0;
	slice.here_ns = 0;
	if (!rr_slice_may_go(work, &slice))
		return RR_AGAIN;
	if (work->row->action == RR_ACTION_NONE) { /* the bytes are there: only sends follow */
		state->done++;
		return RR_OK;
	}
	status = work->plan->check ? rr_slice_overwrite(work, &slice) : RR_OK;
	if (status == RR_OK)
		status = rr_slice_gather(work, &slice);
	if (status == RR_OK && work->plan->check)
		status = rr_slice_compare(work, &slice);
	if (status == RR_OK)
		status = rr_slice_reserve(work, &slice);
	if (status == RR_OK)
		status = rr_slice_combine(work, &slice, &state->token);
	if (status != RR_OK) {
		rr_slice_abort(work, slice.fused);
		return status;
	}
	status = work->engine->device->ops->ready(work->engine->device, state->token);
	if (status == RR_AGAIN) {
		work->engine->passes_under_way++;
		state->pending = true;
		state->pending_fused = slice.fused;
		return RR_OK;
	}
	if (status == RR_OK)
		return finish_slice(work, slice.fused);
	rr_slice_abort(work, slice.fused);
	return status;
}

/* ---- the row ---- */

static void let_links_go(const struct rr_open_row *work)
{
	struct rr_engine *engine = work->engine;
	const struct rr_row *row = work->row;
	struct rr_row_state *state = work->state;
	const struct rr_schedule *rows = work->plan->rows;
	bool through = state->done == state->slices;

	if (through && !state->received_all) {
		bool heads = true;
		for (int32_t i = row->receive_begin; i < row->receive_end; i++) {
			const struct rr_receive *receive = &rows->receives[i];
			heads = heads && engine->rows_received[receive->link] ==
						 receive->order + (uint32_t)work->round * rows->receives_from[receive->link];
		}
		for (int32_t i = row->receive_begin; heads && i < row->receive_end; i++)
			engine->rows_received[rows->receives[i].link]++;
		state->received_all = heads;
	}
	through = through && state->received_all;
	for (int32_t i = row->send_begin; i < row->send_end; i++) {
		const struct rr_send *send = &rows->sends[i];
		struct rr_send_state *sent = rr_engine_send(engine, work->round, (uint32_t)i);
		if (sent->sent == state->slices && state->done == state->slices &&
		    engine->rows_sent[send->link] == send->order + (uint32_t)work->round * rows->sends_to[send->link]) {
			engine->rows_sent[send->link]++;
			sent->sent = RR_SENT_ALL;
		}
		through = through && sent->sent == RR_SENT_ALL;
	}
	state->through = through;
}

rr_status rr_engine_row(struct rr_engine *engine, uint64_t instance, bool *moved)
{
	struct rr_open_row work = work_of(engine, instance);
	struct rr_row_state *state = work.state;
	rr_status status = RR_OK;

	engine->waiting_row = (int32_t)work.index;
	if (state->pending) {
		status = engine->device->ops->ready(engine->device, state->token);
		if (status < 0)
			rr_slice_abort(&work, state->pending_fused);
		if (status != RR_OK)
			return status;
		engine->passes_under_way--;
		state->pending = false;
		status = finish_slice(&work, state->pending_fused);
		if (status < 0)
			return status;
		*moved = true;
	}
	while (state->done < state->slices && !state->pending) {
		status = receive_slice(&work);
		if (status != RR_OK)
			break;
		*moved = true;
	}
	if (status < 0)
		return status;
	for (int32_t i = work.row->send_begin; i < work.row->send_end; i++) {
		status = rr_slice_send_rest(&work, (uint32_t)i, moved);
		if (status < 0)
			return status;
	}
	let_links_go(&work);
	return state->through ? RR_OK : RR_AGAIN;
}
