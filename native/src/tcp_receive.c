/*
 * tcp_receive.c - the receiving end of a TCP edge.
 *
 * Nothing is read before the engine asks for it, so a payload goes straight to where it lands; what is
 * not asked for yet waits in the kernel, whose window is the sender's credit.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "status.h"
#include "tcp_edge.h"

/*
 * Go on with the frame at the front of a socket: its head, and as much of `bytes` of payload as belongs to
 * it, read in one call where the expectation is right. RR_OK: all is there. A head that differs from the expectation
 * leaves its payload in the kernel: RR_AGAIN with head_got == sizeof(frame).
 */
static rr_status go_on(struct rr_tcp_edge *edge, struct rr_stream *stream, void *body, uint32_t bytes)
{
	while (stream->head_got < sizeof(stream->frame) || stream->body_got < bytes) {
		struct iovec parts[2] = {
			{.iov_base = (char *)&stream->frame + stream->head_got, .iov_len = sizeof(stream->frame) - stream->head_got},
			{.iov_base = (char *)body + stream->body_got, .iov_len = bytes - stream->body_got},
		};
		bool head = stream->head_got < sizeof(stream->frame);
		struct msghdr message = {.msg_iov = head ? parts : parts + 1, .msg_iovlen = head ? 2 : 1};
		ssize_t got = stream->socket < 0 ? -1 : recvmsg(stream->socket, &message, MSG_DONTWAIT);

		if (stream->socket < 0)
			return RR_AGAIN;
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0) {
			if (got < 0 && errno == EAGAIN)
				return RR_AGAIN;
			rr_tcp_lose(edge, got < 0 ? errno : 0);
			return rr_tcp_lost(edge);
		}
		size_t in_head = head ? parts[0].iov_len : 0;
		in_head = (size_t)got < in_head ? (size_t)got : in_head;
		stream->head_got += (uint32_t)in_head;
		stream->body_got += (uint32_t)((size_t)got - in_head);
	}
	return RR_OK;
}

/* The head of the next frame, and nothing of its payload. */
static rr_status read_head(struct rr_tcp_edge *edge, struct rr_stream *stream)
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

rr_status rr_tcp_open_peek(struct rr_link *link, uint64_t op, const struct rr_open **open)
{
	struct rr_tcp_edge *edge = rr_tcp_edge_of(link);
	struct rr_stream *stream = &edge->streams[0];

	if (edge->open_op != op) {
		rr_status status = edge->lost_ns ? rr_tcp_lost(edge) : read_head(edge, stream);
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

static rr_status wrong_frame(const struct rr_tcp_edge *edge, const struct rr_frame *frame,
			     const struct rr_transfer *transfer, uint64_t number)
{
	return rr_fail(RR_ERR_PROTOCOL,
		       "rank %d sent transfer %llu (kind %u): op %llu row %u slice %u of %u bytes, expected was transfer %llu: op %llu row %u slice %u of %u bytes",
		       edge->peer, (unsigned long long)frame->serial, frame->kind, (unsigned long long)frame->op, frame->order,
		       frame->slice, frame->bytes, (unsigned long long)number, (unsigned long long)transfer->op, transfer->order,
		       transfer->slice, transfer->bytes);
}

rr_status rr_tcp_peek(struct rr_link *link, const struct rr_transfer *transfer, const void **data)
{
	struct rr_tcp_edge *edge = rr_tcp_edge_of(link);
	struct rr_stream *stream = &edge->streams[link->sent % edge->stream_count];
	const struct rr_frame *frame = &stream->frame;
	void *to = transfer->landing;

	if (!to) {
		if (!edge->bounce && posix_memalign((void **)&edge->bounce, 4096, edge->slot_bytes) != 0)
			return rr_fail(RR_ERR_NO_MEMORY, "no memory for a slice of %llu bytes", (unsigned long long)edge->slot_bytes);
		to = edge->bounce;
	}
	rr_status status = go_on(edge, stream, to, transfer->bytes);
	if (stream->head_got == sizeof(*frame) &&
	    (frame->magic != RR_FRAME_MAGIC || frame->kind != RR_FRAME_DATA || frame->op != transfer->op ||
	     frame->order != transfer->order || frame->slice != transfer->slice || frame->bytes != transfer->bytes ||
	     frame->serial != link->sent))
		return wrong_frame(edge, frame, transfer, link->sent);
	*data = to;
	return status;
}

void rr_tcp_release(struct rr_link *link, uint32_t bytes)
{
	struct rr_tcp_edge *edge = rr_tcp_edge_of(link);

	frame_done(&edge->streams[link->sent % edge->stream_count]);
	link->sent++;
	link->bytes += bytes;
}

rr_status rr_tcp_tiny_peek(struct rr_link *link, uint32_t serial, uint64_t *tag, const void **payload, uint32_t *bytes)
{
	struct rr_tcp_edge *edge = rr_tcp_edge_of(link);
	struct rr_stream *stream = &edge->streams[0];
	uint8_t **room = &edge->tiny[serial & 1];

	if (edge->tiny_serial != serial || !edge->tiny_there) {
		rr_status status = edge->lost_ns ? rr_tcp_lost(edge) : read_head(edge, stream);
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
