/* link_tcp.c - the life of a TCP edge; see tcp_edge.h. */
#include "link_tcp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "status.h"
#include "tcp_edge.h"

#define BLAME_NS (500 * RR_NS_PER_MS) /* in which the control connection tells of a death, if it was one */

void rr_tcp_lose(struct rr_tcp_edge *edge, int failed)
{
	if (edge->lost_ns)
		return;
	edge->lost_ns = rr_now_ns();
	edge->lost_errno = failed;
}

rr_status rr_tcp_lost(struct rr_tcp_edge *edge)
{
	char path[2 * RR_NET_TEXT_BYTES + 8];

	if (rr_now_ns() - edge->lost_ns < BLAME_NS)
		return RR_AGAIN;
	rr_far_path(edge->far, edge->peer, path, sizeof(path));
	rr_fail(RR_ERR_LINK, "a data connection to rank %d (%s) ended: %s", edge->peer, path,
		edge->lost_errno ? strerror(edge->lost_errno) : "closed by the peer");
	rr_error_here()->peer = edge->peer;
	strcpy(rr_error_here()->hint, "the ranks still see each other: does a firewall or a proxy between them end connections?");
	return RR_ERR_LINK;
}

static void stream_up(void *user, uint32_t stream, int socket)
{
	struct rr_tcp_edge *edge = user;

	if (stream >= edge->stream_count || edge->streams[stream].socket >= 0 || rr_far_sleep_on(edge->far, socket) < 0) {
		close(socket);
		return;
	}
	edge->streams[stream].socket = socket;
}

static const struct rr_edge_ops edge_ops = {.stream = stream_up};

static void close_end(struct rr_link *link)
{
	struct rr_tcp_edge *edge = rr_tcp_edge_of(link);

	if (--edge->ends)
		return;
	for (uint32_t s = 0; s < edge->stream_count; s++) {
		struct rr_stream *stream = &edge->streams[s];
		for (uint32_t i = 0; i < RR_FRAMES_MAX; i++) {
			free(stream->queue[i].own);
			free(stream->queue[i].staging);
		}
		if (stream->socket >= 0) {
			rr_far_sleep_off(edge->far, stream->socket);
			close(stream->socket);
		}
	}
	free(edge->bounce);
	free(edge->tiny[0]);
	free(edge->tiny[1]);
	free(edge);
}

static rr_status accept_open(struct rr_link *link, const struct rr_open *open)
{
	(void)link; /* nothing of the peer's is touched from here: bytes are pushed */
	(void)open;
	return RR_OK;
}

static void flush(struct rr_link *out)
{
	(void)out; /* the peer's kernel wakes it */
}

static void describe(struct rr_link *link, rr_link_facts *facts)
{
	struct rr_tcp_edge *edge = rr_tcp_edge_of(link);

	snprintf(facts->transport, sizeof(facts->transport), "tcp");
	snprintf(facts->ordinary, sizeof(facts->ordinary), "stream");
	rr_far_path(edge->far, edge->peer, facts->path, sizeof(facts->path));
	facts->streams = edge->stream_count;
}

static const struct rr_link_ops tcp_ops = {
	.transport = "tcp",
	.open_post = rr_tcp_open_post,
	.open_peek = rr_tcp_open_peek,
	.open_accept = accept_open,
	.reserve = rr_tcp_reserve,
	.commit = rr_tcp_commit,
	.abort = rr_tcp_abort,
	.released = rr_tcp_released,
	.peek = rr_tcp_peek,
	.release = rr_tcp_release,
	.flush = flush,
	.progress = rr_tcp_push,
	.tiny_post = rr_tcp_tiny_post,
	.tiny_peek = rr_tcp_tiny_peek,
	.describe = describe,
	.close = close_end,
};

rr_status rr_link_tcp_open(struct rr_far *far, int32_t peer, uint32_t streams, uint64_t slot_bytes,
			   struct rr_link **out, struct rr_link **in)
{
	struct rr_tcp_edge *edge;

	if (streams < 1 || streams > RR_FAR_STREAMS_MAX)
		return rr_fail(RR_ERR_ARGUMENT, "tcp_streams is %u: accepted are 1..%u sockets an edge", streams, RR_FAR_STREAMS_MAX);
	edge = calloc(1, sizeof(*edge));
	if (!edge)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for a link to rank %d", peer);
	edge->far = far;
	edge->peer = peer;
	edge->stream_count = streams;
	edge->slot_bytes = slot_bytes;
	edge->ends = 2;
	for (uint32_t s = 0; s < RR_FAR_STREAMS_MAX; s++)
		edge->streams[s].socket = -1;
	edge->out = (struct rr_tcp_link){.link = {.ops = &tcp_ops, .peer = peer, .kind = RR_LINK_STREAM}, .edge = edge};
	edge->in = (struct rr_tcp_link){.link = {.ops = &tcp_ops, .peer = peer, .kind = RR_LINK_STREAM}, .edge = edge};
	rr_far_serve(far, peer, &edge_ops, edge, streams);
	*out = &edge->out.link;
	*in = &edge->in.link;
	return RR_OK;
}
