/*
 * link_message.c - an edge whose one stream is carried by a transport that is not ours.
 *
 * Frames, OPENs and tiny messages are stream_edge.h's; here is only how their bytes get across. Whatever the
 * transport returns is checked.
 */
#include "link_message.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "clock.h"
#include "forked.h"
#include "status.h"
#include "stream_edge.h"

_Static_assert(RR_MESSAGE_HEAD_BYTES == sizeof(struct rr_frame), "the public header tells a frame's size");
_Static_assert(offsetof(struct rr_frame, bytes) == 24, "and where its length is");
_Static_assert(RR_MESSAGE_PIECES_MAX == 1 + RR_PIECES_MAX, "and into how many pieces it may be cut");

struct message_edge {
	struct rr_stream_edge edge; /* first: callbacks cast */
	const rr_message_transport *transport;
	rr_message_edge told;
	char why[RR_MESSAGE_WHY_BYTES];
	void *state;
	bool opened;
	int timer;             /* -1 until the transport asks for one */
	const char *failed_in; /* name of the function */
	int64_t failed;        /* what it returned */
};

static struct message_edge *message_edge_of(struct rr_link *link)
{
	return (struct message_edge *)rr_stream_edge_of(link);
}

/* Whatever it returned that is no success. */
static ssize_t fail(struct message_edge *self, const char *function, int64_t returned)
{
	self->failed_in = function;
	self->failed = returned;
	self->why[sizeof(self->why) - 1] = 0;
	self->edge.at_once = returned != RR_MESSAGE_ENDED;
	rr_stream_lose(&self->edge, EPROTO);
	return -EPROTO;
}

static rr_status lost(struct rr_stream_edge *edge)
{
	struct message_edge *self = (struct message_edge *)edge;
	char returned[48];

	snprintf(returned, sizeof(returned), "it returned %" PRId64 " and gave no reason", self->failed);
	rr_fail(RR_ERR_LINK, "the edge to rank %d by the transport %s %s in %s(): %s", edge->peer, self->transport->name,
		self->failed == RR_MESSAGE_ENDED ? "ended" : "failed", self->failed_in, self->why[0] ? self->why : returned);
	rr_error_here()->peer = edge->peer;
	strcpy(rr_error_here()->hint, "these are the words of that transport, which is not one of rdmaring's own");
	return RR_ERR_LINK;
}

static ssize_t write_message(struct rr_stream_edge *edge, struct rr_stream *stream, const struct iovec *parts, uint32_t count)
{
	struct message_edge *self = (struct message_edge *)edge;
	rr_piece pieces[RR_MESSAGE_PIECES_MAX];
	uint32_t used = 0;
	uint64_t bytes = 0;

	(void)stream;
	for (uint32_t i = 0; i < count; i++) {
		if (!parts[i].iov_len)
			continue;
		pieces[used++] = (rr_piece){.address = parts[i].iov_base, .bytes = parts[i].iov_len};
		bytes += parts[i].iov_len;
	}
	if (!used)
		return 0;
	int64_t taken = self->transport->send(self->state, pieces, used);
	if (taken < 0 || (uint64_t)taken > bytes)
		return fail(self, "send", taken);
	return taken ? (ssize_t)taken : -EAGAIN;
}

/* The head alone, then the body alone: the transport is never asked beyond a message's end. */
static ssize_t read_message(struct rr_stream_edge *edge, struct rr_stream *stream, const struct iovec parts[2])
{
	struct message_edge *self = (struct message_edge *)edge;
	const struct iovec *part = parts[0].iov_len ? &parts[0] : &parts[1];
	int64_t got = self->transport->receive(self->state, part->iov_base, part->iov_len);

	(void)stream;
	if (got < 0 || (uint64_t)got > part->iov_len)
		return fail(self, "receive", got);
	return got ? (ssize_t)got : -EAGAIN;
}

static const struct rr_stream_io message_io = {.write = write_message, .read = read_message, .lost = lost};

/* Let a rank that sleeps wake when the transport wants to be called. */
static rr_status set_timer(struct message_edge *self, uint64_t in_ns)
{
	struct itimerspec when = {.it_value = {.tv_sec = (time_t)(in_ns / RR_NS_PER_S), .tv_nsec = (long)(in_ns % RR_NS_PER_S)}};

	if (self->timer < 0) {
		self->timer = RR_OWN(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
		if (self->timer < 0)
			return rr_fail(RR_ERR_SYSTEM, "timerfd_create: %s", strerror(errno));
		rr_status status = rr_far_sleep_on(self->edge.far, self->timer);
		if (status < 0)
			return status;
	}
	if (!in_ns)
		when.it_value.tv_nsec = 1; /* 0 would stop it */
	if (timerfd_settime(self->timer, 0, &when, NULL) != 0)
		return rr_fail(RR_ERR_SYSTEM, "timerfd_settime: %s", strerror(errno));
	return RR_OK;
}

static rr_status progress(struct rr_link *link)
{
	struct message_edge *self = message_edge_of(link);
	const rr_message_transport *transport = self->transport;
	rr_status status = RR_OK;

	if (link == &self->edge.in.link) /* once a pass is enough */
		return self->edge.lost_ns ? rr_stream_lost(&self->edge) : RR_OK;
	if (self->opened && !self->edge.lost_ns && transport->progress) {
		int32_t returned = transport->progress(self->state);
		if (returned < 0)
			fail(self, "progress", returned);
	}
	status = rr_stream_push(link);
	if (status == RR_OK && self->opened && !self->edge.lost_ns && transport->due_ns) {
		uint64_t in_ns = transport->due_ns(self->state);
		if (in_ns != UINT64_MAX)
			status = set_timer(self, in_ns < RR_NS_PER_S ? in_ns : RR_NS_PER_S);
	}
	return status;
}

static void stream_up(void *user, uint32_t stream, int socket)
{
	struct message_edge *self = user;

	if (stream != 0 || self->opened || self->edge.lost_ns) { /* an edge joins once */
		rr_own_close(socket);
		return;
	}
	self->told.socket = self->told.news = socket;
	self->told.why = self->why;
	int32_t returned = self->transport->open(self->transport->user, &self->told, &self->state);
	if (returned < 0) {
		rr_own_give(socket); /* it may be closed, or kept: the transport's word */
		fail(self, "open", returned);
		return;
	}
	self->opened = true;
	self->edge.streams[0].socket = socket; /* it may be used */
	if (self->told.news >= 0 && rr_far_sleep_on(self->edge.far, self->told.news) < 0) {
		snprintf(self->why, sizeof(self->why), "descriptor %d, on which it wants to sleep: %.200s", self->told.news,
			 rr_error_here()->message);
		fail(self, "open", RR_MESSAGE_FAILED);
	}
}

static const struct rr_edge_ops edge_ops = {.stream = stream_up};

static void close_end(struct rr_link *link)
{
	struct message_edge *self = message_edge_of(link);

	if (--self->edge.ends)
		return;
	if (self->timer >= 0) {
		rr_far_sleep_off(self->edge.far, self->timer);
		rr_own_close(self->timer);
	}
	if (self->opened) {
		if (self->told.news >= 0)
			rr_far_sleep_off(self->edge.far, self->told.news);
		rr_own_give(self->edge.streams[0].socket);
		self->transport->close(self->state);
	}
	rr_stream_edge_clear(&self->edge);
	free(self);
}

static void describe(struct rr_link *link, rr_link_facts *facts)
{
	struct message_edge *self = message_edge_of(link);

	snprintf(facts->transport, sizeof(facts->transport), "%.15s", self->transport->name);
	snprintf(facts->ordinary, sizeof(facts->ordinary), "stream");
	rr_far_path(self->edge.far, self->edge.peer, facts->path, sizeof(facts->path));
	facts->streams = 1;
}

rr_status rr_link_message_open(struct rr_far *far, const rr_message_transport *transport, int32_t rank, int32_t world,
			       int32_t peer, uint64_t body_bytes_max, bool late, struct rr_link **out, struct rr_link **in)
{
	const struct rr_link_ops ops = {.transport = transport->name, .progress = progress, .describe = describe,
					.close = close_end};
	struct message_edge *self = calloc(1, sizeof(*self));

	if (!self)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for a link to rank %d", peer);
	rr_status status = rr_stream_edge_init(&self->edge, far, peer, 1, body_bytes_max, &message_io, &ops);
	if (status < 0) {
		free(self);
		return status;
	}
	self->transport = transport;
	self->timer = -1;
	self->told = (rr_message_edge){.rank = rank, .peer = peer, .world = world, .socket = -1, .news = -1,
				       .body_bytes_max = body_bytes_max};
	self->edge.channel = rr_far_serve(far, peer, &edge_ops, self, 1, late);
	self->told.channel = self->edge.channel;
	*out = &self->edge.out.link;
	*in = &self->edge.in.link;
	return RR_OK;
}
