/*
 * verbs_mend.c - an edge that failed while both ends live is made anew, and goes on where the peer's receiver stands.
 *
 *   UP --trouble here, or RESUME--> DRAIN --> PORT --> RAILS --> QUEUES --> OFFER --> CONNECT --> READY --> UP
 *        queue pairs to ERR          |          |        |          |          |         |           |
 *                                    |          |        |          |          |         |           RESUMED from the peer
 *                                    |          |        |          |          |         RESUME from the peer; RTR, RTS; RESUMED sent
 *                                    |          |        |          |          RESUME sent: new queue pairs, and what is here
 *                                    |          |        |          queue pairs in INIT with all receives
 *                                    |          |        both ends agree on a pair of rails, where there are two: verbs_rail.c
 *                                    |          a port active, GID found
 *                                    no receive and no source of the old queue pairs is under way: what is here is final
 *
 * Then the sender sends again what the peer's RESUME says it lacks: OPENs by count, transfers by serial, the newest tiny message of each
 * place. All that needs is still there: lines and slots until the peer's credit, sources until its completion or release. Nothing comes twice.
 * The newest OPEN's grants are told in RESUME, since another device has other keys; older ones are of operations that are over here.
 *
 * Both ends count rounds. A message of a later round than ours means that the peer fell into trouble again before we were up: we begin that
 * round. Trouble after a round in which nothing arrived is the same trouble, and reconnect_ns bounds it; but not the wait for a peer
 * that is in user code: it hears of it in its next call, and the operation's own time-out bounds that.
 */
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "order.h"
#include "status.h"
#include "verbs_edge.h"

#define ANSWER_NS (250 * RR_NS_PER_MS) /* a peer in an operation answers in that time, or else many rounds of little waits would go on for ever */
#define DRAIN_NS RR_NS_PER_S          /* then the queue pairs are destroyed, which ends what they do as well */

/* ---- begin ---- */

void rr_verbs_attend(struct rr_verbs_edge *edge, bool on)
{
	if (edge->mend.attended != on)
		rr_far_attend(edge->far, on);
	edge->mend.attended = on;
}

static void begin(struct rr_verbs_edge *edge)
{
	struct rr_verbs_mend *mend = &edge->mend;

	edge->state = RR_VERBS_MENDING;
	mend->phase = RR_MEND_DRAIN;
	mend->phase_ns = rr_now_ns();
	mend->theirs_known = mend->connected = mend->resumed_known = mend->rails_sent = mend->rails_known = false;
	mend->received = 0;
	for (uint32_t q = 0; q < edge->settings.qps; q++)
		if (edge->queues[q].qp)
			rr_qp_error(edge->verbs, edge->queues[q].qp); /* it is there already, or is destroyed soon */
	if (edge->loop)
		rr_qp_error(edge->verbs, edge->loop);
}

void rr_verbs_mend_again(struct rr_verbs_edge *edge)
{
	edge->mend.rounds++;
	begin(edge);
}

/* The first cause as this thread's record, with what came of it. */
static void tell_given_up(const struct rr_verbs_edge *edge)
{
	rr_error *error = rr_error_here();
	size_t length;

	rr_error_set(&edge->mend.cause);
	length = strlen(error->message);
	snprintf(error->message + length, sizeof(error->message) - length, "; it could not be made anew within %.1f s%s",
		 (double)edge->reconnect_ns / (double)RR_NS_PER_S, rr_verbs_movable(edge) ? ", on this rail or another" : "");
}

/* Had the path been dead, what was sent since would have failed by now. */
static bool was_well(const struct rr_verbs_edge *edge, uint64_t now)
{
	uint64_t retries_ns = 4 * rr_qp_timeout_ns(edge->settings.timeout_code) * (edge->settings.retry_count + 1u);

	return edge->mend.received || now - edge->mend.up_ns > edge->reconnect_ns + retries_ns;
}

bool rr_verbs_trouble(struct rr_verbs_edge *edge, enum rr_mendable mendable)
{
	struct rr_verbs_mend *mend = &edge->mend;
	uint64_t now = rr_now_ns();

	if (mendable == RR_MENDABLE_NOT || !edge->reconnect_ns || edge->state != RR_VERBS_UP || edge->failed)
		return false;
	if (mendable == RR_MENDABLE_ELSEWHERE && !rr_verbs_movable(edge))
		return false;
	mend->leave = mendable == RR_MENDABLE_ELSEWHERE;
	if (!mend->since_ns || was_well(edge, now)) {
		mend->since_ns = now;
		mend->cause = *rr_error_here();
		mend->by_flush = false;
	} else if (now - mend->since_ns > edge->reconnect_ns) {
		tell_given_up(edge);
		return false;
	} else {
		mend->leave = true;
	}
	begin(edge);
	return true;
}

void rr_verbs_befallen(struct rr_verbs_edge *edge, enum rr_mendable mendable)
{
	if (edge->state != RR_VERBS_MENDING && !rr_verbs_trouble(edge, mendable))
		rr_verbs_lose(edge);
}

void rr_verbs_mend_event(struct rr_verbs_edge *edge, enum rr_mendable mendable)
{
	struct rr_verbs_mend *mend = &edge->mend;

	if (mend->by_flush || mendable == RR_MENDABLE_ELSEWHERE)
		mend->cause = *rr_error_here(); /* the device's own event is the better cause */
	mend->by_flush = false;
	if (mendable != RR_MENDABLE_ELSEWHERE)
		return;
	mend->leave = true;
	if (mend->phase >= RR_MEND_RAILS)
		rr_verbs_mend_again(edge);
}

/* ---- the phases ---- */

/* The time beyond ANSWER_NS does not count: the peer may be in user code. */
static bool waits_for_peer(const struct rr_verbs_mend *mend)
{
	return mend->phase >= RR_MEND_CONNECT || (mend->phase == RR_MEND_RAILS && !mend->rails_known);
}

static void count_wait(struct rr_verbs_mend *mend)
{
	uint64_t now = rr_now_ns();

	if (waits_for_peer(mend) && now - mend->phase_ns > ANSWER_NS)
		mend->since_ns += now - mend->phase_ns - ANSWER_NS;
	mend->phase_ns = now;
}

void rr_verbs_next_phase(struct rr_verbs_edge *edge, enum rr_mend_phase phase)
{
	count_wait(&edge->mend);
	edge->mend.phase = phase;
}

/* Events name queues that go now. */
static void take_events(struct rr_verbs_edge *edge)
{
	struct rr_verbs_mend *mend = &edge->mend;
	enum rr_mendable mendable;

	while (edge->domain && rr_domain_look(edge->domain, edge->rail.port, edge, true, &edge->events_seen, &mendable) < 0) {
		if (mendable == RR_MENDABLE_NOT)
			continue;
		if (mend->by_flush || mendable == RR_MENDABLE_ELSEWHERE)
			mend->cause = *rr_error_here();
		mend->by_flush = false;
		mend->leave = mend->leave || mendable == RR_MENDABLE_ELSEWHERE;
	}
}

/* What they did not acknowledge counts as under way until the peer has told what it has. */
void rr_verbs_drop_queues(struct rr_verbs_edge *edge)
{
	for (uint64_t serial = edge->sent_whole; serial != edge->serial; serial++) {
		uint64_t *request = &edge->request_of[serial % RR_RING_COUNT];
		if (*request > edge->queues[serial % edge->settings.qps].completed)
			*request = UINT64_MAX;
	}
	take_events(edge);
	for (uint32_t q = 0; q < edge->settings.qps; q++) {
		struct rr_verbs_queue *queue = &edge->queues[q];
		if (queue->qp)
			edge->verbs->destroy_qp(queue->qp); /* one that cannot go is in error, and stays until the device is closed */
		queue->qp = NULL;
		queue->completed = queue->posted;
		queue->unsignalled = queue->spent = queue->receives = 0;
	}
	if (edge->loop)
		edge->verbs->destroy_qp(edge->loop);
	edge->loop = NULL;
	edge->flush_posted = false;
	if (edge->domain)
		edge->domain->under_way -= edge->held;
	edge->held = 0;
}

static rr_status drain(struct rr_verbs_edge *edge)
{
	if (!rr_verbs_drained(edge) && rr_now_ns() - edge->mend.phase_ns < DRAIN_NS)
		return RR_AGAIN;
	rr_verbs_drop_queues(edge);
	rr_verbs_next_phase(edge, RR_MEND_PORT);
	edge->mend.here_ns = edge->mend.phase_ns;
	edge->mend.phase_ns = 0; /* look at once */
	return RR_OK;
}

static rr_status send_resume(struct rr_verbs_edge *edge, enum rr_verbs_message kind)
{
	struct rr_verbs_resume message = {.round = edge->mend.rounds + 1, .next = edge->next, .arrived = edge->arrived,
					  .opens = edge->opens_got, .told = edge->opens_sent};

	if (rr_far_state(edge->far, edge->peer) != RR_EDGE_UP)
		return RR_AGAIN;
	rr_verbs_fill_parameters(edge, kind, &message.parameters);
	for (uint32_t which = 0; which < 2; which++)
		message.tinies[which] = rr_verbs_tiny_newest(edge, which);
	rr_verbs_granted(edge, message.places);
	return rr_far_send(edge->far, edge->peer, edge->channel_number, &message, sizeof(message));
}

static rr_status offer(struct rr_verbs_edge *edge)
{
	rr_status status = send_resume(edge, RR_VERBS_RESUME);

	if (status != RR_OK)
		return status;
	edge->credits_given = edge->next;
	edge->credit_due = edge->bell_due = false;
	rr_verbs_next_phase(edge, RR_MEND_CONNECT);
	return RR_OK;
}

/* Its newest OPEN as it grants memory now; one that is not here yet comes with the new keys. */
static rr_status take_grants(struct rr_verbs_edge *edge)
{
	const struct rr_verbs_resume *theirs = &edge->mend.theirs;
	struct rr_open *line = (struct rr_open *)(edge->inbound + edge->opens_at +
						  (edge->opens_got - 1) % RR_EDGE_OPENS * RR_EDGE_OPEN_BYTES);

	if (!edge->opens_got || theirs->told != edge->opens_got)
		return RR_OK;
	for (uint32_t b = 0; b < RR_BUFFER_COUNT; b++) /* how the operation's bytes travel follows from it at both ends */
		if (theirs->places[b].reach != line->place[b].reach)
			return rr_fail(RR_ERR_PROTOCOL, "rank %d granted buffer %u as reach %u, and now as %u: is another version at the other end?",
				       edge->peer, b, line->place[b].reach, theirs->places[b].reach);
	memcpy(line->place, theirs->places, sizeof(line->place));
	if (edge->places_op == rr_own64(&line->op))
		memcpy(edge->places, theirs->places, sizeof(edge->places));
	return RR_OK;
}

/* What the peer says it has must be part of what was sent. */
static rr_status take_counts(struct rr_verbs_edge *edge)
{
	struct rr_verbs_mend *mend = &edge->mend;
	const struct rr_verbs_resume *theirs = &mend->theirs;

	if (theirs->next - edge->credited > edge->serial - edge->credited ||
	    edge->opens_sent - theirs->opens > RR_EDGE_OPENS)
		return rr_fail(RR_ERR_PROTOCOL, "rank %d says that it has %llu transfers and %u OPENs, of %llu and %u: is another version at the other end?",
			       edge->peer, (unsigned long long)theirs->next, theirs->opens, (unsigned long long)edge->serial,
			       edge->opens_sent);
	rr_verbs_take_credit(edge, (uint32_t)(theirs->next & RR_IMM_MASK));
	mend->missing = 0;
	for (uint64_t serial = theirs->next; serial != edge->serial; serial++) {
		uint64_t bit = 1ull << serial % RR_RING_COUNT;
		if (!(theirs->arrived & bit))
			mend->missing |= bit;
		else
			edge->request_of[serial % RR_RING_COUNT] = 0;
	}
	mend->again = theirs->next;
	mend->opens_again = edge->opens_sent - theirs->opens;
	for (uint32_t which = 0; which < 2; which++) {
		if ((edge->tiny_serials[which] & RR_IMM_MASK) == theirs->tinies[which])
			continue;
		edge->tiny_pending |= 1u << which;
		edge->tiny_short &= ~(1u << which);
	}
	return edge->failed ? rr_error_set(&edge->failure) : RR_OK;
}

static rr_status connect_anew(struct rr_verbs_edge *edge)
{
	struct rr_verbs_mend *mend = &edge->mend;
	rr_status status;

	if (!mend->theirs_known)
		return RR_AGAIN;
	if (!mend->connected) {
		status = rr_verbs_connect_queues(edge, &mend->theirs.parameters);
		if (status == RR_ERR_LINK) { /* the port went again: another round, of which the peer is told */
			mend->leave = true;
			rr_verbs_mend_again(edge);
			return RR_AGAIN;
		}
		if (status == RR_OK)
			status = take_grants(edge);
		if (status == RR_OK)
			status = take_counts(edge);
		if (status < 0) {
			rr_verbs_lose(edge);
			return status;
		}
		mend->connected = true;
	}
	status = send_resume(edge, RR_VERBS_RESUMED);
	if (status == RR_OK)
		rr_verbs_next_phase(edge, RR_MEND_READY);
	return status;
}

static rr_status ready(struct rr_verbs_edge *edge)
{
	if (!edge->mend.resumed_known)
		return RR_AGAIN;
	count_wait(&edge->mend);
	edge->mend.up_ns = edge->mend.phase_ns;
	edge->mend.rounds++;
	edge->mend.received = 0;
	edge->state = RR_VERBS_UP;
	edge->armed = false;
	edge->idle_polls = 0;
	rr_verbs_send_waiting(edge);
	return RR_OK;
}

rr_status rr_verbs_mend(struct rr_verbs_edge *edge)
{
	static rr_status (*const phases[])(struct rr_verbs_edge *edge) = {
		[RR_MEND_DRAIN] = drain,
		[RR_MEND_PORT] = rr_verbs_find_port,
		[RR_MEND_RAILS] = rr_verbs_agree_on_rails,
		[RR_MEND_QUEUES] = rr_verbs_settle,
		[RR_MEND_OFFER] = offer,
		[RR_MEND_CONNECT] = connect_anew,
		[RR_MEND_READY] = ready,
	};
	rr_status status = RR_OK;

	while (status == RR_OK && !edge->failed && edge->state == RR_VERBS_MENDING)
		status = phases[edge->mend.phase](edge);
	if (edge->failed)
		return rr_verbs_health(edge);
	if (edge->state == RR_VERBS_MENDING && !waits_for_peer(&edge->mend) &&
	    rr_now_ns() - edge->mend.since_ns > edge->reconnect_ns) {
		tell_given_up(edge);
		rr_verbs_lose(edge);
		return rr_error_set(&edge->failure);
	}
	return status;
}

/* ---- the peer's word, and what it lacks ---- */

static void follow(struct rr_verbs_edge *edge, uint64_t round)
{
	if (edge->state == RR_VERBS_UP) {
		rr_fail(RR_ERR_LINK, "rank %d found that the link failed, and makes it anew", edge->peer);
		rr_error_here()->peer = edge->peer;
		strcpy(rr_error_here()->hint, "look at that rank's host for the cause: its port, cable and device");
		if (!rr_verbs_trouble(edge, RR_MENDABLE_HERE)) {
			rr_verbs_lose(edge);
			return;
		}
		edge->mend.by_flush = true; /* our own completions and events know more */
	} else if (round != edge->mend.rounds + 1) {
		begin(edge);
	}
	edge->mend.rounds = round - 1;
}

/* Of the round that we are in now, or come to by it. False: of one that is over, or the edge does not live. */
static bool joins_round(struct rr_verbs_edge *edge, uint64_t round)
{
	if (round <= edge->mend.rounds)
		return false;
	if (edge->state != RR_VERBS_MENDING || round != edge->mend.rounds + 1)
		follow(edge, round);
	return !edge->failed && edge->state == RR_VERBS_MENDING;
}

static void not_mending(struct rr_verbs_edge *edge, uint32_t magic, uint32_t kind)
{
	rr_fail(RR_ERR_PROTOCOL, "rank %d sent what does not mend a link (0x%x, kind %u)", edge->peer, magic, kind);
	rr_verbs_lose(edge);
}

void rr_verbs_rails_message(struct rr_verbs_edge *edge, const struct rr_verbs_rails *message)
{
	struct rr_verbs_mend *mend = &edge->mend;

	if (message->magic != RR_VERBS_MAGIC || message->kind != RR_VERBS_RAILS) {
		not_mending(edge, message->magic, message->kind);
		return;
	}
	if (!joins_round(edge, message->round))
		return;
	if (mend->phase == RR_MEND_RAILS)
		count_wait(mend);
	mend->rails = *message;
	mend->rails_known = true;
}

void rr_verbs_mend_message(struct rr_verbs_edge *edge, const struct rr_verbs_resume *message)
{
	struct rr_verbs_mend *mend = &edge->mend;
	uint32_t kind = message->parameters.kind;

	if (message->parameters.magic != RR_VERBS_MAGIC || (kind != RR_VERBS_RESUME && kind != RR_VERBS_RESUMED)) {
		not_mending(edge, message->parameters.magic, kind);
		return;
	}
	if (kind == RR_VERBS_RESUMED) {
		if (message->round == mend->rounds + 1 && edge->state == RR_VERBS_MENDING)
			mend->resumed_known = true;
		return;
	}
	if (!joins_round(edge, message->round))
		return;
	mend->theirs = *message;
	mend->theirs_known = true;
}

bool rr_verbs_send_again(struct rr_verbs_edge *edge)
{
	struct rr_verbs_mend *mend = &edge->mend;

	for (; mend->opens_again; mend->opens_again--) {
		if (!rr_verbs_room(edge, 0, 1))
			return false;
		rr_verbs_post_open(edge, edge->opens_sent - mend->opens_again);
	}
	for (; mend->missing; mend->again++) {
		uint64_t bit = 1ull << mend->again % RR_RING_COUNT;
		if (!(mend->missing & bit))
			continue;
		if (!rr_verbs_room(edge, (uint32_t)(mend->again % edge->settings.qps), 2) || !rr_verbs_post_transfer(edge, mend->again))
			return false;
		mend->missing &= ~bit;
	}
	return true;
}
