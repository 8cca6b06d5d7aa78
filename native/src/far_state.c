/* far_state.c - where this rank is, told to those of other nodes; and what they tell. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>

#include "clock.h"
#include "far_inside.h"
#include "order.h"

#define DIAL_ALL_MAX 128 /* ranks of a world in which who waits joins everyone; in larger ones causes travel along the edges in use */
#define TELL_AGAIN_NS (50 * RR_NS_PER_MS) /* twice as long each time */
#define TELL_AGAIN_MAX_NS (400 * RR_NS_PER_MS) /* less than RR_STALE_NS */
#define LOST_NS (300 * RR_NS_PER_MS) /* what is with this rank's kernel is read within milliseconds by who waits for it */

bool rr_far_is_silence(int failed)
{
	return failed == ETIMEDOUT || failed == EHOSTUNREACH || failed == ENETUNREACH || failed == EHOSTDOWN || failed == ENETDOWN;
}

/* ---- told ---- */

static uint64_t age(uint64_t then_ns, uint64_t now_ns)
{
	return then_ns ? now_ns - then_ns : UINT64_MAX;
}

void rr_far_fill_state(const struct rr_far *far, uint64_t op, struct rr_state_message *state)
{
	const struct rr_page *page = far->page;
	uint64_t entry = rr_own64(&page->entries[op % RR_ENTRY_COUNT]), now_ns = rr_now_ns();

	memset(state, 0, sizeof(*state));
	state->op_done = rr_own64(&page->op_done);
	state->position = rr_own64(&page->position);
	state->wait_op = rr_own64(&page->waiting.op);
	state->waits[0] = rr_own64(&page->waiting.waits[0]);
	state->waits[1] = rr_own64(&page->waiting.waits[1]);
	state->waited_ns = age(rr_own64(&page->waiting.since_ns), now_ns);
	state->quiet_ns = age(rr_own64(&page->waiting.seen_ns), now_ns);
	state->else_comm = rr_own64(&page->elsewhere.comm);
	state->else_op = rr_own64(&page->elsewhere.op);
	state->else_wait = rr_own64(&page->elsewhere.wait);
	state->else_process = rr_own64(&page->elsewhere.process);
	state->else_quiet_ns = age(rr_own64(&page->elsewhere.seen_ns), now_ns);
	state->pace_word = rr_own64(&page->pace.word);
	state->pace_span_ns = rr_own64(&page->pace.span_ns);
	state->pace_moved_ns = age(rr_own64(&page->pace.moved_ns), now_ns);
	state->pace_age_ns = age(rr_own64(&page->pace.seen_ns), now_ns);
	if (op && entry >> 8 == op) {
		state->op = op;
		state->descriptor = page->descriptors[(entry & 0xff) % RR_DESCRIPTOR_COUNT];
	}
}

static void tell_counts(struct rr_far *far, struct rr_edge *edge)
{
	struct rr_counts_message counts = {.lacks = rr_own64(&far->page->waiting.lacks)};

	for (uint32_t channel = 0; channel < RR_CHANNELS_MAX; channel++)
		counts.sent[channel] = far->sent ? far->sent(far->neighbour_user, edge->peer, channel) : RR_FAR_NOT_KNOWN;
	rr_far_say(edge, RR_FAR_COUNTS, 0, &counts, sizeof(counts));
}

/* Each edge on its own: one that comes up late is told at once. */
static bool is_due(struct rr_edge *edge, uint64_t op, uint64_t now_ns)
{
	if (edge->told_op != op)
		edge->tell_every_ns = 0;
	return edge->told_op != op || now_ns >= edge->tell_next_ns;
}

void rr_far_tell_state(struct rr_far *far, uint64_t op)
{
	struct rr_state_message state;
	uint64_t now_ns = rr_now_ns();

	rr_far_fill_state(far, op, &state);
	for (int32_t r = 0; r < far->world; r++) {
		struct rr_edge *edge = &far->edges[r];
		if (!edge->page || !is_due(edge, op, now_ns))
			continue;
		if (edge->state == RR_EDGE_IDLE && far->world <= DIAL_ALL_MAX)
			rr_far_want(far, r, 0); /* an error here is told by the operation that needs this edge */
		if (rr_far_say(edge, RR_FAR_STATE, 0, &state, sizeof(state)) != RR_OK)
			continue;
		rr_far_tell_neighbours(far, edge);
		tell_counts(far, edge);
		edge->told_op = op;
		edge->tell_every_ns = edge->tell_every_ns ? 2 * edge->tell_every_ns : TELL_AGAIN_NS;
		edge->tell_every_ns = edge->tell_every_ns < TELL_AGAIN_MAX_NS ? edge->tell_every_ns : TELL_AGAIN_MAX_NS;
		edge->tell_next_ns = now_ns + edge->tell_every_ns;
	}
}

/* ---- taken ---- */

void rr_far_note_done(struct rr_page *page, uint64_t op_done)
{
	if (op_done > rr_own64(&page->op_done))
		rr_publish64(&page->op_done, op_done);
}

/* By our clock; 0: never. */
static uint64_t moment(uint64_t age_ns, uint64_t now_ns)
{
	return age_ns < now_ns ? now_ns - age_ns : 0;
}

void rr_far_take_elsewhere(struct rr_page *page, const struct rr_state_message *state)
{
	rr_note64(&page->elsewhere.comm, state->else_comm);
	rr_note64(&page->elsewhere.op, state->else_op);
	rr_note64(&page->elsewhere.wait, state->else_wait);
	rr_note64(&page->elsewhere.process, state->else_process);
	rr_note64(&page->elsewhere.seen_ns, moment(state->else_quiet_ns, rr_now_ns()));
}

void rr_far_take_counts(struct rr_edge *edge, const struct rr_counts_message *counts)
{
	rr_note64(&edge->page->waiting.lacks, counts->lacks);
	if (edge->sent_told_ns && memcmp(edge->sent, counts->sent, sizeof(edge->sent)) == 0)
		return;
	memcpy(edge->sent, counts->sent, sizeof(edge->sent));
	edge->sent_told_ns = rr_now_ns();
}

uint32_t rr_far_lacks(const struct rr_far *far, int32_t peer, uint32_t channel, uint32_t received, uint64_t now_ns)
{
	const struct rr_edge *edge = &far->edges[peer];

	if (channel >= RR_CHANNELS_MAX || !edge->sent_told_ns || edge->sent[channel] == RR_FAR_NOT_KNOWN ||
	    now_ns < edge->sent_told_ns + LOST_NS)
		return 0;
	uint32_t more = edge->sent[channel] - received;
	return more <= INT32_MAX ? more : 0; /* told before it was received */
}

void rr_far_take_state(struct rr_far *far, struct rr_edge *edge, const struct rr_state_message *state)
{
	struct rr_page *page = edge->page;
	uint64_t now_ns = rr_now_ns();

	if (state->op)
		rr_far_told(far, edge->peer, state->op, &state->descriptor);
	rr_far_note_done(page, state->op_done);
	rr_note64(&page->position, state->position);
	rr_note64(&page->waiting.op, state->wait_op);
	rr_note64(&page->waiting.waits[0], state->waits[0]);
	rr_note64(&page->waiting.waits[1], state->waits[1]);
	rr_note64(&page->waiting.since_ns, moment(state->waited_ns, now_ns));
	rr_note64(&page->waiting.seen_ns, moment(state->quiet_ns, now_ns));
	rr_far_take_elsewhere(page, state);
	rr_note64(&page->pace.word, state->pace_word);
	rr_note64(&page->pace.span_ns, state->pace_span_ns);
	rr_note64(&page->pace.moved_ns, moment(state->pace_moved_ns, now_ns));
	rr_note64(&page->pace.seen_ns, moment(state->pace_age_ns, now_ns));
}
