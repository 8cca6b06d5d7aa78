/*
 * verbs_rail.c - which rail serves an edge that is made anew, and what the edge has of its device.
 *
 * A rail that stays dead is left for another of the same two nodes. Both ends tell which rails are active (RAILS), and both compute
 * the pair from these words and their hellos: the one that served until now where it is active at both ends and neither has judged
 * it dead, else the best of the others by the rule of verbs_match.c. So nothing is negotiated, and no end can be of another mind.
 * An end waits PATIENCE_NS for its own port before it says that another must do; less where the device is lost, or where making it
 * anew on the same rail did not help.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "forked.h"
#include "status.h"
#include "verbs_edge.h"

#define PORT_LOOK_NS (20 * RR_NS_PER_MS) /* a look opens the devices */
#define PATIENCE_NS (500 * RR_NS_PER_MS) /* with a port that is down: most that come back so soon were never seen down */
#define PAUSE_NS (100 * RR_NS_PER_MS)    /* before asking again where no pair is active at both ends */

/* ---- the device ---- */

static rr_status make_memory_regions(struct rr_verbs_edge *edge)
{
	edge->inbound_mr = edge->verbs->reg_mr(edge->domain->pd, edge->inbound, edge->area_bytes,
					       RR_IBV_ACCESS_LOCAL_WRITE | RR_IBV_ACCESS_REMOTE_WRITE);
	if (!edge->inbound_mr)
		return rr_domain_memory_refused(edge->domain, "slots", edge->area_bytes);
	edge->outbound_mr = edge->verbs->reg_mr(edge->domain->pd, edge->outbound, edge->area_bytes, RR_IBV_ACCESS_LOCAL_WRITE);
	if (!edge->outbound_mr)
		return rr_domain_memory_refused(edge->domain, "staging", edge->area_bytes);
	return RR_OK;
}

static rr_status make_completions(struct rr_verbs_edge *edge)
{
	int entries = 2; /* of the loopback's READ, and its flush */

	for (uint32_t q = 0; q < edge->settings.qps; q++)
		entries += (int)(rr_verbs_receives_of(q) + rr_verbs_sends_of(edge)); /* for all that can be under way: it cannot overrun */
	edge->channel = edge->verbs->create_comp_channel(edge->domain->context);
	if (!edge->channel)
		return rr_verbs_refused(edge, "completion channel");
	if (!rr_own_take(edge->channel->fd))
		return rr_fail(RR_ERR_NO_MEMORY, "no memory to note a completion channel's descriptor");
	if (fcntl(edge->channel->fd, F_SETFL, fcntl(edge->channel->fd, F_GETFL) | O_NONBLOCK) < 0)
		return rr_fail(RR_ERR_SYSTEM, "fcntl of a completion channel: %s", strerror(errno));
	edge->cq = edge->verbs->create_cq(edge->domain->context, entries, edge, edge->channel, 0);
	if (!edge->cq)
		return rr_verbs_refused(edge, "completion queue");
	return rr_far_sleep_on(edge->far, edge->channel->fd);
}

rr_status rr_verbs_take_device(struct rr_verbs_edge *edge)
{
	rr_status status = rr_domain_get(edge->far, edge->rail.device, &edge->domain);

	if (status < 0)
		return status;
	edge->domain->gdr_allowed = edge->gdr_allowed;
	edge->events_seen = edge->domain->event_count; /* older ones are others' */
	status = make_memory_regions(edge);
	return status == RR_OK ? make_completions(edge) : status;
}

static void drain_events(struct rr_verbs_edge *edge)
{
	struct rr_ibv_cq *cq;
	void *user;

	while (edge->verbs->get_cq_event(edge->channel, &cq, &user) == 0)
		edge->verbs->ack_cq_events(cq, 1); /* destroying a queue waits for it */
}

void rr_verbs_leave_device(struct rr_verbs_edge *edge)
{
	if (edge->loop)
		edge->verbs->destroy_qp(edge->loop);
	if (edge->inbound_mr)
		edge->verbs->dereg_mr(edge->inbound_mr);
	if (edge->outbound_mr)
		edge->verbs->dereg_mr(edge->outbound_mr);
	if (edge->channel)
		drain_events(edge);
	if (edge->cq)
		edge->verbs->destroy_cq(edge->cq);
	if (edge->channel) {
		rr_far_sleep_off(edge->far, edge->channel->fd);
		rr_own_give(edge->channel->fd);
		edge->verbs->destroy_comp_channel(edge->channel);
	}
	if (edge->domain)
		rr_domain_put(edge->domain);
	edge->loop = NULL;
	edge->inbound_mr = edge->outbound_mr = NULL;
	edge->channel = NULL;
	edge->cq = NULL;
	edge->domain = NULL;
}

/* ---- which rail ---- */

static bool match_among(const struct rr_verbs_edge *edge, uint32_t our_bits, uint32_t their_bits, const struct rr_rail_pair *except,
			struct rr_rail_pair *out)
{
	struct rr_rails_sought sought = {.our_bits = our_bits, .their_bits = their_bits, .turn = edge->turn, .except = except};
	char why[192];

	sought.ours = rr_far_rails(edge->far, edge->rank, &sought.our_count);
	sought.theirs = rr_far_rails(edge->far, edge->peer, &sought.their_count);
	return sought.ours && rr_rails_match_among(&sought, out, why, sizeof(why));
}

bool rr_verbs_movable(const struct rr_verbs_edge *edge)
{
	struct rr_rail_pair other;

	return match_among(edge, UINT32_MAX, UINT32_MAX, &edge->pair, &other);
}

/* Of the port's GIDs the one that was used, wherever it is now, or else the one that takes its place. */
static bool find_gid(const struct rr_rail_pair *pair, const struct rr_rail *rail, struct rr_rail_gid *out)
{
	const struct rr_rail_gid *ours = &pair->our_gid, *best = NULL;
	uint32_t best_bits = 0;

	for (uint32_t i = 0; i < rail->gid_count; i++) {
		const struct rr_rail_gid *gid = &rail->gids[i];
		uint32_t bits = rr_gid_common_bits(gid->gid, pair->their_gid.gid);
		if (gid->type != ours->type || gid->kind != ours->kind)
			continue;
		if (memcmp(gid->gid, ours->gid, sizeof(gid->gid)) == 0) {
			best = gid;
			break;
		}
		if (!best || bits > best_bits) {
			best = gid;
			best_bits = bits;
		}
	}
	if (best)
		*out = *best;
	return best != NULL || !pair->global;
}

static bool same_port(const struct rr_rail *a, const struct rr_rail *b)
{
	return a->port == b->port && strcmp(a->device, b->device) == 0;
}

/* Take up what the port that `pair` says has now: its LID, its GID. False: it is not active, or has no GID of that kind. */
static bool take_port(struct rr_verbs_edge *edge, struct rr_rail_pair *pair, const struct rr_rail *found, uint32_t count)
{
	uint32_t told;
	const struct rr_rail *ours = rr_far_rails(edge->far, edge->rank, &told);

	for (uint32_t i = 0; i < count; i++) {
		if (!same_port(&found[i], &ours[pair->our_rail]) || !find_gid(pair, &found[i], &pair->our_gid))
			continue;
		edge->rail = found[i];
		return true;
	}
	return false;
}

static uint32_t active_rails(const struct rr_verbs_edge *edge, const struct rr_rail *found, uint32_t count)
{
	uint32_t told, active = 0;
	const struct rr_rail *ours = rr_far_rails(edge->far, edge->rank, &told);

	for (uint32_t r = 0; r < told; r++)
		for (uint32_t i = 0; i < count; i++)
			if (same_port(&found[i], &ours[r]))
				active |= 1u << r;
	return active;
}

/* ---- phases ---- */

rr_status rr_verbs_find_port(struct rr_verbs_edge *edge)
{
	struct rr_verbs_mend *mend = &edge->mend;
	struct rr_rail found[RR_RAILS_MAX];
	uint64_t now = rr_now_ns(), patience = edge->reconnect_ns / 2 < PATIENCE_NS ? edge->reconnect_ns / 2 : PATIENCE_NS;
	uint32_t count = 0;
	char reason[256];
	bool here;

	if (now - mend->phase_ns < PORT_LOOK_NS)
		return RR_AGAIN;
	mend->phase_ns = now;
	if (rr_rails_find(&edge->options, found, &count, reason, sizeof(reason)) < 0)
		return RR_AGAIN;
	mend->active = active_rails(edge, found, count);
	here = mend->active >> edge->pair.our_rail & 1 && take_port(edge, &edge->pair, found, count);
	if (!here)
		mend->active &= ~(1u << edge->pair.our_rail);
	if (!rr_verbs_movable(edge)) { /* both ends know that there is nothing to agree on */
		if (!here)
			return RR_AGAIN;
		rr_verbs_next_phase(edge, RR_MEND_QUEUES);
		mend->phase_ns = 0; /* at once */
		return RR_OK;
	}
	if (!mend->active || (!here && !mend->leave && now - mend->here_ns < patience))
		return RR_AGAIN;
	rr_verbs_next_phase(edge, RR_MEND_RAILS);
	return RR_OK;
}

static rr_status send_rails(struct rr_verbs_edge *edge)
{
	struct rr_verbs_mend *mend = &edge->mend;
	struct rr_verbs_rails message = {.magic = RR_VERBS_MAGIC, .kind = RR_VERBS_RAILS, .round = mend->rounds + 1,
					 .active = mend->active, .leave = mend->leave};
	rr_status status;

	if (mend->rails_sent)
		return RR_OK;
	if (rr_far_state(edge->far, edge->peer) != RR_EDGE_UP)
		return RR_AGAIN;
	status = rr_far_send(edge->far, edge->peer, edge->channel_number, &message, sizeof(message));
	mend->rails_sent = status == RR_OK;
	return status;
}

/* By what both ends have told: equal at both, with the roles swapped. */
static bool choose(const struct rr_verbs_edge *edge, struct rr_rail_pair *out)
{
	const struct rr_verbs_mend *mend = &edge->mend;
	bool here = mend->active >> edge->pair.our_rail & 1 && mend->rails.active >> edge->pair.their_rail & 1;

	if (here && !mend->leave && !mend->rails.leave) {
		*out = edge->pair;
		return true;
	}
	if (match_among(edge, mend->active, mend->rails.active, &edge->pair, out))
		return true;
	*out = edge->pair;
	return here;
}

static void tell_move(struct rr_verbs_edge *edge, const struct rr_rail_pair *pair)
{
	uint32_t told;
	bool ours = pair->our_rail != edge->pair.our_rail;
	const struct rr_rail *rails = rr_far_rails(edge->far, ours ? edge->rank : edge->peer, &told);
	const struct rr_rail *from = &rails[ours ? edge->pair.our_rail : edge->pair.their_rail];
	const struct rr_rail *to = &rails[ours ? pair->our_rail : pair->their_rail];

	snprintf(edge->moved, sizeof(edge->moved), "%s%.31s/%u to %s%.31s/%u", ours ? "" : "the peer's ", from->device, from->port,
		 ours ? "" : "its ", to->device, to->port);
	rr_far_note(edge->far, "rank %d: channel %u of the link to rank %d moves from %s, since that rail stays dead: %.200s", edge->rank,
		    edge->channel_number, edge->peer, edge->moved, edge->mend.cause.message);
}

static void move_to(struct rr_verbs_edge *edge, const struct rr_rail_pair *pair)
{
	uint32_t told;
	const struct rr_rail *rail = &rr_far_rails(edge->far, edge->rank, &told)[pair->our_rail];

	tell_move(edge, pair);
	rr_verbs_leave_device(edge);
	edge->rail = *rail;
	edge->pair = *pair;
	edge->failovers++;
	edge->mend.leave = false;
	snprintf(edge->what, sizeof(edge->what), "to rank %d over %.31s/%u", edge->peer, rail->device, rail->port);
}

rr_status rr_verbs_agree_on_rails(struct rr_verbs_edge *edge)
{
	struct rr_verbs_mend *mend = &edge->mend;
	struct rr_rail_pair pair;
	rr_status status = send_rails(edge);

	if (status != RR_OK)
		return status;
	if (!mend->rails_known)
		return RR_AGAIN;
	if (!choose(edge, &pair)) {
		if (rr_now_ns() - mend->phase_ns < PAUSE_NS)
			return RR_AGAIN;
		rr_verbs_mend_again(edge);
		return RR_OK;
	}
	if (pair.our_rail != edge->pair.our_rail || pair.their_rail != edge->pair.their_rail)
		move_to(edge, &pair);
	mend->here_ns = rr_now_ns();
	rr_verbs_next_phase(edge, RR_MEND_QUEUES);
	mend->phase_ns = 0; /* at once */
	return RR_OK;
}

/* The device of the edge's rail, where the edge has come to it in this round. */
static rr_status arrive(struct rr_verbs_edge *edge)
{
	struct rr_rail found[RR_RAILS_MAX];
	uint32_t count = 0;
	char reason[256];
	rr_status status;

	if (edge->domain)
		return RR_OK;
	status = rr_rails_find(&edge->options, found, &count, reason, sizeof(reason));
	if (status == RR_OK && !take_port(edge, &edge->pair, found, count))
		status = rr_fail(RR_ERR_LINK, "device %s: port %u is not active any more", edge->rail.device, edge->rail.port);
	if (status == RR_OK)
		status = rr_verbs_take_device(edge);
	if (status == RR_OK)
		status = rr_verbs_grant_again(edge);
	if (status < 0)
		rr_verbs_leave_device(edge);
	return status;
}

rr_status rr_verbs_settle(struct rr_verbs_edge *edge)
{
	struct rr_verbs_mend *mend = &edge->mend;
	uint64_t now = rr_now_ns();
	bool left = mend->leave; /* a device that is lost now is told of by its event */
	rr_status status;

	if (now - mend->phase_ns < PORT_LOOK_NS)
		return RR_AGAIN;
	mend->phase_ns = now;
	status = arrive(edge);
	for (uint32_t q = 0; status == RR_OK && q < edge->settings.qps; q++)
		status = rr_verbs_make_queue(edge, q);
	if (status == RR_OK) {
		rr_verbs_next_phase(edge, RR_MEND_OFFER);
		return RR_OK;
	}
	rr_verbs_drop_queues(edge); /* the next look tries again, until reconnect_ns is over */
	if (!rr_verbs_movable(edge)) {
		rr_verbs_next_phase(edge, RR_MEND_PORT);
		return RR_AGAIN;
	}
	if (mend->leave == left && now - mend->here_ns < PATIENCE_NS)
		return RR_AGAIN;
	mend->leave = true;
	rr_verbs_mend_again(edge);
	return RR_OK;
}
