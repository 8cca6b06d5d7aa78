/* trace.c - see trace.h. */
#include "trace.h"

#include <stdlib.h>
#include <string.h>

#include "status.h"

_Static_assert(sizeof(rr_trace_record) == 48, "Python reads records by this layout");
_Static_assert((RR_TRACE_FLIGHT & (RR_TRACE_FLIGHT - 1)) == 0, "positions in a queue are masked");

rr_status rr_trace_make(int32_t world, uint32_t channels, uint64_t record_count, struct rr_trace **out)
{
	struct rr_trace *trace = calloc(1, sizeof(*trace));
	uint64_t room = 1;

	record_count = record_count ? record_count : RR_TRACE_RECORDS_DEFAULT;
	if (record_count > RR_TRACE_RECORDS_MAX) {
		free(trace);
		return rr_fail(RR_ERR_ARGUMENT, "record_count is %llu; accepted are 0 (the default, %u) to %llu",
			       (unsigned long long)record_count, RR_TRACE_RECORDS_DEFAULT, RR_TRACE_RECORDS_MAX);
	}
	while (room < record_count)
		room *= 2;
	if (!trace)
		goto no_memory;
	trace->world = (uint32_t)world;
	trace->link_count = (uint32_t)world * channels;
	trace->room = room;
	trace->records = malloc(room * sizeof(*trace->records));
	trace->out = calloc(trace->link_count, sizeof(*trace->out));
	trace->in = calloc(trace->link_count, sizeof(*trace->in));
	if (!trace->records || !trace->out || !trace->in)
		goto no_memory;
	/* Touched now: else the first pass over the ring would measure page faults. */
	memset(trace->records, 0, room * sizeof(*trace->records));
	*out = trace;
	return RR_OK;

no_memory:
	rr_trace_free(trace);
	return rr_fail(RR_ERR_NO_MEMORY, "no memory for %llu trace records", (unsigned long long)room);
}

void rr_trace_free(struct rr_trace *trace)
{
	if (!trace)
		return;
	for (uint32_t i = 0; trace->out && i < trace->link_count; i++)
		free(trace->out[i].flight);
	free(trace->out);
	free(trace->in);
	free(trace->records);
	free(trace);
}

uint64_t rr_trace_take(struct rr_trace *trace, rr_trace_record *out, uint64_t room)
{
	uint64_t count = trace->written - trace->taken;

	count = count < room ? count : room;
	for (uint64_t i = 0; i < count; i++)
		out[i] = trace->records[(trace->taken + i) & (trace->room - 1)];
	trace->taken += count;
	return count;
}

static void put(struct rr_trace *trace, const rr_trace_record *record)
{
	if (trace->written - trace->taken == trace->room) {
		trace->taken++;
		trace->lost++;
	}
	trace->records[trace->written++ & (trace->room - 1)] = *record;
}

void rr_trace_note_operation(struct rr_trace *trace, uint64_t op, int32_t collective, uint64_t bytes,
			     uint64_t begin_ns, bool failed)
{
	put(trace, &(rr_trace_record){.begin_ns = begin_ns, .end_ns = rr_now_ns(), .bytes = bytes, .op = (uint32_t)op,
				      .row = -1, .peer = -1, .kind = RR_TRACE_OPERATION, .detail = (uint8_t)collective,
				      .flags = failed ? RR_TRACE_LEFT : 0});
}

/* ---- OPEN and DRAIN ---- */

static void end_wait(struct rr_trace *trace, uint64_t op, uint64_t now_ns, uint16_t flags)
{
	put(trace, &(rr_trace_record){.begin_ns = trace->wait_ns, .end_ns = now_ns, .op = (uint32_t)op, .row = -1,
				      .peer = trace->wait_peer, .kind = (uint8_t)trace->wait_kind, .flags = flags});
	trace->wait_ns = 0;
}

void rr_trace_note_wait(struct rr_trace *trace, enum rr_trace_kind kind, int32_t peer)
{
	if (trace->wait_ns)
		return;
	trace->wait_kind = kind;
	trace->wait_peer = peer;
	trace->wait_ns = rr_now_ns();
}

void rr_trace_note_waited(struct rr_trace *trace, uint64_t op)
{
	if (trace->wait_ns)
		end_wait(trace, op, rr_now_ns(), 0);
}

/* ---- slices ---- */

/* The channel of a link, as a record's flags tell it. */
static uint16_t channel_flag(const struct rr_trace *trace, uint32_t link)
{
	return (uint16_t)(link / trace->world << RR_TRACE_CHANNEL_SHIFT);
}

static rr_trace_record record_of(enum rr_trace_kind kind, const struct rr_trace_place *place, int32_t peer,
				 uint32_t bytes, uint64_t begin_ns, uint64_t end_ns)
{
	return (rr_trace_record){.begin_ns = begin_ns, .end_ns = end_ns, .bytes = bytes, .op = (uint32_t)place->op,
				 .row = (int32_t)place->row, .slice = place->slice, .peer = peer, .kind = (uint8_t)kind};
}

uint64_t rr_trace_note_slice(struct rr_trace *trace, const struct rr_schedule *rows, const struct rr_trace_place *place,
			     uint32_t round, uint32_t bytes, uint64_t begin_ns)
{
	uint64_t now_ns = rr_now_ns();
	const struct rr_row *row = &rows->rows[place->row];
	enum rr_trace_kind kind = row->action == RR_ACTION_REDUCE ? RR_TRACE_REDUCE : RR_TRACE_COPY;

	if (begin_ns) {
		rr_trace_record pass = record_of(kind, place, -1, bytes, begin_ns, now_ns);
		put(trace, &pass);
	}
	for (int32_t i = row->receive_begin; i < row->receive_end; i++) {
		const struct rr_receive *receive = &rows->receives[i];
		struct rr_trace_in *in = &trace->in[receive->link];

		if (in->here_ns) { /* else tracing began in between */
			rr_trace_record got = record_of(RR_TRACE_RECEIVE, place, receive->peer, bytes, in->asked_ns, in->here_ns);
			got.order = receive->order + round * rows->receives_from[receive->link];
			got.detail = (uint8_t)in->mode;
			got.flags = channel_flag(trace, receive->link);
			put(trace, &got);
		}
		*in = (struct rr_trace_in){0};
	}
	return now_ns;
}

void rr_trace_note_sent(struct rr_trace *trace, const struct rr_link *out, uint32_t link, const struct rr_transfer *transfer,
			uint32_t row, uint64_t copy_begin_ns, uint64_t now_ns)
{
	struct rr_trace_out *to = &trace->out[link];
	struct rr_trace_place place = {.op = transfer->op, .row = row, .slice = transfer->slice};
	rr_trace_record record = record_of(RR_TRACE_CREDIT, &place, out->peer, transfer->bytes, to->credit_ns, now_ns);

	record.order = transfer->order;
	record.flags = channel_flag(trace, link);
	if (to->credit_ns) {
		record.end_ns = copy_begin_ns ? copy_begin_ns : now_ns;
		put(trace, &record);
		to->credit_ns = 0;
	}
	if (copy_begin_ns) {
		record.kind = RR_TRACE_COPY;
		record.begin_ns = copy_begin_ns;
		record.end_ns = now_ns;
		put(trace, &record);
	}
	if (!to->flight) {
		to->flight = malloc(RR_TRACE_FLIGHT * sizeof(*to->flight));
		if (!to->flight) {
			trace->lost++;
			return;
		}
	}
	if (to->tail - to->head == RR_TRACE_FLIGHT) { /* implied transfers need no credit: nothing bounds them */
		to->head++;
		trace->lost++;
	}
	record.kind = RR_TRACE_SEND;
	record.detail = (uint8_t)transfer->mode;
	record.begin_ns = now_ns;
	record.end_ns = out->sent; /* its number, until it is released */
	to->flight[to->tail++ & (RR_TRACE_FLIGHT - 1)] = record;
}

void rr_trace_note_released(struct rr_trace *trace, struct rr_link *const *out, const uint32_t *links,
			    uint32_t link_total)
{
	uint64_t now_ns = 0;

	for (uint32_t i = 0; i < link_total; i++) {
		struct rr_trace_out *to = &trace->out[links[i]];
		struct rr_link *link = out[links[i]];
		uint64_t released = to->head == to->tail ? 0 : link->ops->released(link);

		for (; to->head != to->tail; to->head++) {
			rr_trace_record *sent = &to->flight[to->head & (RR_TRACE_FLIGHT - 1)];
			if (sent->end_ns >= released)
				break;
			now_ns = now_ns ? now_ns : rr_now_ns();
			sent->end_ns = now_ns;
			put(trace, sent);
		}
	}
}

void rr_trace_note_left(struct rr_trace *trace, uint64_t op)
{
	uint64_t now_ns = rr_now_ns();

	if (trace->wait_ns)
		end_wait(trace, op, now_ns, RR_TRACE_LEFT);
	for (uint32_t i = 0; i < trace->link_count; i++) {
		struct rr_trace_out *to = &trace->out[i];
		struct rr_trace_in *in = &trace->in[i];
		uint16_t flags = RR_TRACE_LEFT | channel_flag(trace, i);
		int32_t r = (int32_t)(i % trace->world);

		for (; to->head != to->tail; to->head++) {
			rr_trace_record *sent = &to->flight[to->head & (RR_TRACE_FLIGHT - 1)];
			sent->end_ns = now_ns;
			sent->flags = flags;
			put(trace, sent);
		}
		if (to->credit_ns)
			put(trace, &(rr_trace_record){.begin_ns = to->credit_ns, .end_ns = now_ns, .op = (uint32_t)op, .row = -1,
						      .peer = r, .kind = RR_TRACE_CREDIT, .flags = flags});
		if (in->asked_ns)
			put(trace, &(rr_trace_record){.begin_ns = in->asked_ns, .end_ns = now_ns, .op = (uint32_t)op, .row = -1,
						      .peer = r, .kind = RR_TRACE_RECEIVE, .flags = flags});
		to->credit_ns = 0;
		*in = (struct rr_trace_in){0};
	}
}
