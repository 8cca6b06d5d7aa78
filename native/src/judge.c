/*
 * judge.c - what this rank waits in, for others to read; and the verdict of its errors.
 *
 * The driver of a communicator writes what it waits in whenever it looks around: nothing is written by slice. Into the
 * pages of the process's other communicators it writes that, too, so that a rank of theirs sees why this one is absent.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "comm.h"
#include "order.h"
#include "process.h"
#include "status.h"
#include "verdict.h"

#define TELL_FAR_NS (50 * RR_NS_PER_MS) /* how often a waiting rank serves its process's other communicators */
#define JOIN_FAR_NS (2 * RR_NS_PER_MS) /* and while connections there are being made, of which each end waits for the other */

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static struct rr_comm *list; /* communicators of this process that have a page */

static void after_fork_in_child(void)
{
	pthread_mutex_init(&list_lock, NULL);
	list = NULL;
}

static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, after_fork_in_child);
}

void rr_judge_begin(struct rr_comm *comm)
{
	pthread_once(&fork_once, watch_forks);
	pthread_mutex_lock(&list_lock);
	comm->judged_next = list;
	list = comm;
	pthread_mutex_unlock(&list_lock);
}

void rr_judge_end(struct rr_comm *comm)
{
	pthread_mutex_lock(&list_lock);
	struct rr_comm **link = &list;
	while (*link && *link != comm)
		link = &(*link)->judged_next;
	if (*link)
		*link = comm->judged_next;
	pthread_mutex_unlock(&list_lock);
	rr_judge_pace_end(comm);
}

/* ---- what this rank waits in ---- */

/* Both sides' words; false: it waits for nobody. */
static bool find_waits(struct rr_comm *comm, const struct rr_work *work, uint64_t waits[2])
{
	waits[0] = waits[1] = 0;
	if (work && rr_own32(&work->state) == RR_WORK_RUNNING) {
		if (work->plan->mailbox) {
			int32_t peer = (comm->rank + comm->mailbox.checked) % comm->world;
			waits[0] = rr_wait_word(RR_WAIT_TINY, -1, peer);
		} else {
			waits[0] = comm->engine.waits[0];
			waits[1] = comm->engine.waits[1];
			if (!waits[0] && !waits[1] && comm->engine.waiting_peer >= 0) /* the last pass came no further than the links */
				waits[0] = rr_wait_word(comm->engine.phase == RR_OPENING ? RR_WAIT_ENTRY : RR_WAIT_DATA, comm->engine.waiting_row,
							comm->engine.waiting_peer);
		}
	}
	for (int32_t r = 0; r < comm->world && !waits[0] && !waits[1]; r++) {
		const struct rr_work *message = rr_message_turn(comm, r);
		if (message && message->message.outgoing)
			waits[1] = rr_wait_word(RR_WAIT_SEND, -1, r);
		else if (message)
			waits[0] = rr_wait_word(RR_WAIT_RECEIVE, -1, r);
	}
	return waits[0] || waits[1];
}

uint32_t rr_judge_sent(void *user, int32_t peer, uint32_t channel)
{
	const struct rr_comm *comm = user;
	struct rr_link *out = channel < comm->edge_channels[peer] ? comm->engine.out[(size_t)channel * (size_t)comm->world + (size_t)peer] : NULL;

	return out && out->ops->outstanding && !out->ops->outstanding(out) ? (uint32_t)out->sent : UINT32_MAX;
}

/* It waits for data that the peer has sent, and that is not on the way any more. */
static uint64_t find_lack(const struct rr_comm *comm, uint64_t now_ns)
{
	const struct rr_link *in = comm->engine.waits_link;
	uint32_t more = 0;

	if (!in || !comm->far || rr_shm_has(&comm->shm, in->peer))
		return 0;
	for (uint32_t channel = 0; channel < comm->edge_channels[in->peer] && !more; channel++)
		if (comm->engine.in[(size_t)channel * (size_t)comm->world + (size_t)in->peer] == in)
			more = rr_far_lacks(comm->far, in->peer, channel, (uint32_t)in->sent, now_ns);
	return more ? (uint64_t)more << 32 | ((uint32_t)in->peer + 1) : 0;
}

/* Ranks of other nodes are told over the other communicator's own connections, which nobody else serves meanwhile. */
static void tell_far(struct rr_comm *other, uint64_t now_ns)
{
	uint64_t pause_ns = other->far && rr_far_joins(other->far) ? JOIN_FAR_NS : TELL_FAR_NS;

	if (!other->far || now_ns < other->judged_told_ns + pause_ns || !rr_drive_try(other))
		return;
	other->judged_told_ns = now_ns;
	if (!other->failed) {
		rr_far_look(other->far);
		rr_far_tell_state(other->far, 0);
	}
	rr_drive_leave(other);
}

static void tell_elsewhere(struct rr_comm *comm, uint64_t op, uint64_t wait, uint64_t now_ns)
{
	int32_t peer = (int32_t)(uint32_t)wait;
	uint64_t process = peer >= 0 && peer < comm->world ? comm->pages[peer]->process : 0;

	pthread_mutex_lock(&list_lock);
	for (struct rr_comm *other = list; other; other = other->judged_next) {
		struct rr_elsewhere *told = &other->shm.page->elsewhere;
		rr_note64(&told->comm, comm->shm.page->comm);
		rr_note64(&told->op, op);
		rr_note64(&told->wait, wait);
		rr_note64(&told->process, process);
		rr_publish64(&told->seen_ns, now_ns);
		if (other != comm)
			tell_far(other, now_ns);
	}
	pthread_mutex_unlock(&list_lock);
}

void rr_judge_waits(struct rr_comm *comm)
{
	const struct rr_work *work = comm->first;
	struct rr_waiting *told = &comm->shm.page->waiting;
	uint64_t now_ns = rr_now_ns(), waits[2], op = work ? work->op : 0;
	uint64_t position = rr_own64(&comm->shm.page->position);

	bool waits_for_somebody = find_waits(comm, work, waits);
	rr_judge_pace(comm, waits, now_ns);
	if (!waits_for_somebody)
		return;
	if (rr_own64(&told->op) != op || rr_own64(&told->waits[0]) != waits[0] || rr_own64(&told->waits[1]) != waits[1] ||
	    comm->judged_position != position) {
		comm->judged_position = position;
		rr_note64(&told->since_ns, now_ns);
		rr_note64(&told->waits[0], waits[0]);
		rr_note64(&told->waits[1], waits[1]);
		rr_publish64(&told->op, op);
	}
	rr_note64(&told->lacks, find_lack(comm, now_ns));
	rr_publish64(&told->seen_ns, now_ns);
	tell_elsewhere(comm, op, waits[0] ? waits[0] : waits[1], now_ns);
	comm->judged = true;
}

void rr_judge_moves(struct rr_comm *comm)
{
	comm->judged = false;
	pthread_mutex_lock(&list_lock);
	for (struct rr_comm *other = list; other; other = other->judged_next)
		rr_note64(&other->shm.page->elsewhere.wait, 0);
	pthread_mutex_unlock(&list_lock);
}

/* ---- records of all ranks ---- */

static void see(struct rr_comm *comm, int32_t r, rr_rank_seen *out)
{
	const struct rr_page *page = comm->pages[r];

	rr_page_seen(page, rr_now_ns(), out);
	out->rank = r;
	if (r == comm->rank) {
		out->life = RR_LIFE_RUNS;
	} else if (rr_shm_has(&comm->shm, r)) {
		out->pid = comm->shm.peers[r].pid;
		out->life = rr_shm_gone(&comm->shm, r) ? RR_LIFE_ENDED : rr_process_life(out->pid, 0);
	} else {
		rr_link_facts facts = {0};
		rr_far_facts(comm->far, r, &facts);
		memcpy(out->host, facts.peer_host, sizeof(out->host));
		rr_far_see(comm->far, r, rr_now_ns(), out);
	}
}

bool rr_judge_neighbour(void *user, int32_t peer, struct rr_neighbour *out)
{
	struct rr_comm *comm = user;
	rr_rank_seen seen;

	if (peer != comm->rank && !rr_shm_has(&comm->shm, peer))
		return false;
	see(comm, peer, &seen);
	*out = (struct rr_neighbour){.life = seen.life, .quiet_ns = seen.quiet_ns, .op_done = seen.op_done, .op_entered = seen.op_entered};
	return true;
}

rr_rank_seen *rr_judge_see(struct rr_comm *comm)
{
	rr_rank_seen *seen = calloc((size_t)comm->world, sizeof(*seen));

	for (int32_t r = 0; seen && r < comm->world; r++)
		see(comm, r, &seen[r]);
	return seen;
}

/* ---- verdicts by the kind of error ---- */

/* A rank is named by the finder: of a death, a lost host, a closed communicator. */
static void name_rank(const rr_rank_seen *seen, int32_t world, int32_t culprit, rr_verdict_kind kind, uint64_t op, rr_verdict *out)
{
	const rr_rank_seen *waiter = NULL;

	for (int32_t r = 0; r < world && !waiter; r++)
		for (int side = 0; side < 2; side++)
			if (seen[r].wait_kind[side] && seen[r].wait_peer[side] == culprit && seen[r].op_entered == op)
				waiter = &seen[r];
	rr_verdict_set(out, kind, &seen[culprit], waiter, op);
}

/*
 * Whoever differs from most is named; of equal parties the one without the lowest rank. Only ranks that have entered
 * count.
 */
static void name_odd(const rr_rank_seen *seen, struct rr_comm *comm, const rr_error *error, uint64_t op, rr_verdict *out)
{
	int32_t odd = error->peer, other = comm->rank;
	int votes[2] = {0, 0};

	for (int32_t r = 0; r < comm->world; r++) {
		if (seen[r].op_entered != op)
			continue;
		votes[0] += seen[r].descriptor == seen[comm->rank].descriptor;
		votes[1] += seen[r].descriptor == seen[error->peer].descriptor;
	}
	if (votes[1] > votes[0] || (votes[0] == votes[1] && odd < other)) {
		odd = comm->rank;
		other = error->peer;
	}
	for (int32_t r = 0; r < comm->world && seen[odd].descriptor != seen[other].descriptor; r++) {
		if (seen[r].op_entered != op)
			continue;
		odd = seen[r].descriptor == seen[odd].descriptor && r < odd ? r : odd;
		other = seen[r].descriptor == seen[other].descriptor && r < other ? r : other;
	}
	rr_verdict_set(out, RR_VERDICT_MISMATCH, &seen[odd], &seen[other], op);
	if (seen[odd].descriptor != seen[other].descriptor)
		snprintf(out->text, sizeof(out->text), "mismatch: in op %llu rank %d called %.200s; rank %d called %.200s",
			 (unsigned long long)op, odd, seen[odd].call, other, seen[other].call);
	else
		snprintf(out->text, sizeof(out->text), "mismatch: %.480s", error->message);
}

/* Of send() and recv(), which count by pair and not by operation. */
static void name_message_peer(const rr_rank_seen *seen, const struct rr_comm *comm, const rr_error *error, rr_verdict *out)
{
	const rr_rank_seen *peer = &seen[error->peer];
	bool sends = strcmp(error->collective, "send") == 0;
	rr_verdict_kind kind = error->status == RR_ERR_PEER_DIED ? RR_VERDICT_DIED : RR_VERDICT_NEVER_ENTERED;

	if (peer->life == RR_LIFE_STOPPED || peer->life == RR_LIFE_FROZEN)
		kind = RR_VERDICT_STOPPED;
	rr_verdict_set(out, kind, peer, &seen[comm->rank], 0);
	out->op = error->op;
	out->row = -1;
	if (kind == RR_VERDICT_NEVER_ENTERED)
		snprintf(out->text, sizeof(out->text), "never entered: rank %d (pid %d) %s message %lld with rank %d", peer->rank, peer->pid,
			 sends ? "has not received" : "has not sent", (long long)error->op, comm->rank);
	rr_verdict_note(out, "%.500s", error->message);
}

/* Both ends find it, each by its own error: they name the edge alike, lower rank first. */
static void name_edge(const rr_rank_seen *seen, const struct rr_comm *comm, const rr_error *error, uint64_t op, rr_verdict *out)
{
	int32_t low = error->peer < comm->rank ? error->peer : comm->rank;
	int32_t high = low == comm->rank ? error->peer : comm->rank;

	snprintf(out->transport, sizeof(out->transport), "%s", error->transport[0] ? error->transport : rr_watch_transport(comm, error->peer));
	rr_verdict_set(out, RR_VERDICT_LINK_DOWN, &seen[low], &seen[high], op);
	snprintf(out->text, sizeof(out->text), "link down: the edge between ranks %d and %d over %s failed while both ends live", low,
		 high, out->transport);
	rr_verdict_note(out, "%.600s", error->message);
}

/* Several nodes went silent at once: it is this one that is cut off. */
static void name_own_node(const rr_rank_seen *seen, const struct rr_comm *comm, const rr_error *error, uint64_t op, rr_verdict *out)
{
	rr_verdict_set(out, RR_VERDICT_HOST_GONE, &seen[comm->rank], &seen[error->peer], op);
	snprintf(out->text, sizeof(out->text), "host gone: no other node answers the node of rank %d (pid %d)", comm->rank,
		 seen[comm->rank].pid);
	rr_verdict_note(out, "%.600s", error->message);
}

static void judge(struct rr_comm *comm, const rr_rank_seen *seen, const rr_error *error, uint64_t op, rr_verdict *out)
{
	int32_t peer = error->peer >= 0 && error->peer < comm->world && error->peer != comm->rank ? error->peer : -1;
	rr_life life = peer >= 0 ? (rr_life)seen[peer].life : RR_LIFE_UNKNOWN;

	if (peer >= 0 && (strcmp(error->collective, "send") == 0 || strcmp(error->collective, "recv") == 0)) {
		name_message_peer(seen, comm, error, out);
		return;
	}
	switch ((rr_status)error->status) {
	case RR_ERR_PEER_DIED:
		if (life == RR_LIFE_LOST && rr_far_inquire(comm->far, peer, NULL) == RR_INQUIRY_ALONE)
			name_own_node(seen, comm, error, op, out);
		else if (peer >= 0)
			name_rank(seen, comm->world, peer, life == RR_LIFE_LOST ? RR_VERDICT_HOST_GONE : RR_VERDICT_DIED, op, out);
		return;
	case RR_ERR_PEER_CLOSED:
		/* Its time may have been over first, in the other communicator of a cycle. */
		rr_verdict_search(seen, comm->world, comm->rank, op, out);
		if (out->kind == RR_VERDICT_ORDER)
			return;
		rr_verdict_clear(out);
		if (peer >= 0)
			name_rank(seen, comm->world, peer, RR_VERDICT_NEVER_ENTERED, op, out);
		return;
	case RR_ERR_MISMATCH:
		if (peer >= 0)
			name_odd(seen, comm, error, op, out);
		return;
	case RR_ERR_LINK:
		if (life == RR_LIFE_ENDED || life == RR_LIFE_LOST)
			name_rank(seen, comm->world, peer, life == RR_LIFE_LOST ? RR_VERDICT_HOST_GONE : RR_VERDICT_DIED, op, out);
		else if (peer >= 0)
			name_edge(seen, comm, error, op, out);
		return;
	case RR_ERR_TIMEOUT:
		rr_verdict_search(seen, comm->world, comm->rank, op, out);
		return;
	case RR_OK: case RR_AGAIN: case RR_ERR_ARGUMENT: case RR_ERR_NO_MEMORY: case RR_ERR_UNSUPPORTED: case RR_ERR_SCHEDULE:
	case RR_ERR_PROTOCOL: case RR_ERR_CORRUPT: case RR_ERR_PEER_FAILED: case RR_ERR_ABORTED: case RR_ERR_CLOSED:
	case RR_ERR_FORKED: case RR_ERR_SYSTEM: case RR_ERR_SETUP: case RR_ERR_DEVICE:
		return; /* the error says it all */
	}
}

static void add_edge(const struct rr_comm *comm, rr_verdict *verdict)
{
	int32_t other = verdict->rank == comm->rank ? verdict->peer : verdict->peer == comm->rank ? verdict->rank : -1;

	if (!verdict->transport[0] && other >= 0 && other < comm->world && comm->engine.out[other])
		snprintf(verdict->transport, sizeof(verdict->transport), "%s", comm->engine.out[other]->ops->transport);
}

void rr_judge(struct rr_comm *comm, const struct rr_work *work, rr_error *error)
{
	rr_rank_seen *seen = rr_judge_see(comm);

	rr_verdict_clear(&error->verdict);
	if (!seen) /* without memory the error goes without a verdict */
		return;
	judge(comm, seen, error, work ? work->op : 0, &error->verdict);
	error->verdict.found_by = comm->rank;
	if (error->verdict.kind != RR_VERDICT_NONE)
		add_edge(comm, &error->verdict);
	free(seen);
}
