/*
 * watch.c - what a waiting rank looks at, and how a communicator is lost.
 *
 * Every cause is found where it shows first and written to the finder's page; ranks that wait on the
 * finder adopt its record, so all raise the same cause.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "clock.h"
#include "comm.h"
#include "memory.h"
#include "order.h"
#include "status.h"

#define TELL_STATE_NS (50 * RR_NS_PER_MS)   /* waited: then far ranks are told what this one is in */
#define TELL_PACE_NS (1 * RR_NS_PER_S)      /* and then in any case: it may get on, and slowly */
#define CLAIM_NS (20 * RR_NS_PER_MS)        /* in which a rank of this node that found first says what */
#define CLAIM_LOOK_NS 200000                /* how often it is looked for */

/* ---- words ---- */

static const char *state_of_peer(struct rr_comm *comm, int32_t r, char *text, size_t size)
{
	struct rr_page *page = comm->pages[r];
	uint64_t done = rr_observe64(&page->op_done);
	uint64_t newest = 0;

	for (uint32_t i = 0; i < RR_ENTRY_COUNT; i++) {
		uint64_t op = rr_observe64(&page->entries[i]) >> 8;
		newest = op > newest ? op : newest;
	}
	if (newest <= done && !rr_shm_has(&comm->shm, r)) /* a mirror page knows only what was told */
		snprintf(text, size, "rank %d (pid %d on another node) has told of no later op", r, comm->pages[r]->pid);
	else if (newest <= done)
		snprintf(text, size, "rank %d (pid %d) is in user code, last finished op %llu", r, comm->pages[r]->pid,
			 (unsigned long long)done);
	else
		snprintf(text, size, "rank %d (pid %d) is in op %llu", r, comm->pages[r]->pid,
			 (unsigned long long)newest);
	return text;
}

void rr_watch_mismatch(struct rr_comm *comm, int32_t peer, uint64_t op)
{
	char ours[320], theirs[320];
	struct rr_page *page = comm->pages[peer];
	uint64_t entry = rr_observe64(&page->entries[op % RR_ENTRY_COUNT]);
	const struct rr_work *work = comm->first;

	const struct rr_descriptor *called = &page->descriptors[(entry & 0xff) % RR_DESCRIPTOR_COUNT];

	rr_descriptor_text(&work->plan->descriptor, called, ours, sizeof(ours));
	rr_descriptor_text(called, &work->plan->descriptor, theirs, sizeof(theirs));
	rr_fail(RR_ERR_MISMATCH, "ranks disagree in op %llu: rank %d called %s; rank %d called %s",
		(unsigned long long)op, comm->rank, ours, peer, theirs);
	rr_error *error = rr_error_here();
	error->peer = peer;
	error->op = (int64_t)op;
	strcpy(error->hint, called->device != work->plan->descriptor.device
		? "one rank keeps its vector in host memory, the other in GPU memory: all ranks of an operation must use the same, host or device"
		: called->costs != work->plan->descriptor.costs
		? "the ranks choose algorithms by different constants: give all of them one file (RDMARING_TUNING, init(tuning=)), or none"
		: "all ranks must make the same calls in the same order with equal count, dtype, op, root and algorithm");
}

/* What is the matter goes into a time-out's message, once that is found out. */
static void tell_time(struct rr_comm *comm, rr_error *error)
{
	size_t used = strlen(error->message);
	char where[96];

	if (!comm->first || error->collective[0]) /* a message's says it already */
		return;
	if (error->verdict.kind != RR_VERDICT_NONE)
		snprintf(error->message + used, sizeof(error->message) - used, ": %s", error->verdict.text);
	else if (error->peer >= 0)
		snprintf(error->message + used, sizeof(error->message) - used, ": all ranks entered; this rank waits in row %d for %s",
			 error->row, state_of_peer(comm, error->peer, where, sizeof(where)));
	if (error->verdict.kind != RR_VERDICT_NONE)
		error->peer = error->verdict.rank == comm->rank ? error->verdict.peer : error->verdict.rank;
}

/* ---- the end ---- */

static void quarantine_places(struct rr_comm *comm)
{
	for (int b = 0; b < RR_BUFFER_COUNT; b++) {
		const struct rr_place *place = &comm->engine.open.place[b];
		if (comm->engine.phase != RR_IDLE && place->reach == RR_REACH_REGION)
			rr_memory_quarantine(place->region); /* without memory for it the old pages stay: said in the docs */
	}
}

const char *rr_watch_transport(const struct rr_comm *comm, int32_t peer)
{
	if (peer < 0 || peer >= comm->world || !comm->engine.out[peer])
		return "shm";
	return comm->engine.out[peer]->ops->transport;
}

/* No NIC writes our memory any more. */
static void sever_far(struct rr_comm *comm)
{
	size_t world = (size_t)comm->world;
	struct rr_link **tables[4] = {comm->engine.out, comm->engine.in, comm->message_out, comm->message_in};

	for (int t = 0; t < 4; t++) {
		for (size_t i = 0; i < world * (t < 2 ? comm->options.channels : 1); i++) {
			struct rr_link *link = tables[t][i];
			if (link && link->ops->sever)
				link->ops->sever(link);
		}
	}
}

/*
 * Of several ranks of a node that find something at the same time, one is heard: who puts its number first into the
 * page of the node's first rank. False: another did, and its error is *error now.
 */
static bool claim(struct rr_comm *comm, rr_error *error)
{
	const struct rr_work *work = comm->first;
	struct timespec nap = {.tv_nsec = CLAIM_LOOK_NS};
	uint64_t until_ns = rr_now_ns() + CLAIM_NS;
	int32_t first = 0;

	while (!rr_shm_has(&comm->shm, first)) /* ourselves at last: a node that came apart has no rank 0 of it left */
		first++;
	uint32_t finder = rr_claim32(&comm->pages[first]->finder, (uint32_t)comm->rank + 1);
	if (!finder || finder > (uint32_t)comm->world || !rr_shm_has(&comm->shm, (int32_t)finder - 1))
		return true;
	int32_t r = (int32_t)finder - 1;
	/* It failed in an operation that we wait for; it may be stopped before it says why. */
	while (rr_observe64(&comm->pages[r]->op_done) < (work ? work->op : UINT64_MAX)) {
		if (rr_observe32(&comm->pages[r]->state) == RR_PAGE_FAILED) {
			rr_watch_take_over(comm, r, error);
			return false;
		}
		if (rr_now_ns() >= until_ns)
			return true;
		nanosleep(&nap, NULL);
	}
	return true;
}

/* An error of this rank's own gets its verdict, unless another was first to find one. */
static void decide(struct rr_comm *comm, const rr_error *found)
{
	bool own = found->verdict.kind == RR_VERDICT_NONE;

	comm->failure = *found;
	own = own && !rr_watch_explain_link(comm, &comm->failure);
	if (own && claim(comm, &comm->failure)) {
		comm->failure.rank = comm->rank;
		rr_judge(comm, comm->first, &comm->failure);
		if (comm->failure.status == RR_ERR_TIMEOUT || comm->failure.verdict.kind == RR_VERDICT_ORDER)
			tell_time(comm, &comm->failure);
	}
	comm->failure.rank = comm->rank;
}

void rr_watch_fail(struct rr_comm *comm, const rr_error *error)
{
	struct rr_work *work = comm->first;

	if (!comm->failed) {
		comm->failed = true;
		decide(comm, error);
		if (!comm->failure.transport[0])
			snprintf(comm->failure.transport, sizeof(comm->failure.transport), "%s", rr_watch_transport(comm, comm->failure.peer));
		if (work)
			snprintf(comm->failure.collective, sizeof(comm->failure.collective), "%s",
				 rr_collective_name(work->plan->descriptor.collective));
		comm->shm.page->error = comm->failure;
		/* After a time-out the other end of a cycle, whose time is over just so or later, still has to see it. */
		if (comm->judged && comm->failure.status != RR_ERR_TIMEOUT && comm->failure.verdict.kind != RR_VERDICT_ORDER)
			rr_judge_moves(comm);
		rr_publish32(&comm->shm.page->state, RR_PAGE_FAILED); /* pairs with adopt() */
		rr_comm_wake_all(comm);
		if (comm->far) {
			sever_far(comm);
			rr_far_tell_end(comm->far);
		}
		quarantine_places(comm);
	}
	if (comm->engine.phase != RR_IDLE && comm->engine.device->ops->settle &&
	    !comm->engine.device->ops->settle(comm->engine.device))
		strcpy(comm->failure.hint, "the GPU has not ended what it was given: it may still read and write the operation's arrays");
	if (comm->lists && !comm->lists->ops->drain(comm->lists))
		strcpy(comm->failure.hint, "the GPU has not ended what it was given: it may still read and write the operation's arrays");
	rr_engine_stop(&comm->engine);
	rr_keep_put_back(comm); /* nobody writes the operation's buffers any more */
	if (work && rr_own32(&work->state) == RR_WORK_RUNNING)
		rr_trace_operation(comm->engine.trace, work->op, work->plan->descriptor.collective,
				   work->plan->vector_bytes, work->started_ns, true);
	while (work) {
		struct rr_work *next = work->next;
		work->error = comm->failure;
		work->error.op = (int64_t)work->op;
		snprintf(work->error.collective, sizeof(work->error.collective), "%s",
			 rr_collective_name(work->plan->descriptor.collective));
		work->status = (rr_status)comm->failure.status;
		atomic_fetch_sub_explicit(&comm->unfinished, 1, memory_order_relaxed);
		rr_publish32(&work->state, RR_WORK_DONE);
		work = next;
	}
	comm->first = NULL;
	comm->last = NULL;
	rr_message_end(comm);
	rr_error_set(&comm->failure);
}

/* ---- looking ---- */

/* A peer that failed tells why; the root cause is passed on as it is. */
static void adopt(struct rr_comm *comm, int32_t r)
{
	rr_error error;

	rr_watch_take_over(comm, r, &error);
	if (comm->pages[r]->error.status == RR_ERR_TIMEOUT && comm->first && rr_judge_improves(comm, comm->first, &error.verdict))
		tell_time(comm, &error);
	rr_watch_fail(comm, &error);
}

static bool look_at_peer(struct rr_comm *comm, int32_t r, const struct rr_work *work)
{
	struct rr_page *page = comm->pages[r];
	uint32_t state = rr_observe32(&page->state); /* pairs with rr_watch_fail() */

	if (rr_observe64(&page->op_done) >= work->op)
		return false; /* it is through with this operation: not what we wait for */
	if (state == RR_PAGE_FAILED) {
		adopt(comm, r);
		return true;
	}
	if (state == RR_PAGE_CLOSED) {
		rr_fail(RR_ERR_PEER_CLOSED, "rank %d closed its communicator; rank %d is in op %llu (%s)", r,
			comm->rank, (unsigned long long)work->op, rr_collective_name(work->plan->descriptor.collective));
		rr_error_here()->peer = r;
		strcpy(rr_error_here()->hint, "a rank returned early: make the same calls on all ranks before close()");
		rr_watch_fail(comm, rr_error_here());
		return true;
	}
	uint64_t entry = rr_observe64(&page->entries[work->op % RR_ENTRY_COUNT]);
	if (entry >> 8 == work->op && rr_own32(&work->state) == RR_WORK_RUNNING &&
	    page->descriptors[(entry & 0xff) % RR_DESCRIPTOR_COUNT].hash != work->plan->descriptor.hash) {
		rr_watch_mismatch(comm, r, work->op);
		rr_watch_fail(comm, rr_error_here());
		return true;
	}
	return false;
}

static void look_at_time(struct rr_comm *comm, const struct rr_work *work)
{
	uint64_t now = rr_now_ns();

	if (now < work->deadline_ns)
		return;
	int32_t failed = rr_watch_find_failed(comm, 0);
	if (failed >= 0) { /* in a later operation: it has said what is the matter */
		adopt(comm, failed);
		return;
	}
	if (comm->far && rr_judge_doubts(comm, work))
		return;
	rr_fail(RR_ERR_TIMEOUT, "%s (op %llu) timed out after %.1f s",
		rr_collective_name(work->plan->descriptor.collective), (unsigned long long)work->op,
		(double)(now - work->started_ns) / 1e9);
	rr_error *error = rr_error_here();
	error->op = (int64_t)work->op;
	if (rr_own32(&work->state) == RR_WORK_RUNNING && !work->plan->mailbox) {
		error->peer = comm->engine.waiting_peer;
		error->row = comm->engine.waiting_row;
	}
	strcpy(error->hint, "look at the rank named; raise timeout_s (or RDMARING_TIMEOUT, in seconds) if it is only slow");
	rr_watch_fail(comm, error);
}

/* What far ranks say; and, when this rank has waited for a while, what it says to them. */
static int32_t look_far(struct rr_comm *comm, const struct rr_work *work, int32_t dead)
{
	int32_t lost = rr_far_look(comm->far);

	/* Once all peers of the plan have opened this operation alike, only who gets no further tells. */
	bool meeting = work->plan->mailbox || comm->engine.phase == RR_OPENING;
	uint64_t now_ns = rr_now_ns();
	bool waits = now_ns - rr_own64(&comm->shm.page->waiting.since_ns) > TELL_STATE_NS;
	bool long_under_way = now_ns - work->started_ns > TELL_PACE_NS;
	if ((meeting && now_ns - work->started_ns > TELL_STATE_NS) || waits || long_under_way)
		rr_far_tell_state(comm->far, work->op);
	return dead >= 0 ? dead : lost;
}

/* Its connection ended by silence, and somebody hears from its node. */
static void fail_cut(struct rr_comm *comm, int32_t peer, int32_t heard_by, const rr_link_facts *facts, const struct rr_work *work)
{
	char by[64] = "answers on another connection";

	if (heard_by != comm->rank)
		snprintf(by, sizeof(by), "is heard by rank %d", heard_by);
	rr_fail(RR_ERR_LINK, "the edge to rank %d (pid %d) is cut: its connection ended (%s), and its node %s %s; rank %d is in op %llu (%s)",
		peer, comm->pages[peer]->pid, rr_far_lost(comm->far, peer), facts->peer_host, by, comm->rank,
		(unsigned long long)work->op, rr_collective_name(work->plan->descriptor.collective));
	rr_error_here()->peer = peer;
	snprintf(rr_error_here()->transport, sizeof(rr_error_here()->transport), "%s", rr_watch_transport(comm, peer));
	strcpy(rr_error_here()->hint, "look at the network between just these two nodes: cable, switch port, filter rules, routes");
	rr_watch_fail(comm, rr_error_here());
}

static void fail_dead(struct rr_comm *comm, int32_t dead, const struct rr_work *work)
{
	char how[160];
	bool near = rr_shm_has(&comm->shm, dead);
	int32_t failed = near || rr_far_life(comm->far, dead) != RR_LIFE_LOST ? -1 : rr_watch_find_failed(comm, dead);
	rr_link_facts facts = {0};

	if (failed >= 0) { /* it has found out already why a node is silent, and no more answers questions */
		adopt(comm, failed);
		return;
	}
	if (!near) {
		int32_t heard_by = -1;
		rr_far_facts(comm->far, dead, &facts);
		if (rr_far_inquire(comm->far, dead, &heard_by) == RR_INQUIRY_LIVES) {
			fail_cut(comm, dead, heard_by, &facts, work);
			return;
		}
		snprintf(how, sizeof(how), "on %s died or was cut off: its connection ended (%s)", facts.peer_host,
			 rr_far_lost(comm->far, dead));
	}
	if (near)
		snprintf(how, sizeof(how), "died; its last finished op was %llu",
			 (unsigned long long)rr_observe64(&comm->pages[dead]->op_done));
	rr_fail(RR_ERR_PEER_DIED, "rank %d (pid %d) %s; rank %d is in op %llu (%s)", dead,
		near ? comm->shm.peers[dead].pid : comm->pages[dead]->pid, how, comm->rank, (unsigned long long)work->op,
		rr_collective_name(work->plan->descriptor.collective));
	rr_error_here()->peer = dead;
	strcpy(rr_error_here()->hint, near ? "see that rank's own output, and dmesg for the out-of-memory killer"
					   : "see that rank's own output; if it still runs, the network between the hosts is cut");
	rr_watch_fail(comm, rr_error_here());
}

static void look_at_operation(struct rr_comm *comm, const struct rr_work *work, int32_t dead)
{
	for (int32_t r = 0; r < comm->world; r++)
		if (r != comm->rank && look_at_peer(comm, r, work))
			return;
	if (dead >= 0 && rr_observe64(&comm->pages[dead]->op_done) < work->op) {
		fail_dead(comm, dead, work);
		return;
	}
	look_at_time(comm, work);
}

/* The end of a message that its peer, or time, has left behind. */
static void fail_message(struct rr_comm *comm, const struct rr_work *work, rr_status status)
{
	int32_t peer = work->message.peer;
	char what[120], where[96];

	rr_message_text(work, what, sizeof(what));
	if (status == RR_ERR_TIMEOUT)
		rr_fail(status, "%s timed out after %.1f s: %s", what, (double)(rr_now_ns() - work->started_ns) / 1e9,
			state_of_peer(comm, peer, where, sizeof(where)));
	else
		rr_fail(status, "rank %d (pid %d) %s; rank %d is in %s", peer, comm->pages[peer]->pid,
			status == RR_ERR_PEER_DIED ? "died" : "closed its communicator", comm->rank, what);
	rr_error_here()->peer = peer;
	rr_error_here()->op = (int64_t)work->message.serial;
	strcpy(rr_error_here()->collective, work->message.outgoing ? "send" : "recv");
	strcpy(rr_error_here()->hint, "every send to a rank needs a recv there, and every recv a send");
	rr_watch_fail(comm, rr_error_here());
}

/* What came before the peer's end is still to be had: true if that was so. */
static bool message_moved(struct rr_comm *comm)
{
	bool moved = false;

	return rr_message_progress(comm, &moved) < 0 || moved;
}

static void look_at_messages(struct rr_comm *comm, int32_t dead)
{
	for (int32_t r = 0; r < comm->world && !comm->failed; r++) {
		const struct rr_work *work = rr_message_turn(comm, r);
		uint32_t state;

		if (!work)
			continue;
		state = rr_observe32(&comm->pages[r]->state);
		if (state == RR_PAGE_FAILED) {
			adopt(comm, r);
			return;
		}
		if (state == RR_PAGE_CLOSED || r == dead) {
			if (!message_moved(comm))
				fail_message(comm, work, r == dead ? RR_ERR_PEER_DIED : RR_ERR_PEER_CLOSED);
			return;
		}
		if (rr_now_ns() >= work->deadline_ns)
			fail_message(comm, work, RR_ERR_TIMEOUT);
	}
}

void rr_watch_look(struct rr_comm *comm)
{
	struct rr_work *work = comm->first;
	const char *doomed = rr_comm_doomed(comm);
	int32_t dead;

	if (comm->failed)
		return;
	if (doomed) {
		rr_fail(RR_ERR_ABORTED, "rank %d aborted: %s", comm->rank, doomed);
		rr_watch_fail(comm, rr_error_here());
		return;
	}
	if (!rr_own32(&comm->unfinished))
		return;
	rr_judge_waits(comm);
	dead = rr_shm_look(&comm->shm);
	if (comm->far && work)
		dead = look_far(comm, work, dead);
	else if (comm->far) {
		int32_t lost = rr_far_look(comm->far);
		dead = dead >= 0 ? dead : lost;
	}
	if (work)
		look_at_operation(comm, work, dead);
	if (!comm->failed)
		look_at_messages(comm, dead);
}
