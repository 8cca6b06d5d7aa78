/* engine_receive.c - the receive part of a slice: its sources, and the one pass over them. */
#include <stdio.h>

#include "crc.h"
#include "engine_slice.h"
#include "status.h"

static enum rr_mode receive_mode(const struct rr_open_row *work, const struct rr_receive *receive)
{
	struct rr_engine *engine = work->engine;
	const struct rr_row *row = work->row;
	const struct rr_link *in = engine->in[receive->link];
	bool lands = row->action == RR_ACTION_COPY && row->buffer != RR_SCRATCH;
	struct rr_place landing = engine->open.place[lands ? row->buffer : RR_INPUT];

	if (landing.reach == RR_REACH_DEVICE) /* as the link told it to the peer */
		landing.reach = in->granted >> row->buffer & 1 ? RR_REACH_REGION : RR_REACH_NONE;
	return rr_mode_choose(in, &engine->peer_places[receive->peer][receive->source], lands ? &landing : NULL);
}

/* All sources in their stated order. RR_AGAIN: an input is not here yet. */
rr_status rr_slice_gather(const struct rr_open_row *work, struct rr_slice *slice)
{
	struct rr_engine *engine = work->engine;
	const struct rr_row *row = work->row;
	uint32_t count = (uint32_t)(row->receive_end - row->receive_begin);
	uint32_t at = 0;

	slice->operand = row->operand_buffer >= 0 ? row->operand_at : -1;
	for (uint32_t i = 0; i < count; i++) {
		const struct rr_receive *receive = &work->plan->rows->receives[(uint32_t)row->receive_begin + i];
		struct rr_link *in = engine->in[receive->link];
		uint32_t order = receive->order + (uint32_t)work->round * work->plan->rows->receives_from[receive->link];
		struct rr_transfer transfer;
		uint64_t run = slice->bytes;

		transfer.op = engine->op;
		transfer.order = order;
		transfer.slice = slice->number;
		transfer.bytes = slice->bytes * rr_slice_width_received(row);
		transfer.row_bytes = rr_slice_row_bytes(work);
		transfer.mode = receive_mode(work, receive);
		transfer.landing = NULL;
		transfer.buffer = (enum rr_buffer_id)receive->source;
		transfer.coordinate = work->state->begin + slice->offset;
		transfer.implied = !work->plan->check && rr_mode_implied(transfer.mode, receive->source);
		transfer.piece_count = 0;
		transfer.on_device = work->plan->device != NULL;

		if (engine->rows_received[receive->link] != order) {
			engine->waiting_peer = receive->peer;
			return RR_AGAIN;
		}
		/* A link's own hand does not reach a device's memory: there lands only what a NIC wrote. */
		if (row->action == RR_ACTION_COPY && (!work->plan->device || transfer.mode == RR_MODE_WRITE)) {
			transfer.landing = rr_slice_address(&engine->buffers[row->buffer],
							    rr_slice_coordinate(work, row->buffer, row->cell, slice->offset),
							    &run);
			if (run < slice->bytes)
				transfer.landing = NULL;
		}
		if ((int32_t)at == slice->operand)
			at++;
		rr_trace_asked(engine->trace, receive->link, transfer.mode);
		rr_status status = in->ops->peek(in, &transfer, &slice->sources[at]);
		if (status != RR_OK) {
			engine->waiting_peer = receive->peer;
			engine->waits_link = engine->waits[0] ? engine->waits_link : in;
			rr_engine_waits(engine, false, RR_WAIT_DATA, receive->peer);
			rr_trace_not_here(engine->trace, receive->link);
			return status;
		}
		slice->here_ns = rr_trace_here(engine->trace, receive->link, transfer.mode);
		slice->landed = transfer.landing && slice->sources[at] == transfer.landing;
		at++;
	}
	slice->source_count = count + (slice->operand >= 0 ? 1 : 0);
	return RR_OK;
}

#define PLACE_BYTES 128

/* Where the bytes changed whose hop's own sum is wrong. */
static const char *changed_in(enum rr_mode mode, int32_t from, int32_t to, char place[PLACE_BYTES])
{
	switch (mode) {
	case RR_MODE_SOURCE:
		snprintf(place, PLACE_BYTES, "in the memory of rank %d, which is read in place", from);
		break;
	case RR_MODE_CMA:
		snprintf(place, PLACE_BYTES, "in the memory of rank %d, where it was read, or the memory of rank %d, where it landed", from, to);
		break;
	case RR_MODE_SLOT:
		snprintf(place, PLACE_BYTES, "in the slot or on the wire");
		break;
	case RR_MODE_WRITE:
	case RR_MODE_STREAM:
		snprintf(place, PLACE_BYTES, "on the wire or in the memory of rank %d, where it landed", to);
		break;
	}
	return place;
}

static rr_status compare(const struct rr_open_row *work, const struct rr_receive *receive, const struct rr_slice *slice,
			 uint32_t found)
{
	const struct rr_row *row = work->row;
	const struct rr_link *in = work->engine->in[receive->link];
	unsigned long long begin = work->state->begin + slice->offset, end = begin + slice->bytes;
	char place[PLACE_BYTES];

	if (found == in->crc && found == in->origin)
		return RR_OK;
	work->engine->waiting_peer = in->peer;
	if (found != in->crc)
		return rr_fail(RR_ERR_CORRUPT,
			       "slice %u from rank %d to rank %d in step %d came otherwise than it was sent: chunk %d, bytes %llu to %llu of the vector, CRC32C %08x, sent was %08x: it changed on this hop, %s",
			       slice->number, in->peer, work->engine->rank, row->step, row->chunk_begin, begin, end, found, in->crc,
			       changed_in(receive_mode(work, receive), in->peer, work->engine->rank, place));
	return rr_fail(RR_ERR_CORRUPT,
		       "slice %u from rank %d to rank %d in step %d is not what its origin had: chunk %d, bytes %llu to %llu of the vector, CRC32C %08x, the origin's %08x: this hop's own sum is right, so it changed in the memory of rank %d between landing or computing and sending on",
		       slice->number, in->peer, work->engine->rank, row->step, row->chunk_begin, begin, end, found, in->origin, in->peer);
}

rr_status rr_slice_compare(const struct rr_open_row *work, const struct rr_slice *slice)
{
	const struct rr_row *row = work->row;
	uint32_t bytes = slice->bytes * rr_slice_width_received(row), at = 0;
	bool keep = work->plan->kept[work->index] && rr_slice_passes_on(work);
	rr_status status = RR_OK;

	for (int32_t i = row->receive_begin; i < row->receive_end && status == RR_OK; i++, at++) {
		uint32_t found;
		at += (int32_t)at == slice->operand;
		if (keep)
			status = rr_origin_note(&work->engine->origins, (enum rr_buffer_id)row->buffer,
						rr_slice_coordinate(work, row->buffer, row->cell, slice->offset), slice->sources[at],
						bytes, &found);
		else
			found = rr_crc32c(0, slice->sources[at], bytes);
		if (status == RR_OK)
			status = compare(work, &work->plan->rows->receives[i], slice, found);
	}
	if (status == RR_OK && slice->operand >= 0 && row->operand_buffer != RR_INPUT)
		status = rr_origin_compare(work, (enum rr_buffer_id)row->operand_buffer,
					   rr_slice_coordinate(work, row->operand_buffer, row->operand_cell, slice->offset),
					   slice->bytes);
	return status;
}

/* Over each stretch in which all local buffers lie in one piece. */
rr_status rr_slice_combine(const struct rr_open_row *work, struct rr_slice *slice, rr_token *token)
{
	struct rr_engine *engine = work->engine;
	const struct rr_row *row = work->row;
	bool last = (row->flags & RR_ROW_LAST) && work->plan->post;
	uint32_t width = rr_slice_width(row), width_received = rr_slice_width_received(row);
	bool plain = width == 1 && width_received == 1;
	uint64_t received = slice->operand < 0 ? UINT64_MAX : ~(1ull << slice->operand);
	const void *sources[RR_COMBINE_SOURCES_MAX + 1];
	void *targets[RR_SENDS_FUSED_MAX + 1];

	*token = 0;
	work->state->pass_begin_ns = 0;
	for (uint64_t done = 0; done < slice->bytes;) {
		uint64_t run = slice->bytes - done, offset = slice->offset + done;
		uint32_t first = slice->store ? 0 : 1;
		char *dst = rr_slice_address(&engine->buffers[row->buffer],
					     rr_slice_coordinate(work, row->buffer, row->cell, offset), &run);
		if (slice->operand >= 0)
			sources[slice->operand] =
				rr_slice_address(&engine->buffers[row->operand_buffer],
						 rr_slice_coordinate(work, row->operand_buffer, row->operand_cell, offset),
						 &run);
		for (uint32_t i = 0; i < slice->source_count; i++)
			if ((int32_t)i != slice->operand)
				sources[i] = (const char *)slice->sources[i] + done * width_received;
		targets[0] = dst;
		for (uint32_t i = 1; i < slice->target_count; i++)
			targets[i] = (char *)slice->targets[i] + done * width;
		if (slice->source_count == 1 && !last && first == 0 && sources[0] == dst)
			first = 1; /* in place: a copy onto itself */
		struct rr_combine pass = {.dst = targets + first, .dst_count = slice->target_count - first,
					  .src = sources, .src_count = slice->source_count,
					  .count = run / work->plan->element_bytes, .wide = width > 1,
					  .wide_sources = width_received > 1 ? received : 0, .post = last,
					  .past_last = slice->past, .factor = work->plan->factor,
					  .dtype = (uint8_t)work->plan->descriptor.dtype,
					  .redop = (uint8_t)work->plan->descriptor.redop};
		if (last && slice->landed) { /* landed bytes that want the post-operation: in place */
			pass.dst = targets;
			pass.dst_count = slice->target_count;
		}
		if (pass.dst_count) {
			rr_trace_begin(engine->trace, &work->state->pass_begin_ns, slice->here_ns);
			rr_status status = engine->device->ops->combine(engine->device, plain ? work->plan->pass : work->plan->wide_pass,
									     &pass, token);
			if (status < 0)
				return status;
		}
		done += run;
	}
	return RR_OK;
}
