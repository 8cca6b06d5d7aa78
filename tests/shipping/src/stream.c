/*
 * stream.c - the stream edge (stream_edge.h) over pipes of this process. A write or a read moves as many bytes as the seed
 * draws, from one on, or none; what was written comes later, in its order.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "far.h"
#include "shipping.h"
#include "status.h"
#include "stream_edge.h"

#define PARCELS_MAX 64u /* written and not all there yet */
#define AGAIN_ODDS 6u   /* one of so many calls finds nothing, where calls are held at all */

struct parcel { /* bytes up to `end`, counted since the beginning, are there from then on */
	uint64_t end, arrives_ns;
};

struct pipe { /* one direction of one stream; counts are since the beginning */
	uint8_t *bytes;
	uint64_t room;
	uint64_t written, arrived, read;
	struct parcel parcels[PARCELS_MAX];
	uint64_t first, next;
	uint64_t last_arrival_ns;
	uint64_t held_until_ns[2]; /* the writer, the reader */
};

struct end {
	struct rr_stream_edge edge; /* first: the core knows no more */
	struct shipping *world;
	struct pipe *out, *in; /* [streams] */
};

struct pair { /* both ends of an edge of one channel */
	struct pair *next;
	struct end ends[2]; /* of the lower rank, of the higher */
	struct pipe pipes[2][RR_FAR_STREAMS_MAX]; /* to the higher, to the lower */
};

struct streams {
	struct shipping_far *far;
	struct pair *pairs;
};

static struct end *end_of(struct rr_stream_edge *edge)
{
	return (struct end *)edge;
}

/* A call that moves nothing: it is asked again when the time has come. */
static bool held(struct shipping *world, struct pipe *pipe, int reads)
{
	struct rr_sim *sim = world->sim;

	if (!rr_sim_due(sim, pipe->held_until_ns[reads]))
		return true;
	if (!world->spec.hold || rr_sim_random(sim, AGAIN_ODDS))
		return false;
	pipe->held_until_ns[reads] = sim->now_ns + 1 + rr_sim_random(sim, sim->spec.jitter_ns + 100);
	return !rr_sim_due(sim, pipe->held_until_ns[reads]);
}

/* All that could move, or a part of it. */
static uint64_t some(struct rr_sim *sim, uint64_t bytes)
{
	return bytes > 1 && rr_sim_random(sim, 2) ? 1 + rr_sim_random(sim, bytes) : bytes;
}

static void move(struct pipe *pipe, uint64_t at, void *memory, uint64_t bytes, bool in)
{
	for (uint64_t done = 0; done < bytes;) {
		uint64_t place = (at + done) % pipe->room, run = pipe->room - place;
		run = run < bytes - done ? run : bytes - done;
		if (in)
			memcpy(pipe->bytes + place, (char *)memory + done, run);
		else
			memcpy((char *)memory + done, pipe->bytes + place, run);
		done += run;
	}
}

static ssize_t write_pipe(struct rr_stream_edge *edge, struct rr_stream *stream, const struct iovec *parts, uint32_t count)
{
	struct end *end = end_of(edge);
	struct rr_sim *sim = end->world->sim;
	struct pipe *pipe = &end->out[stream->socket];
	uint64_t all = 0, left = pipe->room - (pipe->written - pipe->read), done = 0;
	uint64_t arrives_ns = sim->now_ns + sim->spec.latency_ns + rr_sim_random(sim, sim->spec.jitter_ns + 1);

	for (uint32_t i = 0; i < count; i++)
		all += parts[i].iov_len;
	if (!left || pipe->next - pipe->first == PARCELS_MAX || held(end->world, pipe, 0))
		return -EAGAIN;
	all = some(sim, all < left ? all : left);
	for (uint32_t i = 0; i < count && done < all; i++) {
		uint64_t run = parts[i].iov_len < all - done ? parts[i].iov_len : all - done;
		move(pipe, pipe->written, parts[i].iov_base, run, true);
		pipe->written += run;
		done += run;
	}
	pipe->last_arrival_ns = arrives_ns > pipe->last_arrival_ns ? arrives_ns : pipe->last_arrival_ns;
	pipe->parcels[pipe->next++ % PARCELS_MAX] = (struct parcel){pipe->written, pipe->last_arrival_ns};
	sim->moved = true;
	return (ssize_t)all;
}

static ssize_t read_pipe(struct rr_stream_edge *edge, struct rr_stream *stream, const struct iovec parts[2])
{
	struct end *end = end_of(edge);
	struct rr_sim *sim = end->world->sim;
	struct pipe *pipe = &end->in[stream->socket];
	uint64_t wanted = parts[0].iov_len + parts[1].iov_len, done = 0;

	for (; pipe->first < pipe->next && rr_sim_due(sim, pipe->parcels[pipe->first % PARCELS_MAX].arrives_ns); pipe->first++)
		pipe->arrived = pipe->parcels[pipe->first % PARCELS_MAX].end;
	if (pipe->arrived == pipe->read || held(end->world, pipe, 1))
		return -EAGAIN;
	wanted = some(sim, wanted < pipe->arrived - pipe->read ? wanted : pipe->arrived - pipe->read);
	for (uint32_t i = 0; i < 2 && done < wanted; i++) {
		uint64_t run = parts[i].iov_len < wanted - done ? parts[i].iov_len : wanted - done;
		move(pipe, pipe->read, parts[i].iov_base, run, false);
		pipe->read += run;
		done += run;
	}
	sim->moved = true;
	return (ssize_t)wanted;
}

static rr_status lost(struct rr_stream_edge *edge)
{
	return rr_fail(RR_ERR_LINK, "a pipe to rank %d ended", edge->peer);
}

static void close_end(struct rr_link *link)
{
	struct rr_stream_edge *edge = rr_stream_edge_of(link);

	if (--edge->ends == 0)
		rr_stream_edge_clear(edge);
}

static const struct rr_stream_io pipe_io = {.write = write_pipe, .read = read_pipe, .lost = lost};
static const struct rr_link_ops pipe_ops = {.transport = "stream", .close = close_end};

static rr_status open_end(struct shipping *world, struct pair *pair, int which, int32_t r, int32_t peer, uint32_t channel)
{
	struct streams *streams = world->state;
	struct end *end = &pair->ends[which];
	struct rr_engine *engine = &world->sim->engines[r];
	uint32_t link = channel * (uint32_t)world->sim->world + (uint32_t)peer;
	rr_status status = rr_stream_edge_init(&end->edge, shipping_far_of(streams->far, r), peer, world->spec.streams,
					       world->sim->spec.slot_bytes, &pipe_io, &pipe_ops);

	if (status != RR_OK)
		return status;
	end->world = world;
	end->out = pair->pipes[which];
	end->in = pair->pipes[1 - which];
	for (uint32_t s = 0; s < world->spec.streams; s++)
		end->edge.streams[s].socket = (int)s;
	engine->out[link] = &end->edge.out.link;
	engine->in[link] = &end->edge.in.link;
	return RR_OK;
}

static rr_status open_pair(struct shipping *world, int32_t lower, int32_t higher, uint32_t channel)
{
	struct streams *streams = world->state;
	struct pair *pair = calloc(1, sizeof(*pair));
	rr_status status;

	if (!pair)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for an edge of pipes");
	pair->next = streams->pairs;
	streams->pairs = pair;
	for (uint32_t i = 0; i < 2 * world->spec.streams; i++) {
		struct pipe *pipe = &pair->pipes[i & 1][i / 2];
		pipe->room = world->spec.pipe_bytes;
		pipe->bytes = malloc(pipe->room);
		if (!pipe->bytes)
			return rr_fail(RR_ERR_NO_MEMORY, "no memory for a pipe");
	}
	status = open_end(world, pair, 0, lower, higher, channel);
	if (status == RR_OK)
		status = open_end(world, pair, 1, higher, lower, channel);
	if (status == RR_OK)
		status = shipping_watch(world, lower, higher, &pair->ends[0].edge.out.link, &pair->ends[1].edge.in.link);
	if (status == RR_OK)
		status = shipping_watch(world, higher, lower, &pair->ends[1].edge.out.link, &pair->ends[0].edge.in.link);
	return status;
}

static rr_status open_streams(struct shipping *world)
{
	struct streams *streams = calloc(1, sizeof(*streams));
	int32_t count = world->sim->world;
	rr_status status;

	if (!streams)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for streams");
	if (world->spec.streams < 1 || world->spec.streams > RR_FAR_STREAMS_MAX || !world->spec.pipe_bytes) {
		free(streams);
		return rr_fail(RR_ERR_ARGUMENT, "streams %u of %u bytes: accepted are 1..%u of 1 and more", world->spec.streams,
			       world->spec.pipe_bytes, RR_FAR_STREAMS_MAX);
	}
	world->state = streams;
	status = shipping_far_open(count, &streams->far);
	for (uint32_t c = 0; c < world->sim->channels[0]; c++)
		for (int32_t i = 0; i < count * count && status == RR_OK; i++)
			if (i / count < i % count)
				status = open_pair(world, i / count, i % count, c);
	return status;
}

static void close_streams(struct shipping *world)
{
	struct streams *streams = world->state;

	while (streams && streams->pairs) {
		struct pair *pair = streams->pairs;
		streams->pairs = pair->next;
		for (uint32_t i = 0; i < 2 * world->spec.streams; i++)
			free(pair->pipes[i & 1][i / 2].bytes);
		free(pair);
	}
	if (streams)
		shipping_far_close(streams->far);
	free(streams);
}

const struct shipping_ops shipping_stream = {.open = open_streams, .close = close_streams};
