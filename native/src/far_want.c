/* far_want.c - which connections an edge has: its control connection, and the data sockets of its channels. */
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "far_inside.h"
#include "forked.h"
#include "process.h"
#include "status.h"

#define REFUSED_NS (1 * RR_NS_PER_S)      /* all addresses tried again and again, and nobody listens */
#define UNREACHABLE_NS (10 * RR_NS_PER_S) /* nothing answers at all */
#define INPUT_BYTES (sizeof(struct rr_message_head) + RR_FAR_BODY_MAX)

uint32_t rr_far_serve(struct rr_far *far, int32_t peer, const struct rr_edge_ops *ops, void *user, uint32_t streams,
		      bool late)
{
	struct rr_edge *edge = &far->edges[peer];

	assert(edge->served_count < RR_FAR_CHANNELS_MAX);
	edge->served[edge->served_count] =
		(struct rr_served){.ops = ops, .user = user, .stream_first = edge->streams, .streams = streams};
	edge->streams += streams;
	if (!late)
		edge->streams_wanted = edge->streams;
	far->pass_is_dear = far->pass_is_dear || streams > 0;
	return edge->served_count++;
}

/* Kept beyond the connection: whoever asks may do so when the peer has closed. */
static void keep_path(struct rr_edge *edge)
{
	struct sockaddr_storage own = {0}, other = {0};
	socklen_t own_size = sizeof(own), other_size = sizeof(other);
	char here[RR_NET_TEXT_BYTES], there[RR_NET_TEXT_BYTES];

	if (getsockname(edge->socket, (struct sockaddr *)&own, &own_size) == 0 &&
	    getpeername(edge->socket, (struct sockaddr *)&other, &other_size) == 0)
		snprintf(edge->path, sizeof(edge->path), "%s -> %s", rr_net_text(&own, here), rr_net_text(&other, there));
}

static rr_status begin_dialing(struct rr_far *far, struct rr_edge *edge)
{
	const struct rr_hello *hello = &far->hellos[edge->peer], *own = &far->hellos[far->rank];
	bool same_kernel = strncmp(hello->boot_id, own->boot_id, sizeof(own->boot_id)) == 0 && hello->network == own->network;

	edge->targets = calloc(RR_NET_TARGETS_MAX, sizeof(*edge->targets));
	if (!edge->targets)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory to reach rank %d", edge->peer);
	edge->target_count = rr_net_targets(hello->addresses, hello->address_count, hello->port, same_kernel, edge->targets);
	if (!edge->target_count)
		return rr_fail(RR_ERR_LINK, "rank %d on %.39s tells of no address that could be reached from here", edge->peer,
			       hello->host_name);
	rr_far_dial(far, edge, RR_FAR_CONTROL);
	return RR_OK;
}

static rr_status cannot_reach(const struct rr_far *far, const struct rr_edge *edge)
{
	const struct rr_hello *hello = &far->hellos[edge->peer];

	rr_fail(edge->refused ? RR_ERR_PEER_DIED : RR_ERR_LINK,
		"rank %d (pid %d on %.39s) cannot be reached at any of its %u addresses for %.0f s; last %s", edge->peer,
		hello->pid, hello->host_name, edge->target_count, (double)(rr_now_ns() - edge->joining_since_ns) / 1e9,
		edge->failure[0] ? edge->failure : "none answered");
	rr_error_here()->peer = edge->peer;
	strcpy(rr_error_here()->hint, edge->refused ? "its process has ended, or has closed the communicator: see that rank's own output"
						    : "is there a route, and does a firewall let TCP between all ports of the ranks' hosts pass?");
	return (rr_status)rr_error_here()->status;
}

/* Where the chain of dials stands still, it goes on. */
static void dial_next(struct rr_far *far, struct rr_edge *edge)
{
	if (edge->dials && edge->streams_up < edge->streams_wanted)
		rr_far_dial(far, edge, (uint16_t)edge->streams_up);
}

void rr_far_want_streams(struct rr_far *far, struct rr_edge *edge)
{
	uint32_t wanted = edge->streams_wanted;

	edge->streams_wanted = edge->streams;
	if (edge->state == RR_EDGE_UP && edge->streams_up == wanted)
		dial_next(far, edge);
}

/* Sockets of the late channel: the lower rank dials, so the higher has to ask it. */
static void want_late(struct rr_far *far, struct rr_edge *edge)
{
	if (edge->dials && edge->streams_wanted < edge->streams)
		rr_far_want_streams(far, edge);
	else if (!edge->dials && !edge->want_sent)
		edge->want_sent = rr_far_say(edge, RR_FAR_WANT, 0, NULL, 0) == RR_OK;
}

rr_status rr_far_want(struct rr_far *far, int32_t peer, uint32_t channel)
{
	struct rr_edge *edge = &far->edges[peer];

	if (far->out_of_files) {
		far->out_of_files = false;
		return rr_process_out_of_files("a connection between nodes");
	}
	if (edge->state == RR_EDGE_UP && edge->served[channel].streams && edge->served[channel].stream_first >= edge->streams_wanted)
		want_late(far, edge);
	if (edge->state == RR_EDGE_UP || edge->state == RR_EDGE_ENDED)
		return RR_OK;
	if (edge->state == RR_EDGE_IDLE) {
		edge->state = RR_EDGE_JOINING;
		edge->joining_since_ns = rr_now_ns();
		if (edge->dials) {
			rr_status status = begin_dialing(far, edge);
			if (status < 0)
				return status;
		}
	}
	rr_far_look(far);
	/* A rank whose kernel takes connections that it does not answer is late: the operation's time-out ends that. */
	if (edge->state == RR_EDGE_JOINING && edge->dials && edge->target_next >= edge->silent_last + 2 * edge->target_count) {
		uint64_t waited_ns = rr_now_ns() - edge->joining_since_ns;
		if (waited_ns > (edge->refused ? REFUSED_NS : UNREACHABLE_NS))
			return cannot_reach(far, edge);
	}
	return RR_OK;
}

static void give_stream(struct rr_edge *edge, uint32_t stream, int socket)
{
	for (uint32_t c = 0; c < edge->served_count; c++) {
		const struct rr_served *served = &edge->served[c];
		if (stream < served->stream_first || stream - served->stream_first >= served->streams || !served->ops->stream)
			continue;
		served->ops->stream(served->user, stream - served->stream_first, socket);
		return;
	}
	rr_own_close(socket);
}

void rr_far_joined(struct rr_far *far, struct rr_edge *edge, uint16_t stream, int socket)
{
	if (stream != RR_FAR_CONTROL) {
		edge->streams_up++;
		give_stream(edge, stream, socket);
		dial_next(far, edge);
		return;
	}
	if (edge->socket >= 0 || edge->state == RR_EDGE_ENDED) { /* a second one: the peer gave the first up */
		rr_own_close(socket);
		return;
	}
	edge->input = malloc(INPUT_BYTES);
	if (!edge->input) {
		rr_own_close(socket);
		return;
	}
	edge->socket = socket;
	edge->state = RR_EDGE_UP;
	edge->got = 0;
	rr_net_watch_host(socket);
	keep_path(edge);
	rr_far_watch(far, socket, RR_FAR_TAG_EDGE(edge->peer), false);
	for (uint32_t c = 0; c < edge->served_count; c++)
		if (edge->served[c].ops->up)
			edge->served[c].ops->up(edge->served[c].user);
	dial_next(far, edge);
}

bool rr_far_joins(const struct rr_far *far)
{
	for (uint32_t i = 0; i < RR_FAR_PENDING_MAX; i++)
		if (far->pending[i].step != RR_PENDING_FREE)
			return true;
	return false;
}

void rr_far_dial_on(struct rr_far *far, uint64_t now_ns)
{
	for (int32_t r = far->rank + 1; r < far->world; r++) {
		struct rr_edge *edge = &far->edges[r];
		if (!edge->page || !edge->dials || edge->dial_again_ns > now_ns)
			continue;
		if (edge->state == RR_EDGE_JOINING)
			rr_far_dial(far, edge, RR_FAR_CONTROL);
		else if (edge->state == RR_EDGE_UP && edge->streams_up < edge->streams_wanted)
			dial_next(far, edge);
		else
			edge->dial_again_ns = UINT64_MAX;
	}
}
