/*
 * judge_time.c - before a time-out is judged: what ranks of other nodes know.
 *
 * Whoever's time is over first would else say less than others know: of a rank of another node, whether it is stopped. So
 * it asks once, and waits a bounded time where what it could say is weak; and a time-out of another rank that says less
 * than is seen from here gives way.
 */
#include <stdlib.h>

#include "clock.h"
#include "comm.h"
#include "status.h"
#include "verdict.h"

#define DOUBT_NS (300 * RR_NS_PER_MS) /* added to a time-out at most */

/* What would be said now; true: others may know better. */
static bool look(struct rr_comm *comm, const struct rr_work *work, rr_verdict *out)
{
	rr_rank_seen *seen = rr_judge_see(comm);
	bool weak;

	if (!seen) {
		rr_verdict_clear(out);
		return false;
	}
	rr_verdict_search(seen, comm->world, comm->rank, work->op, out);
	weak = rr_verdict_is_weak(out, seen, comm->world);
	free(seen);
	return weak;
}

bool rr_judge_doubts(struct rr_comm *comm, const struct rr_work *work)
{
	uint64_t now_ns = rr_now_ns();
	rr_verdict verdict;

	if (comm->doubt_op == work->op && now_ns >= comm->doubt_until_ns)
		return false;
	if (!look(comm, work, &verdict))
		return false;
	if (comm->doubt_op != work->op) {
		comm->doubt_op = work->op;
		comm->doubt_until_ns = now_ns + DOUBT_NS;
		rr_far_ask(comm->far, verdict.kind == RR_VERDICT_NEVER_ENTERED ? verdict.rank : -1);
	}
	return true;
}

bool rr_judge_improves(struct rr_comm *comm, const struct rr_work *work, rr_verdict *verdict)
{
	rr_verdict own;

	if (verdict->kind != RR_VERDICT_NONE && (verdict->kind != RR_VERDICT_NEVER_ENTERED || verdict->op != (int64_t)work->op))
		return false;
	look(comm, work, &own);
	if (own.kind == RR_VERDICT_NONE || (verdict->kind != RR_VERDICT_NONE && own.kind != RR_VERDICT_STOPPED))
		return false;
	own.found_by = comm->rank;
	*verdict = own;
	return true;
}
