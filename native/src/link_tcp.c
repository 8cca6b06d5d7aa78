/* link_tcp.c - an edge whose streams are TCP connections; see stream_edge.h. */
#define _GNU_SOURCE
#include "link_tcp.h"

#include <errno.h>
#include <stdio.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "forked.h"
#include "status.h"
#include "stream_edge.h"

static ssize_t write_stream(struct rr_stream_edge *edge, struct rr_stream *stream, const struct iovec *parts, uint32_t count)
{
	struct msghdr message = {.msg_iov = (struct iovec *)parts, .msg_iovlen = count};
	ssize_t sent;

	(void)edge;
	do
		sent = sendmsg(stream->socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	return sent < 0 ? -errno : sent;
}

static ssize_t read_stream(struct rr_stream_edge *edge, struct rr_stream *stream, const struct iovec parts[2])
{
	uint32_t skip = parts[0].iov_len == 0;
	struct msghdr message = {.msg_iov = (struct iovec *)parts + skip, .msg_iovlen = 2 - skip};
	ssize_t got;

	(void)edge;
	do
		got = recvmsg(stream->socket, &message, MSG_DONTWAIT);
	while (got < 0 && errno == EINTR);
	return got < 0 ? -errno : got;
}

static rr_status lost(struct rr_stream_edge *edge)
{
	char path[2 * RR_NET_TEXT_BYTES + 8];

	rr_far_path(edge->far, edge->peer, path, sizeof(path));
	rr_fail(RR_ERR_LINK, "a data connection to rank %d (%s) ended: %s", edge->peer, path,
		edge->lost_errno ? strerror(edge->lost_errno) : "closed by the peer");
	rr_error_here()->peer = edge->peer;
	strcpy(rr_error_here()->hint, "the ranks still see each other: does a firewall or a proxy between them end connections?");
	return RR_ERR_LINK;
}

static const struct rr_stream_io tcp_io = {.write = write_stream, .read = read_stream, .lost = lost};

static void stream_up(void *user, uint32_t stream, int socket)
{
	struct rr_stream_edge *edge = user;

	if (stream >= edge->stream_count || edge->streams[stream].socket >= 0 || rr_far_sleep_on(edge->far, socket) < 0) {
		rr_own_close(socket);
		return;
	}
	edge->streams[stream].socket = socket;
}

static const struct rr_edge_ops edge_ops = {.stream = stream_up};

static void close_end(struct rr_link *link)
{
	struct rr_stream_edge *edge = rr_stream_edge_of(link);

	if (--edge->ends)
		return;
	for (uint32_t s = 0; s < edge->stream_count; s++) {
		struct rr_stream *stream = &edge->streams[s];
		if (stream->socket >= 0) {
			rr_far_sleep_off(edge->far, stream->socket);
			rr_own_close(stream->socket);
		}
	}
	rr_stream_edge_clear(edge);
	free(edge);
}

static void describe(struct rr_link *link, rr_link_facts *facts)
{
	struct rr_stream_edge *edge = rr_stream_edge_of(link);

	snprintf(facts->transport, sizeof(facts->transport), "tcp");
	snprintf(facts->ordinary, sizeof(facts->ordinary), "stream");
	rr_far_path(edge->far, edge->peer, facts->path, sizeof(facts->path));
	facts->streams = edge->stream_count;
}

static uint64_t outstanding(struct rr_link *out)
{
	const struct rr_stream_edge *edge = rr_stream_edge_of(out);
	uint64_t bytes = 0;

	for (uint32_t s = 0; s < edge->stream_count; s++) {
		int held = 0;
		bytes += edge->streams[s].count; /* frames: not in the socket yet */
		if (edge->streams[s].socket >= 0 && ioctl(edge->streams[s].socket, SIOCOUTQ, &held) == 0 && held > 0)
			bytes += (uint64_t)held;
	}
	return bytes;
}

static const struct rr_link_ops tcp_ops = {.transport = "tcp", .outstanding = outstanding, .describe = describe, .close = close_end};

rr_status rr_link_tcp_open(struct rr_far *far, int32_t peer, uint32_t streams, uint64_t slot_bytes, bool late,
			   struct rr_link **out, struct rr_link **in)
{
	struct rr_stream_edge *edge;

	if (streams < 1 || streams > RR_FAR_STREAMS_MAX)
		return rr_fail(RR_ERR_ARGUMENT, "tcp_streams is %u: accepted are 1..%u sockets an edge", streams, RR_FAR_STREAMS_MAX);
	edge = calloc(1, sizeof(*edge));
	if (!edge)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for a link to rank %d", peer);
	rr_status status = rr_stream_edge_init(edge, far, peer, streams, slot_bytes, &tcp_io, &tcp_ops);
	if (status < 0) {
		free(edge);
		return status;
	}
	edge->channel = rr_far_serve(far, peer, &edge_ops, edge, streams, late);
	*out = &edge->out.link;
	*in = &edge->in.link;
	return RR_OK;
}
