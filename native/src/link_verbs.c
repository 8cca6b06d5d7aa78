/* link_verbs.c - an edge over verbs as two links; its parts are told of in verbs_edge.h. */
#include "link_verbs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "order.h"
#include "status.h"
#include "verbs_edge.h"

#define RECONNECT_NS (10 * RR_NS_PER_S)

static rr_status accept_open(struct rr_link *link, const struct rr_open *open)
{
	struct rr_verbs_edge *edge = rr_verbs_edge_of(link);

	if (link == &edge->out.link) {
		memcpy(edge->places, open->place, sizeof(edge->places));
		edge->places_op = rr_own64(&open->op);
	}
	rr_verbs_moved(edge);
	return RR_OK;
}

static void flush(struct rr_link *link)
{
	rr_verbs_send_waiting(rr_verbs_edge_of(link));
}

static rr_status progress(struct rr_link *link)
{
	struct rr_verbs_edge *edge = rr_verbs_edge_of(link);
	rr_status status;

	if (link != &edge->out.link)
		return RR_OK; /* one for both */
	rr_verbs_look(edge);
	status = rr_verbs_health(edge);
	if (status < 0)
		return status;
	if (edge->state == RR_VERBS_UP && (!edge->failed || edge->failed_by_flush)) { /* a cause may follow its flushes */
		status = rr_verbs_poll(edge);
		rr_verbs_send_waiting(edge);
	} else if (edge->state == RR_VERBS_MENDING) {
		status = rr_verbs_mend(edge);
	} else if (edge->state != RR_VERBS_COLD && edge->state != RR_VERBS_SEVERED && !edge->failed) {
		status = rr_verbs_join(edge);
	}
	return status < 0 ? status : RR_OK;
}

static void sever(struct rr_link *link)
{
	rr_verbs_sever(rr_verbs_edge_of(link));
}

/* Channels are described from the last to the first. */
static void describe_moved(const struct rr_verbs_edge *edge, rr_link_facts *facts)
{
	char others[sizeof(facts->moved)];

	if (!edge->failovers)
		return;
	memcpy(others, facts->moved, sizeof(others));
	snprintf(facts->moved, sizeof(facts->moved), "channel %u from %s%s%.390s", edge->channel_number, edge->moved, others[0] ? "; " : "", others);
}

static void describe(struct rr_link *link, rr_link_facts *facts)
{
	struct rr_verbs_edge *edge = rr_verbs_edge_of(link);
	const struct rr_rail_pair *pair = &edge->pair;
	static const struct rr_gdr_outcome untried;
	char ours[RR_GID_TEXT_BYTES], theirs[RR_GID_TEXT_BYTES];

	snprintf(facts->transport, sizeof(facts->transport), "verbs");
	snprintf(facts->ordinary, sizeof(facts->ordinary), "slots");
	snprintf(facts->device, sizeof(facts->device), "%.27s/%u", edge->rail.device, edge->rail.port);
	facts->rail = (int32_t)pair->our_rail;
	facts->streams = edge->settings.qps;
	facts->slot_bytes = edge->slot_bytes;
	facts->slot_count = edge->slot_count;
	rr_verbs_gdr_words(edge->domain ? &edge->domain->gdr : &untried, edge->rail.device, facts->gpu_reason,
			   sizeof(facts->gpu_reason));
	snprintf(facts->gpu, sizeof(facts->gpu), "%s",
		 edge->domain && (edge->domain->gdr.way == RR_GDR_DMA_BUF || edge->domain->gdr.way == RR_GDR_PEER_MEMORY) ? "gpudirect" : "staged");
	facts->reconnects += (uint32_t)edge->mend.rounds; /* of all channels */
	facts->failovers += edge->failovers;
	describe_moved(edge, facts);
	rr_gid_text(pair->our_gid.gid, ours);
	rr_gid_text(pair->their_gid.gid, theirs);
	if (pair->global)
		snprintf(facts->path, sizeof(facts->path), "GID %u %s -> %s (%s), MTU %u", pair->our_gid.index, ours, theirs,
			 rr_gid_type_name(pair->our_gid.type), pair->mtu_bytes);
	else
		snprintf(facts->path, sizeof(facts->path), "LID %u -> %u, MTU %u", edge->rail.lid, pair->their_lid,
			 pair->mtu_bytes);
}

static void close_end(struct rr_link *link)
{
	struct rr_verbs_edge *edge = rr_verbs_edge_of(link);

	if (--edge->ends)
		return;
	rr_verbs_linger(edge, RR_LINGER_CLOSE_NS);
	rr_verbs_destroy(edge);
	rr_far_unserve(edge->far, edge->peer, edge->channel_number);
	free(edge);
}

static const struct rr_link_ops verbs_ops = {
	.transport = "verbs",
	.open_post = rr_verbs_open_post,
	.open_peek = rr_verbs_open_peek,
	.open_accept = accept_open,
	.reserve = rr_verbs_reserve,
	.commit = rr_verbs_commit,
	.abort = rr_verbs_abort,
	.released = rr_verbs_released,
	.peek = rr_verbs_peek,
	.release = rr_verbs_release,
	.flush = flush,
	.progress = progress,
	.tiny_post = rr_verbs_tiny_post,
	.tiny_peek = rr_verbs_tiny_peek,
	.sever = sever,
	.describe = describe,
	.close = close_end,
};

rr_status rr_link_verbs_open(struct rr_far *far, int32_t rank, int32_t peer, const struct rr_rail *ours,
			     const struct rr_rail_pair *pair, uint32_t turn, const rr_options *options, bool late,
			     struct rr_link **out, struct rr_link **in)
{
	struct rr_verbs_edge *edge = calloc(1, sizeof(*edge));
	rr_status status;

	if (!edge)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for a link to rank %d", peer);
	status = rr_qp_settings_set(&options->verbs, &edge->settings);
	if (status == RR_OK)
		status = rr_verbs_load(&edge->verbs);
	if (status < 0) {
		free(edge);
		return status;
	}
	edge->far = far;
	edge->rank = rank;
	edge->peer = peer;
	edge->rail = *ours;
	edge->pair = *pair;
	edge->turn = turn;
	edge->gdr_allowed = (enum rr_gdr_allowed)options->verbs.gpu_direct;
	edge->slot_bytes = options->slot_bytes;
	edge->slot_count = options->slot_count;
	rr_slot_ring_init(&edge->room, edge->slot_bytes * edge->slot_count);
	edge->ends = 2;
	edge->reconnect_ns = options->verbs.reconnect_ns == UINT64_MAX ? 0 : options->verbs.reconnect_ns ? options->verbs.reconnect_ns : RECONNECT_NS;
	edge->options = options->verbs;
	edge->serial_start = options->serial_start;
	edge->serial = edge->credited = edge->sent_whole = options->serial_start;
	edge->next = edge->credits_given = options->serial_start;
	snprintf(edge->what, sizeof(edge->what), "to rank %d over %.31s/%u", peer, ours->device, ours->port);
	edge->out = (struct rr_verbs_link){.link = {.ops = &verbs_ops, .peer = peer, .kind = RR_LINK_RDMA}, .edge = edge};
	edge->in = (struct rr_verbs_link){.link = {.ops = &verbs_ops, .peer = peer, .kind = RR_LINK_RDMA}, .edge = edge};
	edge->late = late;
	edge->channel_number = rr_far_serve(far, peer, &rr_verbs_edge_ops, edge, 0, late);
	*out = &edge->out.link;
	*in = &edge->in.link;
	return RR_OK;
}
