/*
 * engine_row.c - one open row: receive part, send part, and the pass that does both at once.
 *
 * Receive part of slice k: runs when the bytes it depends on are done, its inputs are here and it may
 * overwrite its dst; it never waits for output credit. Send part: from dst, when the link has credit.
 * Where credit is at hand the two are one pass: all destinations = op(all sources).
 */
#include <string.h>

#include "engine.h"
#include "order.h"
#include "status.h"

#define SENDS_FUSED_MAX 64u /* bits of a mask; later sends of a row go by the send part */

/* One row at work: everything that does not change from slice to slice. */
struct work {
	struct rr_engine *engine;
	const struct rr_plan *plan;
	const struct rr_row *row;
	struct rr_row_state *state;
	uint64_t round;
	uint32_t index; /* of the row */
};

/* One slice of it. */
struct slice {
	uint32_t number;
	uint64_t offset; /* in the row */
	uint32_t bytes;
	uint32_t source_count, target_count;
	const void *sources[RR_COMBINE_SOURCES_MAX + 1];
	void *targets[SENDS_FUSED_MAX + 1];
	int32_t operand;   /* place of the local operand among the sources, or -1 */
	bool store;        /* dst itself is a target: the first */
	bool landed;       /* the bytes lie in dst already */
	uint64_t fused;    /* bit i: send i is committed after the pass */
	uint64_t here_ns;  /* its last input; 0: not traced, or no inputs */
};

static struct work work_of(struct rr_engine *engine, uint64_t instance)
{
	const struct rr_schedule *rows = engine->plan->rows;
	uint32_t index = (uint32_t)(instance % rows->row_count);
	uint64_t round = instance / rows->row_count;

	return (struct work){.engine = engine, .plan = engine->plan, .row = &rows->rows[index],
			     .state = rr_engine_state(engine, round, index), .round = round, .index = index};
}

void rr_engine_row_open(struct rr_engine *engine, uint64_t instance)
{
	struct work work = work_of(engine, instance);
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
	for (int32_t i = row->send_begin; i < row->send_end; i++)
		*rr_engine_send(engine, work.round, (uint32_t)i) = (struct rr_send_state){0};
}

/* ---- where bytes lie ---- */

/* Coordinate of the row's bytes in one of its buffers: scratch cells have coordinates of their own. */
static uint64_t coordinate_of(const struct work *work, int32_t buffer, int32_t cell, uint64_t offset)
{
	if (buffer != RR_SCRATCH)
		return work->state->begin + offset;
	uint64_t parity = (work->round & 1) * work->plan->rows->cell_count;
	return (parity + (uint64_t)cell) * work->plan->cell_bytes + offset;
}

/* The address at a coordinate; *run shrinks to what lies in one piece from there. */
static char *address_at(const struct rr_buffer *buffer, uint64_t coordinate, uint64_t *run)
{
	uint32_t low = 0, high = buffer->count;

	if (buffer->zero)
		return (char *)((uintptr_t)buffer->zero + coordinate);
	while (high - low > 1) {
		uint32_t middle = low + (high - low) / 2;
		if (buffer->starts[middle] <= coordinate)
			low = middle;
		else
			high = middle;
	}
	uint64_t inside = coordinate - buffer->starts[low];
	uint64_t left = buffer->extents[low].bytes - inside;
	*run = left < *run ? left : *run;
	return (char *)buffer->extents[low].address + inside;
}

/* ---- may this slice go ---- */

/* How many bytes of [0, row bytes) of an earlier row the given slice needs; 0: none. */
static uint64_t bytes_needed(const struct work *work, const struct slice *slice, const struct rr_row_state *earlier)
{
	uint64_t begin = work->state->begin + slice->offset, end = begin + slice->bytes;
	uint64_t earlier_end = earlier->begin + earlier->bytes;

	if (work->state->begin >= earlier_end || work->state->begin + work->state->bytes <= earlier->begin)
		return earlier->bytes; /* they share a scratch cell, not bytes of the vector: all of it */
	if (begin >= earlier_end || end <= earlier->begin)
		return 0;
	return (end < earlier_end ? end : earlier_end) - earlier->begin;
}

static bool sends_released(const struct work *work, uint32_t earlier_row, uint32_t slices)
{
	struct rr_engine *engine = work->engine;
	const struct rr_row *row = &work->plan->rows->rows[earlier_row];

	for (int32_t i = row->send_begin; i < row->send_end; i++) {
		struct rr_link *out = engine->out[work->plan->rows->sends[i].peer];
		const struct rr_send_state *send = rr_engine_send(engine, work->round, (uint32_t)i);
		if (send->sent < slices)
			return false;
		if (out->held && slices && out->ops->released(out) < send->first + slices)
			return false;
	}
	return true;
}

static bool after_allows(const struct work *work, const struct slice *slice)
{
	const struct rr_schedule *rows = work->plan->rows;

	for (int32_t i = work->row->after_begin; i < work->row->after_end; i++) {
		const struct rr_after *after = &rows->afters[i];
		const struct rr_row_state *earlier = rr_engine_state(work->engine, work->round, (uint32_t)after->row);
		uint64_t need = bytes_needed(work, slice, earlier);
		uint32_t slices = (uint32_t)((need + work->plan->slice_bytes - 1) / work->plan->slice_bytes);

		if (need == 0)
			continue;
		if (after->kind == RR_AFTER_DONE ? earlier->done < slices
						 : !sends_released(work, (uint32_t)after->row, slices))
			return false;
	}
	return true;
}

/* ---- receive part ---- */

static enum rr_mode receive_mode(const struct work *work, const struct rr_receive *receive)
{
	struct rr_engine *engine = work->engine;
	const struct rr_row *row = work->row;
	bool lands = row->action == RR_ACTION_COPY && row->buffer != RR_SCRATCH;

	return rr_mode_choose(engine->in[receive->peer], &engine->peer_places[receive->peer][receive->source],
			      lands ? &engine->open.place[row->buffer] : NULL);
}

static enum rr_mode send_mode(const struct work *work, const struct rr_send *send)
{
	struct rr_engine *engine = work->engine;
	bool lands = send->lands >= 0 && send->lands != RR_SCRATCH;

	return rr_mode_choose(engine->out[send->peer], &engine->open.place[work->row->buffer],
			      lands ? &engine->peer_places[send->peer][send->lands] : NULL);
}

/* All sources in their stated order. RR_AGAIN: an input is not here yet. */
static rr_status gather_sources(const struct work *work, struct slice *slice)
{
	struct rr_engine *engine = work->engine;
	const struct rr_row *row = work->row;
	uint32_t count = (uint32_t)(row->receive_end - row->receive_begin);
	uint32_t at = 0;

	slice->operand = row->operand_buffer >= 0 ? row->operand_at : -1;
	for (uint32_t i = 0; i < count; i++) {
		const struct rr_receive *receive = &work->plan->rows->receives[(uint32_t)row->receive_begin + i];
		struct rr_link *in = engine->in[receive->peer];
		uint32_t order = receive->order + (uint32_t)work->round * work->plan->rows->receives_from[receive->peer];
		struct rr_transfer transfer;
		uint64_t run = slice->bytes;

		transfer.op = engine->op;
		transfer.order = order;
		transfer.slice = slice->number;
		transfer.bytes = slice->bytes;
		transfer.mode = receive_mode(work, receive);
		transfer.landing = NULL;
		transfer.buffer = (enum rr_buffer_id)receive->source;
		transfer.coordinate = work->state->begin + slice->offset;
		transfer.implied = rr_mode_implied(transfer.mode, receive->source);
		transfer.piece_count = 0;

		if (engine->rows_received[receive->peer] != order) {
			engine->waiting_peer = receive->peer;
			return RR_AGAIN;
		}
		if (row->action == RR_ACTION_COPY) {
			transfer.landing = address_at(&engine->buffers[row->buffer],
						      coordinate_of(work, row->buffer, row->cell, slice->offset), &run);
			if (run < slice->bytes)
				transfer.landing = NULL;
		}
		if ((int32_t)at == slice->operand)
			at++;
		rr_trace_asked(engine->trace, receive->peer, transfer.mode);
		rr_status status = in->ops->peek(in, &transfer, &slice->sources[at]);
		if (status != RR_OK) {
			engine->waiting_peer = receive->peer;
			rr_trace_not_here(engine->trace, receive->peer);
			return status;
		}
		slice->here_ns = rr_trace_here(engine->trace, receive->peer, transfer.mode);
		slice->landed = transfer.landing && slice->sources[at] == transfer.landing;
		at++;
	}
	slice->source_count = count + (slice->operand >= 0 ? 1 : 0);
	return RR_OK;
}

/* Where the bytes lie here, for links that send from there. */
static void fill_pieces(const struct work *work, uint64_t offset, struct rr_transfer *transfer)
{
	const struct rr_buffer *buffer = &work->engine->buffers[work->row->buffer];
	uint64_t coordinate = coordinate_of(work, work->row->buffer, work->row->cell, offset);
	uint32_t count = 0;

	for (uint64_t done = 0; done < transfer->bytes; count++) {
		uint64_t run = transfer->bytes - done;
		if (count == RR_PIECES_MAX) {
			transfer->piece_count = 0;
			return;
		}
		transfer->pieces[count].iov_base = address_at(buffer, coordinate + done, &run);
		transfer->pieces[count].iov_len = run;
		done += run;
	}
	transfer->piece_count = count;
}

static void fill_transfer(const struct work *work, const struct rr_send *send, uint32_t number, uint64_t offset,
			  uint32_t bytes, struct rr_transfer *transfer)
{
	enum rr_mode mode = send_mode(work, send);
	int32_t buffer = mode == RR_MODE_WRITE ? send->lands : work->row->buffer;

	/* Not by one initializer: that would clear the pieces, too. */
	transfer->op = work->engine->op;
	transfer->order = send->order + (uint32_t)work->round * work->plan->rows->sends_to[send->peer];
	transfer->slice = number;
	transfer->bytes = bytes;
	transfer->mode = mode;
	transfer->landing = NULL;
	transfer->buffer = (enum rr_buffer_id)buffer;
	transfer->coordinate = coordinate_of(work, buffer, work->row->cell, offset);
	transfer->implied = rr_mode_implied(mode, buffer);
	transfer->piece_count = 0;
	if (work->engine->out[send->peer]->kind != RR_LINK_MAPPED)
		fill_pieces(work, offset, transfer);
}

/* A reserve that is not committed is given back. */
static void abort_fused(const struct work *work, uint64_t fused)
{
	for (uint32_t i = 0; fused; i++, fused >>= 1) {
		struct rr_link *out = work->engine->out[work->plan->rows->sends[(uint32_t)work->row->send_begin + i].peer];
		if (fused & 1)
			out->ops->abort(out);
	}
}

/* Reserve wherever there is credit; what has none goes later, from dst. */
static rr_status reserve_fused(const struct work *work, struct slice *slice)
{
	struct rr_engine *engine = work->engine;
	const struct rr_row *row = work->row;
	uint32_t count = (uint32_t)(row->send_end - row->send_begin);
	bool all = true;

	slice->target_count = 1; /* dst */
	for (uint32_t i = 0; i < count && i < SENDS_FUSED_MAX; i++) {
		uint32_t at = (uint32_t)row->send_begin + i;
		const struct rr_send *send = &work->plan->rows->sends[at];
		struct rr_link *out = engine->out[send->peer];
		struct rr_transfer transfer;
		void *place = NULL;

		fill_transfer(work, send, slice->number, slice->offset, slice->bytes, &transfer);
		if (rr_engine_send(engine, work->round, at)->sent != slice->number ||
		    engine->rows_sent[send->peer] != transfer.order) {
			all = false;
			continue;
		}
		rr_status status = out->ops->reserve(out, &transfer, &place);
		if (status < 0)
			return status;
		if (status == RR_AGAIN) {
			all = false;
			continue;
		}
		if (place)
			slice->targets[slice->target_count++] = place;
		else
			all = false; /* the peer will read dst itself */
		slice->fused |= 1ull << i;
	}
	slice->store = !slice->landed && !((row->flags & RR_ROW_TRANSIT) && all && count <= SENDS_FUSED_MAX);
	return RR_OK;
}

/* Over each stretch in which all local buffers lie in one piece. */
static rr_status combine(const struct work *work, struct slice *slice, rr_token *token)
{
	struct rr_engine *engine = work->engine;
	const struct rr_row *row = work->row;
	bool last = (row->flags & RR_ROW_LAST) && work->plan->post;
	const void *sources[RR_COMBINE_SOURCES_MAX + 1];
	void *targets[SENDS_FUSED_MAX + 1];

	*token = 0;
	work->state->pass_begin_ns = 0;
	for (uint64_t done = 0; done < slice->bytes;) {
		uint64_t run = slice->bytes - done, offset = slice->offset + done;
		uint32_t first = slice->store ? 0 : 1;
		char *dst = address_at(&engine->buffers[row->buffer],
				       coordinate_of(work, row->buffer, row->cell, offset), &run);
		if (slice->operand >= 0)
			sources[slice->operand] =
				address_at(&engine->buffers[row->operand_buffer],
					   coordinate_of(work, row->operand_buffer, row->operand_cell, offset), &run);
		for (uint32_t i = 0; i < slice->source_count; i++)
			if ((int32_t)i != slice->operand)
				sources[i] = (const char *)slice->sources[i] + done;
		targets[0] = dst;
		for (uint32_t i = 1; i < slice->target_count; i++)
			targets[i] = (char *)slice->targets[i] + done;
		if (slice->source_count == 1 && !last && first == 0 && sources[0] == dst)
			first = 1; /* in place: a copy onto itself */
		struct rr_combine pass = {.dst = targets + first, .dst_count = slice->target_count - first,
					  .src = sources, .src_count = slice->source_count,
					  .count = run / work->plan->element_bytes, .post = last,
					  .factor = work->plan->factor};
		if (last && slice->landed) { /* landed bytes that want the post-operation: in place */
			pass.dst = targets;
			pass.dst_count = slice->target_count;
		}
		if (pass.dst_count) {
			rr_trace_begin(engine->trace, &work->state->pass_begin_ns, slice->here_ns);
			rr_status status = engine->device->ops->combine(engine->device, work->plan->pass, &pass, token);
			if (status < 0)
				return status;
		}
		done += run;
	}
	return RR_OK;
}

static void commit_slice(struct rr_send_state *sent, struct rr_link *out, const struct rr_transfer *transfer)
{
	if (sent->sent == 0)
		sent->first = out->sent;
	out->held = out->held || transfer->mode == RR_MODE_SOURCE || transfer->mode == RR_MODE_CMA;
	/* A far link sets `held` itself, in commit(): it knows whether it sends from our memory. */
	out->ops->commit(out, transfer);
	sent->sent++;
}

/* The pass is over: give the inputs back, send what was fused, say what is done. */
static void finish_slice(const struct work *work, uint64_t fused)
{
	struct rr_engine *engine = work->engine;
	const struct rr_row *row = work->row;
	struct rr_row_state *state = work->state;
	uint32_t number = state->done;
	uint64_t offset = (uint64_t)number * work->plan->slice_bytes;
	uint64_t left = state->bytes - offset;
	uint32_t bytes = left < work->plan->slice_bytes ? (uint32_t)left : work->plan->slice_bytes;

	uint64_t now_ns = rr_trace_slice(engine->trace, work->plan->rows,
					 &(struct rr_trace_place){engine->op, work->index, number},
					 (uint32_t)work->round, bytes, state->pass_begin_ns);
	rr_trace_released(engine->trace, engine->out, work->plan->peers, work->plan->peer_count);
	for (int32_t i = row->receive_begin; i < row->receive_end; i++) {
		struct rr_link *in = engine->in[work->plan->rows->receives[i].peer];
		in->ops->release(in, bytes);
	}
	for (uint32_t i = 0; fused; i++, fused >>= 1) {
		if (!(fused & 1))
			continue;
		uint32_t at = (uint32_t)row->send_begin + i;
		const struct rr_send *send = &work->plan->rows->sends[at];
		struct rr_send_state *sent = rr_engine_send(engine, work->round, at);
		struct rr_transfer transfer;

		fill_transfer(work, send, number, offset, bytes, &transfer);
		rr_trace_sent(engine->trace, engine->out[send->peer], &transfer, work->index, 0, now_ns);
		commit_slice(sent, engine->out[send->peer], &transfer);
	}
	state->done++;
	if (engine->position)
		rr_note64(engine->position, (uint64_t)work->index << 32 | number);
}

static rr_status receive_slice(const struct work *work)
{
	struct rr_row_state *state = work->state;
	struct slice slice;
	rr_status status;

	slice.number = state->done;
	slice.offset = (uint64_t)slice.number * work->plan->slice_bytes;
	uint64_t left = state->bytes - slice.offset;
	slice.bytes = left < work->plan->slice_bytes ? (uint32_t)left : work->plan->slice_bytes;
	slice.landed = false;
	slice.fused = 0;
	slice.here_ns = 0;
	if (!after_allows(work, &slice))
		return RR_AGAIN;
	if (work->row->action == RR_ACTION_NONE) { /* the bytes are there: only sends follow */
		state->done++;
		return RR_OK;
	}
	status = gather_sources(work, &slice);
	if (status == RR_OK)
		status = reserve_fused(work, &slice);
	if (status == RR_OK)
		status = combine(work, &slice, &state->token);
	if (status != RR_OK) {
		abort_fused(work, slice.fused);
		return status;
	}
	if (!work->engine->device->ops->ready(work->engine->device, state->token)) {
		state->pending = true;
		state->pending_fused = slice.fused;
		return RR_OK;
	}
	finish_slice(work, slice.fused);
	return RR_OK;
}

/* ---- send part ---- */

/* dst into the reserved place, over each stretch that lies in one piece. */
static rr_status copy_out(const struct work *work, uint64_t offset, uint32_t bytes, void *place, rr_token *token)
{
	struct rr_engine *engine = work->engine;
	const struct rr_row *row = work->row;

	for (uint64_t done = 0; done < bytes;) {
		uint64_t run = bytes - done;
		const void *source = address_at(&engine->buffers[row->buffer],
						coordinate_of(work, row->buffer, row->cell, offset + done), &run);
		void *target = (char *)place + done;
		struct rr_combine copy = {.dst = &target, .dst_count = 1, .src = &source, .src_count = 1,
					  .count = run / work->plan->element_bytes};
		rr_status status = engine->device->ops->combine(engine->device, work->plan->pass, &copy, token);
		if (status < 0)
			return status;
		done += run;
	}
	return RR_OK;
}

/* One slice of dst to one peer. RR_AGAIN: no credit, not this row's turn, or the copy is under way. */
static rr_status send_slice(const struct work *work, uint32_t at)
{
	struct rr_engine *engine = work->engine;
	const struct rr_send *send = &work->plan->rows->sends[at];
	struct rr_send_state *sent = rr_engine_send(engine, work->round, at);
	struct rr_link *out = engine->out[send->peer];
	uint32_t slice_bytes = work->plan->slice_bytes;
	uint64_t offset = (uint64_t)sent->sent * slice_bytes, left = work->state->bytes - offset;
	uint32_t bytes = left < slice_bytes ? (uint32_t)left : slice_bytes;
	struct rr_transfer transfer;
	void *place = NULL;
	rr_status status;

	fill_transfer(work, send, sent->sent, offset, bytes, &transfer);
	if (!sent->pending) {
		if (engine->rows_sent[send->peer] != transfer.order)
			return RR_AGAIN;
		status = transfer.implied ? RR_OK : out->ops->reserve(out, &transfer, &place);
		if (status != RR_OK) {
			engine->waiting_peer = send->peer;
			rr_trace_no_credit(engine->trace, send->peer);
			return status;
		}
		sent->token = 0;
		sent->begin_ns = 0;
		if (place)
			rr_trace_begin(engine->trace, &sent->begin_ns, 0);
		status = place ? copy_out(work, offset, bytes, place, &sent->token) : RR_OK;
		if (status < 0) {
			out->ops->abort(out);
			return status;
		}
		sent->pending = true;
	}
	if (!engine->device->ops->ready(engine->device, sent->token))
		return RR_AGAIN;
	sent->pending = false;
	rr_trace_sent(engine->trace, out, &transfer, work->index, sent->begin_ns, 0);
	commit_slice(sent, out, &transfer);
	return RR_OK;
}

static rr_status send_slices(const struct work *work, uint32_t at, bool *moved)
{
	struct rr_send_state *sent = rr_engine_send(work->engine, work->round, at);
	rr_status status = RR_OK;

	while (sent->sent < work->state->done) {
		status = send_slice(work, at);
		if (status != RR_OK)
			return status;
		*moved = true;
	}
	return RR_OK;
}

/* ---- the row ---- */

static void let_links_go(const struct work *work)
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
			heads = heads && engine->rows_received[receive->peer] ==
						 receive->order + (uint32_t)work->round * rows->receives_from[receive->peer];
		}
		for (int32_t i = row->receive_begin; heads && i < row->receive_end; i++)
			engine->rows_received[rows->receives[i].peer]++;
		state->received_all = heads;
	}
	through = through && state->received_all;
	for (int32_t i = row->send_begin; i < row->send_end; i++) {
		const struct rr_send *send = &rows->sends[i];
		struct rr_send_state *sent = rr_engine_send(engine, work->round, (uint32_t)i);
		if (sent->sent == state->slices && state->done == state->slices &&
		    engine->rows_sent[send->peer] == send->order + (uint32_t)work->round * rows->sends_to[send->peer]) {
			engine->rows_sent[send->peer]++;
			sent->sent = RR_SENT_ALL;
		}
		through = through && sent->sent == RR_SENT_ALL;
	}
	state->through = through;
}

rr_status rr_engine_row(struct rr_engine *engine, uint64_t instance, bool *moved)
{
	struct work work = work_of(engine, instance);
	struct rr_row_state *state = work.state;
	rr_status status = RR_OK;

	engine->waiting_row = (int32_t)work.index;
	if (state->pending) {
		if (!engine->device->ops->ready(engine->device, state->token))
			return RR_AGAIN;
		state->pending = false;
		finish_slice(&work, state->pending_fused);
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
		status = send_slices(&work, (uint32_t)i, moved);
		if (status < 0)
			return status;
	}
	let_links_go(&work);
	return state->through ? RR_OK : RR_AGAIN;
}
