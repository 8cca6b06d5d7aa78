/*
 * stream_receive.c - the receiving end of an edge of streams.
 *
 * Nothing is read before the engine asks for it, so a payload goes straight to where it lands; what is
 * not asked for yet waits in the kernel, whose window is the sender's credit.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "status.h"
#include "stream_edge.h"

/*
 * Go on with the frame at the front of a stream: its head, and `bytes` of payload, which are read in one call where
 * the stream can. RR_OK: all is there, or a head that tells of another length; its payload then waits.
 */
static rr_status go_on(struct rr_stream_edge *edge, struct rr_stream *stream, void *body, uint32_t bytes)
{
	while (stream->head_got < sizeof(stream->frame) || stream->body_got < bytes) {
		const struct iovec parts[2] = {
			{.iov_base = (char *)&stream->frame + stream->head_got, .iov_len = sizeof(stream->frame) - stream->head_got},
			{.iov_base = body ? (char *)body + stream->body_got : NULL, .iov_len = bytes - stream->body_got},
		};
		if (!parts[0].iov_len && stream->frame.bytes != bytes)
			return RR_OK;
		ssize_t got = stream->socket < 0 ? -EAGAIN : edge->io->read(edge, stream, parts);

		if (got == -EAGAIN)
			return RR_AGAIN;
		if (got <= 0) {
			rr_stream_lose(edge, (int)-got);
			return rr_stream_lost(edge);
		}
		size_t in_head = (size_t)got < parts[0].iov_len ? (size_t)got : parts[0].iov_len;
		stream->head_got += (uint32_t)in_head;
		stream->body_got += (uint32_t)((size_t)got - in_head);
	}
	return RR_OK;
}

/* The head of the next frame, and nothing of its payload. */
static rr_status read_head(struct rr_stream_edge *edge, struct rr_stream *stream)
{
	rr_status status = stream->head_got < sizeof(stream->frame) ? go_on(edge, stream, NULL, 0) : RR_OK;

	if (status == RR_OK && stream->frame.magic != RR_FRAME_MAGIC)
		return rr_fail(RR_ERR_PROTOCOL, "rank %d sent what is no frame (magic %08x): is another version at the other end?",
			       edge->peer, stream->frame.magic);
	return status;
}

static void frame_done(struct rr_stream *stream)
{
	stream->head_got = 0;
	stream->body_got = 0;
}

rr_status rr_stream_open_peek(struct rr_link *link, uint64_t op, const struct rr_open **open)
{
	struct rr_stream_edge *edge = rr_stream_edge_of(link);
	struct rr_stream *stream = &edge->streams[0];

	if (edge->open_op != op) {
		rr_status status = edge->lost_ns ? rr_stream_lost(edge) : read_head(edge, stream);
		if (status != RR_OK)
			return status;
		if (stream->frame.kind != RR_FRAME_OPEN)
			return RR_AGAIN; /* it is in a tiny operation: the watch compares what both are in */
		if (stream->frame.bytes != RR_OPEN_BODY_BYTES)
			return rr_fail(RR_ERR_PROTOCOL, "rank %d sent an OPEN of %u bytes", edge->peer, stream->frame.bytes);
		status = go_on(edge, stream, &edge->open, stream->frame.bytes);
		if (status != RR_OK)
			return status;
		frame_done(stream);
		edge->open_op = edge->open.open.op;
		rr_far_told(edge->far, edge->peer, edge->open_op, &edge->open.descriptor);
		if (edge->open_op != op)
			return rr_fail(RR_ERR_PROTOCOL, "rank %d opened op %llu, expected was op %llu", edge->peer,
				       (unsigned long long)edge->open_op, (unsigned long long)op);
	}
	*open = &edge->open.open;
	return RR_OK;
}

/* 48 bits of rr_transfer's row_bytes travel. */
static uint64_t row_of(const struct rr_frame *frame)
{
	return (uint64_t)frame->row_high << 32 | frame->row_low;
}

static rr_status wrong_frame(const struct rr_stream_edge *edge, const struct rr_frame *frame,
			     const struct rr_transfer *transfer, uint64_t number)
{
	if (frame->magic == RR_FRAME_MAGIC && frame->kind == RR_FRAME_DATA && frame->op == transfer->op &&
	    frame->order == transfer->order && transfer->row_bytes && row_of(frame) != (transfer->row_bytes & RR_ROW_MASK))
		return rr_link_row_differs(&edge->in.link, row_of(frame), transfer->row_bytes);
	return rr_fail(RR_ERR_PROTOCOL,
		       "rank %d sent transfer %llu (kind %u): op %llu row %u slice %u of %u bytes, expected was transfer %llu: op %llu row %u slice %u of %u bytes",
		       edge->peer, (unsigned long long)frame->serial, frame->kind, (unsigned long long)frame->op, frame->order,
		       frame->slice, frame->bytes, (unsigned long long)number, (unsigned long long)transfer->op, transfer->order,
		       transfer->slice, transfer->bytes);
}

rr_status rr_stream_peek(struct rr_link *link, const struct rr_transfer *transfer, const void **data)
{
	struct rr_stream_edge *edge = rr_stream_edge_of(link);
	struct rr_stream *stream = &edge->streams[link->sent % edge->stream_count];
	const struct rr_frame *frame = &stream->frame;
	void *to = transfer->landing;

	if (!to) {
		if (!edge->bounce.address && !rr_pin_room(&edge->bounce, edge->slot_bytes))
			return rr_fail(RR_ERR_NO_MEMORY, "no memory for a slice of %llu bytes", (unsigned long long)edge->slot_bytes);
		to = edge->bounce.address;
	}
	rr_status status = go_on(edge, stream, to, transfer->bytes);
	if (stream->head_got == sizeof(*frame) &&
	    (frame->magic != RR_FRAME_MAGIC || frame->kind != RR_FRAME_DATA || frame->op != transfer->op ||
	     frame->order != transfer->order || frame->slice != transfer->slice || frame->bytes != transfer->bytes ||
	     frame->serial != link->sent || (transfer->row_bytes && row_of(frame) != (transfer->row_bytes & RR_ROW_MASK))))
		return wrong_frame(edge, frame, transfer, link->sent);
	link->crc = frame->crc;
	link->origin = frame->origin;
	*data = to;
	return status;
}

void rr_stream_release(struct rr_link *link, uint32_t bytes)
{
	struct rr_stream_edge *edge = rr_stream_edge_of(link);

	frame_done(&edge->streams[link->sent % edge->stream_count]);
	link->sent++;
	link->bytes += bytes;
}

rr_status rr_stream_tiny_peek(struct rr_link *link, uint32_t serial, uint64_t *tag, const void **payload, uint32_t *bytes)
{
	struct rr_stream_edge *edge = rr_stream_edge_of(link);
	struct rr_stream *stream = &edge->streams[0];
	uint8_t **room = &edge->tiny[serial & 1];

	if (edge->tiny_serial != serial || !edge->tiny_there) {
		rr_status status = edge->lost_ns ? rr_stream_lost(edge) : read_head(edge, stream);
		if (status != RR_OK)
			return status;
		if (stream->frame.kind != RR_FRAME_TINY)
			return RR_AGAIN; /* it is in an operation with rows: the watch compares what both are in */
		if (stream->frame.bytes > RR_MAILBOX_BYTES)
			return rr_fail(RR_ERR_PROTOCOL, "rank %d sent a tiny message of %u bytes", edge->peer, stream->frame.bytes);
		if (!*room)
			*room = malloc(RR_MAILBOX_BYTES);
		if (!*room)
			return rr_fail(RR_ERR_NO_MEMORY, "no memory for a tiny message");
		status = go_on(edge, stream, *room, stream->frame.bytes);
		if (status != RR_OK)
			return status;
		frame_done(stream);
		edge->tiny_tag = stream->frame.serial;
		edge->tiny_bytes = stream->frame.bytes;
		edge->tiny_serial = serial;
		edge->tiny_there = true;
	}
	*tag = edge->tiny_tag;
	*payload = *room;
	*bytes = edge->tiny_bytes;
	return RR_OK;
}
