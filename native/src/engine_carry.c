/* engine_carry.c - see engine_carry.h. */
#include "engine_carry.h"

#include <stdlib.h>
#include <string.h>

#include "engine_slice.h"
#include "order.h"
#include "rdmaring_lists.h"
#include "status.h"

/* One slice on a link, as its list has it. */
struct carried {
	uint64_t coordinate; /* bytes of the vector */
	uint32_t row, order, slice, bytes;
	int32_t source; /* the sender's buffer */
	int32_t lands;  /* the receiver's, if it only lands the bytes; else -1 */
};

/* One direction of an edge. */
struct lane {
	uint32_t link;
	int32_t peer;
	bool out;
	struct rr_enqueued_link end;
	struct carried *slices;
	uint32_t count, room;
	/* of the operation at work */
	uint32_t begun, done; /* committed and released; or received */
	uint64_t first;       /* the link's number of the first */
};

struct rr_carrier {
	uint32_t lane_count;
	struct lane lanes[];
};

/* ---- made ---- */

static struct lane *lane_of(struct rr_carrier *carrier, uint32_t link, bool out)
{
	for (uint32_t i = 0; i < carrier->lane_count; i++)
		if (carrier->lanes[i].link == link && carrier->lanes[i].out == out)
			return &carrier->lanes[i];
	return NULL;
}

/* Its place is its number on the link: of several channels' streams each appends in its own time. */
static rr_status note_slice(struct lane *lane, uint32_t number, const struct carried *slice)
{
	if (number >= lane->room) {
		uint32_t room = lane->room ? lane->room * 2 : 64;
		room = room > number ? room : number + 1;
		struct carried *more = realloc(lane->slices, room * sizeof(*more));
		if (!more)
			return rr_fail(RR_ERR_NO_MEMORY, "no memory for %u slices on a link", room);
		lane->slices = more;
		lane->room = room;
	}
	lane->slices[number] = *slice;
	lane->count = lane->count > number ? lane->count : number + 1;
	return RR_OK;
}

static rr_status note_item(struct rr_carrier *carrier, const struct rr_enqueue *list, const struct rr_enqueue_item *item)
{
	const struct rr_plan *plan = list->plan;
	const struct rr_schedule *rows = plan->rows;
	const struct rr_row *row = &rows->rows[item->row];
	struct rr_range range = rr_enqueue_range(plan, row, item->round);
	uint64_t offset = (uint64_t)item->slice * plan->slice_bytes, left = range.end - range.begin - offset;
	uint32_t bytes = left < plan->slice_bytes ? (uint32_t)left : plan->slice_bytes;
	struct carried slice = {.coordinate = range.begin + offset, .row = item->row, .slice = item->slice};
	rr_status status = RR_OK;

	if (item->send != RR_ENQUEUE_NONE) {
		const struct rr_send *send = &rows->sends[item->send];
		struct lane *lane = lane_of(carrier, send->link, true);
		slice.order = send->order + item->round * rows->sends_to[send->link];
		slice.bytes = bytes * rr_slice_width(row);
		slice.source = row->buffer;
		slice.lands = send->lands == RR_SCRATCH ? -1 : send->lands;
		return lane ? note_slice(lane, item->number, &slice) : RR_OK;
	}
	for (int32_t i = row->receive_begin; i < row->receive_end && status == RR_OK; i++) {
		const struct rr_receive *receive = &rows->receives[i];
		struct lane *lane = lane_of(carrier, receive->link, false);
		slice.order = receive->order + item->round * rows->receives_from[receive->link];
		slice.bytes = bytes * rr_slice_width_received(row);
		slice.source = receive->source;
		slice.lands = -1; /* our memory was told to nobody: it lands in a slot */
		if (lane)
			status = note_slice(lane, list->numbers[item->number + (uint32_t)(i - row->receive_begin)], &slice);
	}
	return status;
}

rr_status rr_carrier_make(const struct rr_enqueue *list, const struct rr_enqueued_link *out, const struct rr_enqueued_link *in,
			  struct rr_carrier **made)
{
	const struct rr_schedule *rows = list->plan->rows;
	struct rr_carrier *carrier;
	rr_status status = RR_OK;
	uint32_t count = 0;

	for (uint32_t link = 0; link < rows->link_count; link++)
		count += (out[link].slot_count && rows->sends_to[link]) + (in[link].slot_count && rows->receives_from[link]);
	if (!count)
		return RR_OK;
	carrier = calloc(1, sizeof(*carrier) + count * sizeof(carrier->lanes[0]));
	if (!carrier)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for a carrier of %u links", count);
	for (uint32_t link = 0; link < rows->link_count; link++) {
		int32_t peer = (int32_t)(link % rows->world);
		if (out[link].slot_count && rows->sends_to[link])
			carrier->lanes[carrier->lane_count++] = (struct lane){.link = link, .peer = peer, .out = true, .end = out[link]};
		if (in[link].slot_count && rows->receives_from[link])
			carrier->lanes[carrier->lane_count++] = (struct lane){.link = link, .peer = peer, .end = in[link]};
	}
	for (uint32_t i = 0; i < list->item_count && status == RR_OK; i++)
		status = note_item(carrier, list, &list->items[i]);
	if (status < 0)
		rr_carrier_free(carrier);
	else
		*made = carrier;
	return status;
}

void rr_carrier_free(struct rr_carrier *carrier)
{
	if (!carrier)
		return;
	for (uint32_t i = 0; i < carrier->lane_count; i++)
		free(carrier->lanes[i].slices);
	free(carrier);
}

/* ---- at work ---- */

static _Atomic rr_carried_watch watched;

void rr_lists_watch(rr_carried_watch watch)
{
	atomic_store_explicit(&watched, watch, memory_order_release); /* pairs with tell() */
}

static void tell(rr_carried_access access, const void *address, uint64_t bytes)
{
	rr_carried_watch watch = atomic_load_explicit(&watched, memory_order_acquire);

	if (watch)
		watch((int32_t)access, address, bytes);
}

/* Of what was seen set; before the stream is let to set it again. */
static void take(_Atomic uint32_t *flag)
{
	tell(RR_CARRIED_TAKES, flag, sizeof(*flag));
	rr_note32(flag, 0);
}

static void set(_Atomic uint32_t *flag)
{
	tell(RR_CARRIED_SETS, flag, sizeof(*flag));
	rr_publish32(flag, 1); /* pairs with the stream's wait before it uses the slot */
}

static char *slot_of(const struct lane *lane, uint32_t number)
{
	return lane->end.slots + (uint64_t)(number % lane->end.slot_count) * lane->end.slot_bytes;
}

/* As in enqueued.h: set by one side, taken by the other. */
static _Atomic uint32_t *flag_of(const struct lane *lane, uint32_t *flags, uint32_t number)
{
	return (_Atomic uint32_t *)(flags + (size_t)(number % lane->end.slot_count) * lane->end.flag_stride);
}

void rr_carrier_start(struct rr_carrier *carrier, struct rr_engine *engine)
{
	for (uint32_t i = 0; i < carrier->lane_count; i++) {
		struct lane *lane = &carrier->lanes[i];
		lane->begun = 0;
		lane->done = 0;
		lane->first = lane->out ? engine->out[lane->link]->sent : engine->in[lane->link]->sent;
	}
}

static void fill_transfer(const struct rr_engine *engine, const struct carried *slice, struct rr_transfer *transfer)
{
	transfer->copied = false;
	transfer->op = engine->op;
	transfer->order = slice->order;
	transfer->slice = slice->slice;
	transfer->bytes = slice->bytes;
	transfer->row_bytes = 0;
	transfer->crc = 0;
	transfer->origin = 0;
	transfer->landing = NULL;
	transfer->coordinate = slice->coordinate;
	transfer->buffer = (enum rr_buffer_id)slice->source;
	transfer->implied = false;
	transfer->alike = 1;
	transfer->given = NULL;
	transfer->piece_count = 0;
	transfer->on_device = false; /* slots are the host's */
}

/* The slice in `slot` over the link. RR_AGAIN: it takes none now. */
static rr_status post(struct rr_engine *engine, const struct lane *lane, const struct carried *slice, char *slot,
		      _Atomic uint32_t *ready)
{
	struct rr_link *out = engine->out[lane->link];
	const struct rr_place *landing = slice->lands < 0 ? NULL : &engine->peer_places[lane->peer][slice->lands];
	struct rr_transfer transfer;
	void *place = NULL;
	rr_status status;

	fill_transfer(engine, slice, &transfer);
	transfer.mode = rr_mode_choose(out, &engine->open.place[slice->source], landing);
	if (transfer.mode == RR_MODE_WRITE)
		transfer.buffer = (enum rr_buffer_id)slice->lands;
	if (out->kind != RR_LINK_MAPPED) {
		transfer.pieces[0].iov_base = slot;
		transfer.pieces[0].iov_len = slice->bytes;
		transfer.piece_count = 1;
	}
	status = out->ops->reserve(out, &transfer, &place);
	if (status != RR_OK)
		return status;
	take(ready);
	tell(RR_CARRIED_READS, slot, slice->bytes);
	if (place)
		memcpy(place, slot, slice->bytes);
	out->ops->commit(out, &transfer);
	return RR_OK;
}

/*
 * For verdicts: what the stream has given and the link does not take is waited for. Of what does not come that is not known: the
 * slot may be free because our own stream is late.
 */
static void stand(struct rr_engine *engine, const struct lane *lane, const struct carried *slice, rr_status status, bool out)
{
	engine->waiting_row = (int32_t)slice->row;
	if (status < 0)
		engine->waiting_peer = lane->peer;
	else if (out)
		rr_engine_waits(engine, true, RR_WAIT_CREDIT, lane->peer);
}

static rr_status carry_out(struct rr_engine *engine, struct lane *lane, bool *moved)
{
	struct rr_link *out = engine->out[lane->link];
	rr_status status = RR_OK;

	for (; lane->begun < lane->count; lane->begun++) {
		_Atomic uint32_t *ready = flag_of(lane, lane->end.ready, lane->begun);
		const struct carried *slice = &lane->slices[lane->begun];
		if (!rr_observe32(ready)) /* pairs with the stream's store behind its copy */
			break;
		status = post(engine, lane, slice, slot_of(lane, lane->begun), ready);
		if (status != RR_OK) {
			stand(engine, lane, slice, status, true);
			break;
		}
		*moved = true;
	}
	if (status < 0)
		return status;
	for (uint64_t released = out->ops->released(out); lane->done < lane->begun && lane->first + lane->done < released; lane->done++) {
		set(flag_of(lane, lane->end.credit, lane->done));
		*moved = true;
	}
	return lane->done < lane->count ? RR_AGAIN : RR_OK;
}

static rr_status carry_in(struct rr_engine *engine, struct lane *lane, bool *moved)
{
	struct rr_link *in = engine->in[lane->link];

	for (; lane->done < lane->count; lane->done++) {
		_Atomic uint32_t *credit = flag_of(lane, lane->end.credit, lane->done);
		const struct carried *slice = &lane->slices[lane->done];
		char *slot = slot_of(lane, lane->done);
		struct rr_transfer transfer;
		const void *data;
		rr_status status;

		if (!rr_observe32(credit)) /* pairs with the stream's store behind its pass */
			return RR_AGAIN;
		fill_transfer(engine, slice, &transfer);
		transfer.mode = rr_mode_choose(in, &engine->peer_places[lane->peer][slice->source], NULL);
		transfer.landing = slot;
		status = in->ops->peek(in, &transfer, &data);
		if (status != RR_OK) {
			stand(engine, lane, slice, status, false);
			return status;
		}
		if (data != slot)
			memcpy(slot, data, slice->bytes);
		take(credit);
		tell(RR_CARRIED_WRITES, slot, slice->bytes);
		set(flag_of(lane, lane->end.ready, lane->done));
		in->ops->release(in, slice->bytes);
		if (engine->position)
			rr_note64(engine->position, (uint64_t)slice->row << 32 | slice->slice);
		*moved = true;
	}
	return RR_OK;
}

rr_status rr_carrier_progress(struct rr_carrier *carrier, struct rr_engine *engine, bool *moved)
{
	rr_status all = RR_OK;

	for (uint32_t i = 0; i < carrier->lane_count; i++) {
		struct lane *lane = &carrier->lanes[i];
		rr_status status = lane->out ? carry_out(engine, lane, moved) : carry_in(engine, lane, moved);
		if (status < 0)
			return status;
		all = status == RR_OK ? all : status;
	}
	return all;
}
