/* stream_edge.c - see stream_edge.h. */
#include "stream_edge.h"

#include <stdlib.h>

#include "clock.h"
#include "status.h"

#define BLAME_NS (500 * RR_NS_PER_MS) /* in which the control connection tells of a death, if it was one */

void rr_stream_lose(struct rr_stream_edge *edge, int failed)
{
	if (edge->lost_ns)
		return;
	edge->lost_ns = rr_now_ns();
	edge->lost_errno = failed;
}

rr_status rr_stream_lost(struct rr_stream_edge *edge)
{
	if (!edge->at_once && rr_now_ns() - edge->lost_ns < BLAME_NS)
		return RR_AGAIN;
	return edge->io->lost(edge);
}

static rr_status accept_open(struct rr_link *link, const struct rr_open *open)
{
	(void)link; /* nothing of the peer's is touched from here: bytes are pushed */
	(void)open;
	return RR_OK;
}

static void flush(struct rr_link *out)
{
	(void)out; /* the stream wakes the peer */
}

/* Frames that no stream has taken: what the peer has not acknowledged shows only in a socket. */
static uint64_t queued(struct rr_link *out)
{
	const struct rr_stream_edge *edge = rr_stream_edge_of(out);
	uint64_t frames = 0;

	for (uint32_t s = 0; s < edge->stream_count; s++)
		frames += edge->streams[s].count;
	return frames;
}

static const struct rr_link_ops stream_ops = {
	.open_post = rr_stream_open_post,
	.open_peek = rr_stream_open_peek,
	.open_accept = accept_open,
	.reserve = rr_stream_reserve,
	.commit = rr_stream_commit,
	.abort = rr_stream_abort,
	.released = rr_stream_released,
	.peek = rr_stream_peek,
	.release = rr_stream_release,
	.flush = flush,
	.outstanding = queued,
	.progress = rr_stream_push,
	.tiny_post = rr_stream_tiny_post,
	.tiny_peek = rr_stream_tiny_peek,
};

rr_status rr_stream_edge_init(struct rr_stream_edge *edge, struct rr_far *far, int32_t peer, uint32_t streams,
			      uint64_t slot_bytes, const struct rr_stream_io *io, const struct rr_link_ops *ops)
{
	edge->streams = calloc(streams, sizeof(*edge->streams));
	if (!edge->streams)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for a link to rank %d", peer);
	edge->ops = stream_ops;
	edge->ops.transport = ops->transport;
	edge->ops.describe = ops->describe;
	if (ops->outstanding)
		edge->ops.outstanding = ops->outstanding;
	edge->ops.close = ops->close;
	if (ops->progress)
		edge->ops.progress = ops->progress;
	edge->io = io;
	edge->far = far;
	edge->peer = peer;
	edge->stream_count = streams;
	edge->slot_bytes = slot_bytes;
	edge->ends = 2;
	for (uint32_t s = 0; s < streams; s++)
		edge->streams[s].socket = -1;
	edge->out = (struct rr_stream_link){.link = {.ops = &edge->ops, .peer = peer, .kind = RR_LINK_STREAM}, .edge = edge};
	edge->in = (struct rr_stream_link){.link = {.ops = &edge->ops, .peer = peer, .kind = RR_LINK_STREAM}, .edge = edge};
	return RR_OK;
}

void rr_stream_edge_clear(struct rr_stream_edge *edge)
{
	for (uint32_t s = 0; s < edge->stream_count; s++) {
		for (uint32_t i = 0; i < RR_FRAMES_MAX; i++) {
			free(edge->streams[s].queue[i].own);
			rr_pin_drop(&edge->streams[s].queue[i].staging);
		}
	}
	free(edge->streams);
	rr_pin_drop(&edge->bounce);
	free(edge->tiny[0]);
	free(edge->tiny[1]);
}
