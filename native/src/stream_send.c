/* stream_send.c - the sending end of an edge of streams: frames, straight from their memory. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "order.h"
#include "status.h"
#include "stream_edge.h"

/* The next free place in a socket's queue, or NULL. */
static struct rr_sending *next_sending(struct rr_stream *stream)
{
	if (stream->count == RR_FRAMES_MAX)
		return NULL;
	return &stream->queue[(stream->first + stream->count) % RR_FRAMES_MAX];
}

static void set_frame(struct rr_sending *sending, enum rr_frame_kind kind, uint64_t op, uint32_t bytes, uint64_t serial)
{
	sending->frame = (struct rr_frame){.magic = RR_FRAME_MAGIC, .kind = (uint16_t)kind, .op = op, .bytes = bytes,
					   .serial = serial};
	sending->parts[0] = (struct iovec){.iov_base = &sending->frame, .iov_len = sizeof(sending->frame)};
	sending->part = 0;
	sending->part_count = 1;
	sending->transfer = false;
}

static void note_taken(struct rr_stream_edge *edge, uint64_t number)
{
	edge->done[number % RR_DONE_MAX] = true;
	while (edge->done[edge->taken % RR_DONE_MAX]) {
		edge->done[edge->taken % RR_DONE_MAX] = false;
		edge->taken++;
	}
}

/* The front frame has moved on by `sent` bytes. True when all of it is taken. */
static bool advance(struct rr_sending *sending, size_t sent)
{
	while (sending->part < sending->part_count) {
		struct iovec *part = &sending->parts[sending->part];
		if (sent < part->iov_len) {
			part->iov_base = (char *)part->iov_base + sent;
			part->iov_len -= sent;
			return false;
		}
		sent -= part->iov_len;
		sending->part++;
	}
	return true;
}

static void push_stream(struct rr_stream_edge *edge, struct rr_stream *stream)
{
	while (stream->count && stream->socket >= 0 && !edge->lost_ns) {
		struct rr_sending *sending = &stream->queue[stream->first];
		ssize_t sent = edge->io->write(edge, stream, sending->parts + sending->part,
					       sending->part_count - sending->part);

		if (sent < 0) {
			if (sent != -EAGAIN)
				rr_stream_lose(edge, (int)-sent);
			return;
		}
		if (!advance(sending, (size_t)sent))
			continue;
		if (sending->transfer)
			note_taken(edge, sending->number);
		free(sending->own);
		sending->own = NULL;
		stream->first = (stream->first + 1) % RR_FRAMES_MAX;
		stream->count--;
	}
}

rr_status rr_stream_push(struct rr_link *link)
{
	struct rr_stream_edge *edge = rr_stream_edge_of(link);

	if (edge->streams[edge->stream_count - 1].socket < 0) { /* the last to be joined */
		rr_status status = rr_far_want(edge->far, edge->peer, edge->channel);
		if (status < 0)
			return status;
	}
	for (uint32_t s = 0; s < edge->stream_count; s++)
		push_stream(edge, &edge->streams[s]);
	return edge->lost_ns ? rr_stream_lost(edge) : RR_OK;
}

static rr_status post_body(struct rr_stream_edge *edge, enum rr_frame_kind kind, uint64_t op, uint64_t serial, const void *head,
			   uint32_t head_bytes, const void *rest, uint32_t rest_bytes)
{
	struct rr_stream *stream = &edge->streams[0];
	struct rr_sending *sending = next_sending(stream);

	if (!sending)
		return RR_AGAIN;
	set_frame(sending, kind, op, head_bytes + rest_bytes, serial);
	if (head_bytes + rest_bytes) {
		sending->own = malloc(head_bytes + rest_bytes);
		if (!sending->own)
			return rr_fail(RR_ERR_NO_MEMORY, "no memory for a message of %u bytes", head_bytes + rest_bytes);
		if (head_bytes)
			memcpy(sending->own, head, head_bytes);
		if (rest_bytes)
			memcpy(sending->own + head_bytes, rest, rest_bytes);
		sending->parts[1] = (struct iovec){.iov_base = sending->own, .iov_len = head_bytes + rest_bytes};
		sending->part_count = 2;
	}
	stream->count++;
	push_stream(edge, stream);
	return RR_OK;
}

rr_status rr_stream_open_post(struct rr_link *link, const struct rr_open *open, const struct rr_descriptor *descriptor)
{
	struct rr_open told;

	memset(&told, 0, sizeof(told));
	rr_note64(&told.op, rr_own64(&open->op));
	told.descriptor = open->descriptor;
	memcpy(told.place, open->place, sizeof(told.place));
	return post_body(rr_stream_edge_of(link), RR_FRAME_OPEN, rr_own64(&open->op), 0, &told, sizeof(told), descriptor,
			 sizeof(*descriptor));
}

rr_status rr_stream_tiny_post(struct rr_link *link, uint64_t tag, const void *payload, uint32_t bytes)
{
	return post_body(rr_stream_edge_of(link), RR_FRAME_TINY, 0, tag, payload, bytes, NULL, 0);
}

rr_status rr_stream_reserve(struct rr_link *link, const struct rr_transfer *transfer, void **place)
{
	struct rr_stream_edge *edge = rr_stream_edge_of(link);
	struct rr_stream *stream = &edge->streams[link->sent % edge->stream_count];
	struct rr_sending *sending = next_sending(stream);

	if (!sending) {
		push_stream(edge, stream);
		sending = next_sending(stream);
		if (!sending)
			return RR_AGAIN;
	}
	*place = NULL;
	if (transfer->piece_count)
		return RR_OK;
	/* In too many pieces to be gathered: the pass packs them. */
	if (!sending->staging.address && !rr_pin_room(&sending->staging, edge->slot_bytes))
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for a slice of %llu bytes", (unsigned long long)edge->slot_bytes);
	*place = sending->staging.address;
	return RR_OK;
}

void rr_stream_commit(struct rr_link *link, const struct rr_transfer *transfer)
{
	struct rr_stream_edge *edge = rr_stream_edge_of(link);
	struct rr_stream *stream = &edge->streams[link->sent % edge->stream_count];
	struct rr_sending *sending = next_sending(stream); /* there is one: it was reserved */

	set_frame(sending, RR_FRAME_DATA, transfer->op, transfer->bytes, link->sent);
	sending->frame.order = transfer->order;
	sending->frame.slice = transfer->slice;
	sending->frame.crc = transfer->crc;
	sending->frame.origin = transfer->origin;
	sending->frame.row_low = (uint32_t)transfer->row_bytes;
	sending->frame.row_high = (uint16_t)(transfer->row_bytes >> 32);
	sending->transfer = true;
	sending->number = link->sent;
	if (transfer->piece_count) {
		memcpy(sending->parts + 1, transfer->pieces, transfer->piece_count * sizeof(struct iovec));
		sending->part_count = 1 + transfer->piece_count;
	} else {
		sending->parts[1] = (struct iovec){.iov_base = sending->staging.address, .iov_len = transfer->bytes};
		sending->part_count = 2;
	}
	stream->count++;
	link->sent++;
	if (transfer->piece_count || link->held_end) /* who waits for one waits for all that come after it */
		link->held_end = link->sent;
	link->bytes += transfer->bytes;
	push_stream(edge, stream);
}

void rr_stream_abort(struct rr_link *link)
{
	(void)link; /* a reserve changes nothing until its commit */
}

uint64_t rr_stream_released(struct rr_link *link)
{
	struct rr_stream_edge *edge = rr_stream_edge_of(link);

	if (edge->taken < link->sent)
		rr_stream_push(link);
	return edge->taken;
}
