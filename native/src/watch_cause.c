/* watch_cause.c - the errors of other ranks that are the cause of this one's. */
#include <stdio.h>
#include <string.h>

#include "comm.h"
#include "order.h"
#include "status.h"

void rr_watch_take_over(const struct rr_comm *comm, int32_t r, rr_error *error)
{
	const struct rr_work *work = comm->first;
	const rr_verdict *verdict = &error->verdict;
	char message[sizeof(error->message)];

	*error = comm->pages[r]->error;
	error->message[sizeof(error->message) - 1] = 0;
	error->hint[sizeof(error->hint) - 1] = 0;
	if (error->status == RR_ERR_PEER_DIED || error->status == RR_ERR_PEER_CLOSED)
		return;
	if (error->status == RR_ERR_MISMATCH) {
		error->peer = error->peer == comm->rank ? r : error->peer;
		return;
	}
	if (error->status == RR_ERR_ABORTED) {
		error->peer = error->peer < 0 ? r : error->peer;
		return;
	}
	/* Its time is over, so is ours: in the same operation, and not for our sake. */
	if (error->status == RR_ERR_TIMEOUT && verdict->kind != RR_VERDICT_NONE && verdict->rank != comm->rank && work &&
	    verdict->op == (int64_t)work->op)
		return;
	snprintf(message, sizeof(message), "rank %d failed (%s): %.900s", r, rr_status_name((rr_status)error->status),
		 error->message);
	memcpy(error->message, message, sizeof(message));
	error->status = RR_ERR_PEER_FAILED;
	error->peer = r;
}

int32_t rr_watch_find_failed(const struct rr_comm *comm, int32_t first)
{
	for (int32_t i = 0; i < comm->world; i++) {
		int32_t r = (first + i) % comm->world;
		if (r != comm->rank && rr_observe32(&comm->pages[r]->state) == RR_PAGE_FAILED)
			return r;
	}
	return -1;
}

/* Of a link; or a peer that refuses connections: it has ended, or has closed the communicator. */
static bool may_be_its_peers(const struct rr_comm *comm, const rr_error *error)
{
	int32_t peer = error->peer;

	if (peer < 0 || peer >= comm->world || peer == comm->rank)
		return false;
	if (error->status == RR_ERR_PEER_DIED)
		return !rr_shm_has(&comm->shm, peer) && rr_far_state(comm->far, peer) == RR_EDGE_JOINING;
	return error->status == RR_ERR_LINK;
}

bool rr_watch_explain_link(struct rr_comm *comm, rr_error *error)
{
	int32_t peer = error->peer, failed;

	if (!may_be_its_peers(comm, error))
		return false;
	if (comm->far) /* a rank that had no processor meanwhile has not read why */
		rr_far_look(comm->far);
	failed = rr_watch_find_failed(comm, peer);
	if (failed >= 0) {
		rr_watch_take_over(comm, failed, error);
		return true;
	}
	if (rr_observe32(&comm->pages[peer]->state) == RR_PAGE_CLOSED) {
		rr_fail(RR_ERR_PEER_CLOSED, "rank %d closed its communicator, and its links ended before rank %d had read all", peer,
			comm->rank);
		rr_error_here()->peer = peer;
		rr_error_here()->op = error->op;
		strcpy(rr_error_here()->hint, "a rank returned early: make the same calls on all ranks before close()");
		*error = *rr_error_here();
	}
	return false;
}
