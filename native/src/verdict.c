/* verdict.c - from the records of all ranks to one class and one place; see verdict.h. */
#include "verdict.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "status.h"

#define NS_PER_S 1e9

const char *rr_verdict_name(int32_t kind)
{
	switch ((rr_verdict_kind)kind) {
	case RR_VERDICT_NONE: return "none";
	case RR_VERDICT_DIED: return "died";
	case RR_VERDICT_HOST_GONE: return "host_gone";
	case RR_VERDICT_LINK_DOWN: return "link_down";
	case RR_VERDICT_MISMATCH: return "mismatch";
	case RR_VERDICT_ORDER: return "order";
	case RR_VERDICT_NEVER_ENTERED: return "never_entered";
	case RR_VERDICT_STOPPED: return "stopped";
	case RR_VERDICT_NO_CREDIT: return "no_credit";
	case RR_VERDICT_SLOW: return "slow";
	}
	return "invalid";
}

/* ---- words ---- */

void rr_verdict_clear(rr_verdict *verdict)
{
	memset(verdict, 0, sizeof(*verdict));
	verdict->rank = verdict->peer = verdict->row = verdict->collective = verdict->found_by = -1;
	verdict->op = -1;
}

void rr_verdict_note(rr_verdict *verdict, const char *format, ...)
{
	size_t used = strlen(verdict->evidence);
	va_list arguments;

	if (used && used + 2 < sizeof(verdict->evidence)) {
		memcpy(verdict->evidence + used, "; ", 3);
		used += 2;
	}
	va_start(arguments, format);
	vsnprintf(verdict->evidence + used, sizeof(verdict->evidence) - used, format, arguments);
	va_end(arguments);
}

static bool inside(const rr_rank_seen *rank, uint64_t op)
{
	return rank->op_entered >= op && rank->op_done < op;
}

/* A rank of another node that said it was in an operation: it has ended that without telling. */
static bool is_stale(const rr_rank_seen *rank)
{
	return (rank->life == RR_LIFE_UNKNOWN || rank->life == RR_LIFE_MUTE) && ((!rank->wait_kind[0] && !rank->wait_kind[1]) || rank->quiet_ns > RR_STALE_NS);
}

/* "in op 7 (all_reduce)", "in user code, last finished op 6". */
static const char *place_of(const rr_rank_seen *rank, char *text, size_t size)
{
	if (rank->op_entered > rank->op_done && is_stale(rank))
		snprintf(text, size, "in user code or stopped (or kept inside a call), and has told of no op after %llu", (unsigned long long)rank->op_entered);
	else if (rank->op_entered > rank->op_done && rank->collective < 0) /* told by a neighbour, who does not know more */
		snprintf(text, size, "in op %llu", (unsigned long long)rank->op_entered);
	else if (rank->op_entered > rank->op_done)
		snprintf(text, size, "in op %llu (%s)", (unsigned long long)rank->op_entered,
			 rr_collective_name(rank->collective));
	else
		snprintf(text, size, "in user code%s, last finished op %llu", rank->life == RR_LIFE_UNKNOWN || rank->life == RR_LIFE_MUTE ? " or stopped (or kept inside a call)" : "",
			 (unsigned long long)rank->op_done);
	return text;
}

static const char *who_of(const rr_rank_seen *rank, char *text, size_t size)
{
	snprintf(text, size, "rank %d (pid %d%s%.39s)", rank->rank, rank->pid, rank->host[0] ? " on " : "", rank->host);
	return text;
}

/* "; rank 0 waits for it in row 3 of op 7 (all_reduce)": it may be in another operation than who found it. */
static void add_waiter(char *text, size_t size, const rr_verdict *verdict, const rr_rank_seen *peer)
{
	size_t used = strlen(text);
	char row[24] = "", name[40] = "";
	int32_t collective = -1;

	if (!peer || peer->op_entered <= peer->op_done)
		return;
	if (verdict->row >= 0)
		snprintf(row, sizeof(row), "row %d of ", verdict->row);
	if (peer->collective >= 0)
		collective = peer->collective;
	else if ((int64_t)peer->op_entered == verdict->op) /* told by a neighbour, who does not know more */
		collective = verdict->collective;
	if (collective >= 0)
		snprintf(name, sizeof(name), " (%s)", rr_collective_name(collective));
	snprintf(text + used, size - used, "; rank %d waits for it in %sop %llu%s", peer->rank, row, (unsigned long long)peer->op_entered,
		 name);
}

static void say(rr_verdict *out, const rr_rank_seen *rank, const rr_rank_seen *peer)
{
	char who[96], place[128];
	const char *life = rank->life == RR_LIFE_FROZEN ? "frozen with its control group"
			   : rank->life == RR_LIFE_MUTE ? "silent while its node answers (no rank there can look)"
							: "stopped by a signal or a debugger";

	who_of(rank, who, sizeof(who));
	place_of(rank, place, sizeof(place));
	switch ((rr_verdict_kind)out->kind) {
	case RR_VERDICT_DIED:
		snprintf(out->text, sizeof(out->text), "died: %s has ended; it was %s", who, place);
		break;
	case RR_VERDICT_HOST_GONE:
		snprintf(out->text, sizeof(out->text), "host gone: the node of %s does not answer; it was %s", who, place);
		break;
	case RR_VERDICT_STOPPED:
		snprintf(out->text, sizeof(out->text), "stopped: %s is %s, %s", who, life, place);
		break;
	case RR_VERDICT_NEVER_ENTERED:
		if (rank->page_state == RR_PAGE_CLOSED)
			snprintf(out->text, sizeof(out->text), "never entered: %s closed its communicator, last finished op %llu", who,
				 (unsigned long long)rank->op_done);
		else
			snprintf(out->text, sizeof(out->text), "never entered: %s is %s", who, place);
		break;
	case RR_VERDICT_NO_CREDIT:
		snprintf(out->text, sizeof(out->text), "no credit: %s is %s, runs, and takes nothing", who, place);
		break;
	case RR_VERDICT_LINK_DOWN:
		snprintf(out->text, sizeof(out->text), "link down: the edge %d->%d%s%s carries nothing, and both ends live", rank->rank,
			 peer ? peer->rank : -1, out->transport[0] ? " over " : "", out->transport);
		return;
	case RR_VERDICT_SLOW:
		snprintf(out->text, sizeof(out->text), "slow: all ranks get on, and the edge %d->%d%s%s holds the others up", rank->rank,
			 peer ? peer->rank : -1, out->transport[0] ? " over " : "", out->transport);
		return;
	case RR_VERDICT_MISMATCH: case RR_VERDICT_ORDER: case RR_VERDICT_NONE:
		return; /* made where both sides are known */
	}
	add_waiter(out->text, sizeof(out->text), out, peer);
}

/* Where `peer` waits for `rank`. */
static int32_t row_of(const rr_rank_seen *peer, const rr_rank_seen *rank)
{
	for (int side = 0; side < 2; side++)
		if (peer->wait_kind[side] && peer->wait_peer[side] == rank->rank)
			return peer->wait_row[side];
	return -1;
}

void rr_verdict_set(rr_verdict *out, rr_verdict_kind kind, const rr_rank_seen *rank, const rr_rank_seen *peer, uint64_t op)
{
	out->kind = (int32_t)kind;
	out->rank = rank->rank;
	out->peer = peer ? peer->rank : -1;
	out->row = peer ? row_of(peer, rank) : -1;
	out->op = (int64_t)op;
	if (peer && inside(peer, op) && peer->op_entered == op)
		out->collective = peer->collective;
	else if (rank->op_entered == op)
		out->collective = rank->collective;
	say(out, rank, peer);
}

/* ---- the search ---- */

struct search {
	const rr_rank_seen *seen;
	int32_t world;
	uint64_t op;
	int32_t *waiter; /* [world] who waits for it, by the first way found; -1: not reached */
	int32_t *queue;
	int32_t queued;
};

static void reach(struct search *search, int32_t rank, int32_t waiter)
{
	if (rank < 0 || rank >= search->world || search->waiter[rank] >= 0 || !search->seen[rank].known)
		return;
	search->waiter[rank] = waiter;
	search->queue[search->queued++] = rank;
}

/* Of a rank that is reached: does the chain end here? */
static rr_verdict_kind end_at(const struct search *search, int32_t r)
{
	const rr_rank_seen *rank = &search->seen[r];

	if (rank->page_state == RR_PAGE_CLOSED && rank->op_done < search->op)
		return RR_VERDICT_NEVER_ENTERED; /* its process may well have ended since */
	switch ((rr_life)rank->life) {
	case RR_LIFE_ENDED: return RR_VERDICT_DIED;
	case RR_LIFE_LOST: return RR_VERDICT_HOST_GONE;
	case RR_LIFE_STOPPED: case RR_LIFE_FROZEN: return RR_VERDICT_STOPPED;
	case RR_LIFE_UNKNOWN: case RR_LIFE_RUNS: case RR_LIFE_MUTE: break;
	}
	if (rank->op_entered < search->op && (rank->op_entered <= rank->op_done || is_stale(rank)))
		return RR_VERDICT_NEVER_ENTERED;
	return rank->life == RR_LIFE_MUTE && rank->op_entered >= search->op ? RR_VERDICT_STOPPED : RR_VERDICT_NONE;
}

/* In the operation, and neither waiting nor stopped. */
static bool is_busy(const struct search *search, int32_t r)
{
	const rr_rank_seen *rank = &search->seen[r];

	return rank->op_entered > rank->op_done && rank->life == RR_LIFE_RUNS &&
	       ((!rank->wait_kind[0] && !rank->wait_kind[1]) || rank->quiet_ns > RR_QUIET_NS);
}

/*
 * In two communicators the processes wait for each other: this rank is not in our operation, for it waits in another.
 * Since who waits for it here does so it could only wait on: what it told within that time goes. Not of its beginning: the
 * last word of the operation before may have come late.
 */
static bool waits_elsewhere(const rr_rank_seen *rank, const rr_rank_seen *waiter)
{
	uint64_t limit_ns = waiter->waited_ns > RR_STALE_NS + RR_QUIET_NS ? waiter->waited_ns - RR_QUIET_NS : RR_STALE_NS;

	/* In the page of one that closed stays what it waited in when its time was over there. */
	if (rank->life == RR_LIFE_RUNS || rank->page_state == RR_PAGE_CLOSED)
		limit_ns = RR_ELSEWHERE_NS;
	else if (rank->life != RR_LIFE_UNKNOWN && rank->life != RR_LIFE_MUTE)
		limit_ns = 0;
	return rank->else_kind && rank->else_comm != rank->comm && rank->else_quiet_ns < limit_ns;
}

static const rr_rank_seen *by_process(const struct search *search, uint64_t process)
{
	for (int32_t r = 0; r < search->world; r++)
		if (search->seen[r].known && process && search->seen[r].process == process)
			return &search->seen[r];
	return NULL;
}

/*
 * r is absent from our operation and waits in another communicator. Follow the processes: if they come back to one that
 * waits in ours, that is a cycle.
 */
static bool find_cycle(const struct search *search, int32_t r, rr_verdict *out)
{
	const rr_rank_seen *first = &search->seen[r], *waiter = &search->seen[search->waiter[r]], *at = first;
	size_t used;

	if (!waits_elsewhere(first, waiter))
		return false;
	used = (size_t)snprintf(out->text, sizeof(out->text), "order: rank %d waits in communicator %08llx, op %llu, for rank %d",
				waiter->rank, (unsigned long long)waiter->comm & 0xffffffff, (unsigned long long)search->op, r);
	for (int32_t hops = 0; hops < search->world; hops++) {
		const rr_rank_seen *next = by_process(search, at->else_process);
		if (!next || !waits_elsewhere(at, waiter))
			break;
		if (used < sizeof(out->text))
			used += (size_t)snprintf(out->text + used, sizeof(out->text) - used,
						 ", which waits in communicator %08llx, op %llu, for rank %d",
						 (unsigned long long)at->else_comm & 0xffffffff, (unsigned long long)at->else_op, next->rank);
		if (inside(next, search->op)) { /* it waits in ours: round we are */
			rr_verdict_set(out, RR_VERDICT_ORDER, first, waiter, search->op);
			rr_verdict_note(out, "all ranks must use their communicators in the same order; ranks are those of %08llx",
					(unsigned long long)waiter->comm & 0xffffffff);
			return true;
		}
		at = next;
	}
	out->text[0] = 0;
	return false;
}

/* Of an edge p->r: r waits for data, and p has sent what it could. */
static bool edge_is_stuck(const struct search *search, int32_t r)
{
	const rr_rank_seen *to = &search->seen[r], *from;

	if (to->wait_kind[0] != RR_WAIT_DATA || to->wait_peer[0] < 0 || to->wait_peer[0] >= search->world)
		return false;
	from = &search->seen[to->wait_peer[0]];
	if (!from->known)
		return false;
	if (from->op_done >= to->op_entered || (from->wait_kind[1] == RR_WAIT_CREDIT && from->wait_peer[1] == r))
		return true;
	return from->wait_kind[1] == RR_WAIT_READERS && from->wait_peer[1] == r;
}

/* In our operation, or in an earlier one that others are through with. */
static bool waits_within(const struct search *search, const rr_rank_seen *rank)
{
	return rank->op_entered > rank->op_done && rank->op_entered <= search->op && rank->wait_kind[0] == RR_WAIT_DATA;
}

/* Of two that wait for data. */
static bool is_behind(const rr_rank_seen *one, const rr_rank_seen *other)
{
	if (one->op_entered != other->op_entered)
		return one->op_entered < other->op_entered;
	return one->wait_row[0] < other->wait_row[0] || (one->wait_row[0] == other->wait_row[0] && one->rank < other->rank);
}

/* What one rank has sent another has not got, and nothing of it is on the way. */
static bool find_lost(const struct search *search, rr_verdict *out)
{
	const rr_rank_seen *to = NULL;

	for (int32_t r = 0; r < search->world; r++) {
		const rr_rank_seen *rank = &search->seen[r];
		bool lacks = rank->known && rank->lacks && rank->lacks_peer >= 0 && rank->lacks_peer < search->world;
		if (lacks && waits_within(search, rank) && (!to || is_behind(rank, to)))
			to = rank;
	}
	if (!to)
		return false;
	rr_verdict_set(out, RR_VERDICT_LINK_DOWN, &search->seen[to->lacks_peer], to, to->op_entered);
	snprintf(out->text, sizeof(out->text), "link down: the edge %d->%d has lost what was sent on it, and both ends live", to->lacks_peer, to->rank);
	rr_verdict_note(out, "rank %d waits in row %d for data of rank %d, which has sent %u slice%s more than came", to->rank,
			to->wait_row[0], to->lacks_peer, to->lacks, to->lacks > 1 ? "s" : "");
	return true;
}

/* Bytes of its edges moved lately. */
static bool gets_on(const rr_rank_seen *rank)
{
	return rank->pace_peer >= 0 && rank->pace_age_ns < RR_STALE_NS && rank->pace_moved_ns < RR_STALE_NS;
}

/*
 * Every rank that is reached waits, and in a circle: what one has sent does not arrive. Where a sender waits for credit of
 * just that receiver it is that edge; else behind it lies whoever is furthest behind.
 */
static void find_edge(const struct search *search, rr_verdict *out)
{
	int32_t found = -1;
	bool sure = false;

	for (int32_t i = 0; i < search->queued; i++) {
		int32_t r = search->queue[i];
		const rr_rank_seen *rank = &search->seen[r];
		bool stuck = edge_is_stuck(search, r);
		if (!waits_within(search, rank) || (sure && !stuck))
			continue;
		if (found < 0 || (stuck && !sure) || is_behind(rank, &search->seen[found]))
			found = r;
		sure = sure || stuck;
	}
	if (found < 0)
		return;
	const rr_rank_seen *to = &search->seen[found], *from = &search->seen[to->wait_peer[0]];
	if (gets_on(to) || (gets_on(from) && from->pace_peer == to->rank))
		return;
	rr_verdict_set(out, RR_VERDICT_LINK_DOWN, from, to, to->op_entered);
	rr_verdict_note(out, "rank %d waits in row %d for data of rank %d, which %s", to->rank, to->wait_row[0], from->rank,
			sure ? "has sent it" : "waits itself, and no rank is further behind");
}

static int urgency(rr_verdict_kind kind)
{
	return kind == RR_VERDICT_DIED || kind == RR_VERDICT_HOST_GONE ? 3 : kind == RR_VERDICT_STOPPED ? 2 : kind != RR_VERDICT_NONE;
}

static void follow(struct search *search, rr_verdict *out)
{
	rr_verdict_kind best = RR_VERDICT_NONE;
	int32_t found = -1, busy = -1;
	bool doubt = false; /* a rank of which it is not known what it waits in */

	for (int32_t i = 0; i < search->queued; i++) {
		int32_t r = search->queue[i];
		const rr_rank_seen *rank = &search->seen[r];
		rr_verdict_kind kind = i ? end_at(search, r) : RR_VERDICT_NONE;

		if (kind == RR_VERDICT_NEVER_ENTERED && find_cycle(search, r, out))
			return;
		if (urgency(kind) > urgency(best) || (kind != RR_VERDICT_NONE && urgency(kind) == urgency(best) && r < found)) {
			best = kind;
			found = r;
		}
		if (kind != RR_VERDICT_NONE)
			continue;
		doubt = doubt || (rank->life == RR_LIFE_UNKNOWN && rank->op_done < search->op && !rank->wait_kind[0] && !rank->wait_kind[1]);
		if (i && is_busy(search, r))
			busy = busy < 0 || rank->quiet_ns > search->seen[busy].quiet_ns ? r : busy; /* others may only lack a processor */
		for (int side = 0; side < 2; side++)
			if (rank->wait_kind[side])
				reach(search, rank->wait_peer[side], r);
	}
	if (best == RR_VERDICT_NONE && find_lost(search, out))
		return;
	if (best == RR_VERDICT_NONE) {
		rr_verdict_slow(search->seen, search->world, search->op, out);
		if (out->kind != RR_VERDICT_NONE)
			return;
	}
	if (best == RR_VERDICT_NONE && busy >= 0) {
		best = RR_VERDICT_NO_CREDIT;
		found = busy;
	}
	if (best == RR_VERDICT_NONE) {
		if (!doubt)
			find_edge(search, out);
		return;
	}
	rr_verdict_set(out, best, &search->seen[found], &search->seen[search->waiter[found]], search->op);
}

/* The others that are missing, too. */
static void note_missing(const struct search *search, rr_verdict *out)
{
	int named = 0;
	char place[128];

	for (int32_t r = 0; r < search->world && out->kind == RR_VERDICT_NEVER_ENTERED && named < 4; r++) {
		if (r == out->rank || !search->seen[r].known || end_at(search, r) != RR_VERDICT_NEVER_ENTERED)
			continue;
		rr_verdict_note(out, "rank %d has not entered it either: %s", r, place_of(&search->seen[r], place, sizeof(place)));
		named++;
	}
}

bool rr_verdict_is_weak(const rr_verdict *verdict, const rr_rank_seen *seen, int32_t world)
{
	int32_t r = verdict->rank;

	if (verdict->kind == RR_VERDICT_NONE)
		return true;
	if (verdict->kind == RR_VERDICT_NEVER_ENTERED) /* a neighbour may see it, and it may wait in another communicator */
		return seen[r].life == RR_LIFE_UNKNOWN && seen[r].page_state == RR_PAGE_RUNNING;
	if (verdict->kind != RR_VERDICT_LINK_DOWN)
		return false;
	/* Rests on all ranks' waiting: one that told so and no more may be stopped since. */
	for (r = 0; r < world; r++)
		if (seen[r].life == RR_LIFE_UNKNOWN && seen[r].op_entered > seen[r].op_done && seen[r].quiet_ns > RR_QUIET_NS)
			return true;
	return false;
}

void rr_verdict_search(const rr_rank_seen *seen, int32_t world, int32_t from, uint64_t op, rr_verdict *out)
{
	struct search search = {.seen = seen, .world = world, .op = op};

	rr_verdict_clear(out);
	if (from < 0 || from >= world)
		return;
	search.waiter = calloc((size_t)world * 2, sizeof(int32_t)); /* gcc 14 does not see that the loop below sets all */
	if (!search.waiter)
		return;
	search.queue = search.waiter + world;
	for (int32_t r = 0; r < world; r++)
		search.waiter[r] = -1;
	reach(&search, from, from);
	follow(&search, out);
	note_missing(&search, out);
	if (out->peer >= 0 && inside(&seen[out->peer], op))
		rr_verdict_note(out, "rank %d has waited for %.1f s", out->peer, (double)seen[out->peer].waited_ns / NS_PER_S);
	free(search.waiter);
}
