/* engine.c - phases of an operation and the window of open rows. */
#include "engine.h"

#include <stdlib.h>
#include <string.h>

#include "engine_carry.h"
#include "order.h"
#include "status.h"

rr_status rr_engine_init(struct rr_engine *engine, int32_t rank, int32_t world, uint32_t channels)
{
	size_t count = (size_t)world * channels;

	memset(engine, 0, sizeof(*engine));
	engine->rank = rank;
	engine->world = world;
	engine->channels = channels;
	engine->device = &rr_device_cpu;
	engine->out = calloc(count, sizeof(struct rr_link *));
	engine->in = calloc(count, sizeof(struct rr_link *));
	engine->peer_places = calloc((size_t)world, sizeof(*engine->peer_places));
	engine->rows_sent = calloc(count, sizeof(uint32_t));
	engine->rows_received = calloc(count, sizeof(uint32_t));
	if (engine->out && engine->in && engine->peer_places && engine->rows_sent && engine->rows_received)
		return RR_OK;
	rr_engine_free(engine);
	return rr_fail(RR_ERR_NO_MEMORY, "no memory for an engine of %d ranks", world);
}

void rr_engine_free(struct rr_engine *engine)
{
	for (size_t i = 0; i < (size_t)engine->world * engine->channels; i++) {
		if (engine->out && engine->out[i])
			engine->out[i]->ops->close(engine->out[i]);
		if (engine->in && engine->in[i])
			engine->in[i]->ops->close(engine->in[i]);
	}
	free(engine->out);
	free(engine->in);
	free(engine->peer_places);
	free(engine->rows_sent);
	free(engine->rows_received);
	free(engine->row_states);
	free(engine->send_states);
	rr_origin_free(&engine->origins);
	memset(engine, 0, sizeof(*engine));
}

static rr_status make_room(struct rr_engine *engine, const struct rr_schedule *rows)
{
	if (rows->row_count > engine->row_room) {
		free(engine->row_states);
		engine->row_states = calloc((size_t)rows->row_count * 2, sizeof(*engine->row_states));
		engine->row_room = engine->row_states ? rows->row_count : 0;
	}
	if (rows->send_count > engine->send_room) {
		free(engine->send_states);
		engine->send_states = calloc((size_t)rows->send_count * 2, sizeof(*engine->send_states));
		engine->send_room = engine->send_states ? rows->send_count : 0;
	}
	if (engine->row_room < rows->row_count || engine->send_room < rows->send_count)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for %u rows", rows->row_count);
	return RR_OK;
}

rr_status rr_engine_start(struct rr_engine *engine, const struct rr_plan *plan, uint64_t op,
			  const struct rr_buffer buffers[RR_BUFFER_COUNT],
			  const struct rr_place places[RR_BUFFER_COUNT])
{
	const struct rr_schedule *rows = plan->rows;
	rr_status status = make_room(engine, rows);

	if (status >= 0 && plan->check)
		status = rr_origin_start(&engine->origins, plan);
	if (status < 0)
		return status;
	engine->plan = plan;
	engine->op = op;
	memcpy(engine->buffers, buffers, sizeof(engine->buffers));
	rr_note64(&engine->open.op, op);
	engine->open.descriptor = plan->descriptor.hash;
	/* Where the ends were told their counts apart, coordinates are each rank's own: nobody reaches by them (link.h, row_bytes). */
	memset(engine->open.place, 0, sizeof(engine->open.place));
	if (!plan->paired)
		memcpy(engine->open.place, places, sizeof(engine->open.place));
	engine->opens_posted = 0;
	engine->opens_seen = 0;
	for (uint32_t i = 0; i < plan->link_total; i++) {
		uint32_t link = plan->links[i];
		engine->rows_sent[link] = 0;
		engine->rows_received[link] = 0;
		engine->out[link]->held_end = 0;
	}
	engine->retired = 0;
	engine->opened = 0;
	engine->instances = (uint64_t)rows->row_count * plan->round_count;
	engine->passes_under_way = 0;
	engine->behind = false;
	engine->waiting_peer = -1;
	engine->waiting_row = -1;
	engine->phase = RR_OPENING;
	return RR_OK;
}

rr_status rr_engine_behind_device(struct rr_engine *engine)
{
	rr_status status = engine->device->ops->mark(engine->device, &engine->mark);

	if (status == RR_OK) {
		engine->behind = true;
		engine->passes_under_way++;
	}
	return status;
}

/* RR_OK: what the device was to come after is over. */
static rr_status look_behind(struct rr_engine *engine)
{
	rr_status status = engine->behind ? engine->device->ops->ready(engine->device, engine->mark) : RR_OK;

	if (status == RR_OK && engine->behind) {
		engine->behind = false;
		engine->passes_under_way--;
	}
	return status;
}

void rr_engine_stop(struct rr_engine *engine)
{
	rr_trace_left(engine->trace, engine->op);
	engine->phase = RR_IDLE;
	engine->passes_under_way = 0;
	engine->plan = NULL;
}

/*
 * Say who we are, see who they are, over each link: a key of memory is a device's. No transfer starts before all peers
 * of the plan are known.
 */
static rr_status open_links(struct rr_engine *engine, bool *moved)
{
	const struct rr_plan *plan = engine->plan;
	rr_status status = look_behind(engine);

	if (status != RR_OK)
		return status;
	for (; engine->opens_posted < plan->link_total; engine->opens_posted++) {
		struct rr_link *out = engine->out[plan->links[engine->opens_posted]];
		status = out->ops->open_post(out, &engine->open, &plan->descriptor);
		if (status != RR_OK) { /* AGAIN: the edge is not made yet, for which its peer is needed */
			engine->waiting_peer = out->peer;
			rr_engine_waits(engine, false, RR_WAIT_ENTRY, out->peer);
			return status;
		}
		*moved = true;
	}
	for (; engine->opens_seen < plan->link_total; engine->opens_seen++) {
		uint32_t link = plan->links[engine->opens_seen];
		struct rr_link *in = engine->in[link], *out = engine->out[link];
		int32_t peer = out->peer;
		const struct rr_open *theirs;
		status = in->ops->open_peek(in, engine->op, &theirs);

		if (status != RR_OK) {
			engine->waiting_peer = peer;
			rr_engine_waits(engine, false, RR_WAIT_ENTRY, peer);
			rr_trace_wait(engine->trace, RR_TRACE_OPEN, peer);
			return status;
		}
		rr_trace_waited(engine->trace, engine->op);
		if (theirs->descriptor != engine->open.descriptor) {
			engine->waiting_peer = peer;
			return rr_fail(RR_ERR_MISMATCH, "rank %d called another operation", peer);
		}
		status = in->ops->open_accept(in, theirs);
		if (status == RR_OK)
			status = out->ops->open_accept(out, theirs);
		if (status != RR_OK)
			return status;
		memcpy(engine->peer_places[peer], theirs->place, sizeof(engine->peer_places[peer]));
		*moved = true;
	}
	engine->waiting_peer = -1;
	return RR_OK;
}

/* A round's cells and states are used again two rounds later: peers must have read them by then. */
static bool round_may_open(struct rr_engine *engine, uint64_t round)
{
	const struct rr_schedule *rows = engine->plan->rows;

	if (round < 2)
		return true;
	if (engine->retired < (round - 1) * rows->row_count)
		return false;
	for (uint32_t r = 0; r < rows->row_count; r++) {
		const struct rr_row *row = &rows->rows[r];
		for (int32_t i = row->send_begin; i < row->send_end; i++) {
			struct rr_link *out = engine->out[rows->sends[i].link];
			struct rr_send_state *send = rr_engine_send(engine, round, (uint32_t)i);
			uint32_t slices = rr_engine_state(engine, round, r)->slices;
			if (slices && !rr_link_has_released(out, send->first + slices)) {
				rr_engine_waits(engine, true, RR_WAIT_READERS, out->peer);
				return false;
			}
		}
	}
	return true;
}

static void open_rows(struct rr_engine *engine)
{
	const struct rr_schedule *rows = engine->plan->rows;
	uint64_t limit = engine->retired + rows->window;

	limit = limit < engine->instances ? limit : engine->instances;
	while (engine->opened < limit) {
		if (engine->opened % rows->row_count == 0 && !round_may_open(engine, engine->opened / rows->row_count))
			return;
		rr_engine_row_open(engine, engine->opened);
		engine->opened++;
	}
}

static rr_status run_rows(struct rr_engine *engine, bool *moved)
{
	uint32_t row_count = engine->plan->rows->row_count;

	open_rows(engine);
	for (uint64_t i = engine->retired; i < engine->opened; i++) {
		struct rr_row_state *state = rr_engine_state(engine, i / row_count, (uint32_t)(i % row_count));
		if (!state->through) {
			rr_status status = rr_engine_row(engine, i, moved);
			if (status < 0) {
				engine->waiting_row = (int32_t)(i % row_count);
				return status;
			}
		}
		if (state->through && i == engine->retired) {
			engine->retired++;
			open_rows(engine);
		}
	}
	return engine->retired == engine->instances ? RR_OK : RR_AGAIN;
}

/* Streams run the rows: all ranks are in this operation now. What streams do not reach is carried here. */
static rr_status run_list(struct rr_engine *engine, bool *moved)
{
	struct rr_carrier *carrier = engine->plan->listed->carrier;
	rr_status status = RR_OK, carried = RR_OK;

	if (engine->emission.captured) /* its graph's launches run it */
		return RR_OK;
	if (!engine->passes_under_way) {
		if (carrier)
			rr_carrier_start(carrier, engine);
		engine->lists->ops->go(engine->lists, &engine->emission);
		engine->passes_under_way = 1;
		*moved = true;
	}
	if (carrier)
		carried = rr_carrier_progress(carrier, engine, moved);
	if (carried >= 0)
		status = engine->lists->ops->ended(engine->lists, &engine->emission);
	status = carried == RR_OK || status < 0 ? status : carried; /* the list's end may come before its last slice has left */
	if (status != RR_AGAIN)
		engine->passes_under_way = 0;
	return status;
}

/* Nobody may touch our buffers after the operation: wait for those who read them in place. */
static rr_status drain(struct rr_engine *engine)
{
	const struct rr_plan *plan = engine->plan;

	for (uint32_t i = 0; i < plan->link_total; i++) {
		struct rr_link *out = engine->out[plan->links[i]];
		if (!rr_link_has_released(out, out->held_end)) {
			engine->waiting_peer = out->peer;
			rr_engine_waits(engine, true, RR_WAIT_READERS, out->peer);
			rr_trace_wait(engine->trace, RR_TRACE_DRAIN, out->peer);
			return RR_AGAIN;
		}
	}
	rr_trace_waited(engine->trace, engine->op);
	return RR_OK;
}

/* Far links have bytes of their own to move; OPENs and committed slices go on while rows wait elsewhere. */
static rr_status move_links(struct rr_engine *engine)
{
	const struct rr_plan *plan = engine->plan;

	for (uint32_t i = 0; i < plan->link_total; i++) {
		struct rr_link *out = engine->out[plan->links[i]], *in = engine->in[plan->links[i]];
		rr_status status = RR_OK;

		if (out->ops->progress)
			status = out->ops->progress(out);
		if (status >= 0 && in->ops->progress)
			status = in->ops->progress(in);
		if (status < 0) {
			engine->waiting_peer = out->peer;
			return status;
		}
	}
	return RR_OK;
}

static void flush_links(struct rr_engine *engine)
{
	const struct rr_plan *plan = engine->plan;
	bool fenced = false;

	for (uint32_t i = 0; i < plan->link_total; i++) {
		struct rr_link *out = engine->out[plan->links[i]], *in = engine->in[plan->links[i]];
		if (!out->dirty && !in->dirty)
			continue;
		if (!fenced)
			rr_store_before_load(); /* what we published, before we look who sleeps */
		fenced = true;
		out->dirty = false;
		in->dirty = false;
		out->ops->flush(out);
	}
}

rr_status rr_engine_progress(struct rr_engine *engine, bool *moved)
{
	rr_status status = engine->plan->far ? move_links(engine) : RR_OK;

	engine->waits[0] = 0;
	engine->waits[1] = 0;
	engine->waits_link = NULL;
	if (engine->phase == RR_OPENING && status == RR_OK) {
		status = open_links(engine, moved);
		if (status == RR_OK)
			engine->phase = RR_RUNNING;
	}
	if (engine->phase == RR_RUNNING && status == RR_OK) {
		status = engine->plan->listed ? run_list(engine, moved) : run_rows(engine, moved);
		if (status == RR_OK)
			engine->phase = RR_DRAINING;
	}
	if (engine->phase == RR_DRAINING && status == RR_OK)
		status = drain(engine);
	rr_trace_released(engine->trace, engine->out, engine->plan->links, engine->plan->link_total);
	flush_links(engine);
	if (status == RR_OK)
		rr_engine_stop(engine);
	return status;
}
