/* verbs_post.c - work requests out, completions in; see verbs_edge.h. */
#include <arpa/inet.h>
#include <string.h>
#include <time.h>

#include "clock.h"
#include "order.h"
#include "status.h"
#include "verbs_edge.h"
#include "verbs_words.h"

#define COMPLETIONS_A_POLL 16
#define LINGER_NAP_NS 50000

#define WR_HELD (1ull << 55)    /* names registered memory */
#define WR_RECEIVE (1ull << 54)
#define WR_QUEUE_SHIFT 56u
#define WR_COUNT_MASK ((1ull << 53) - 1)

bool rr_verbs_room(const struct rr_verbs_edge *edge, uint32_t queue, uint32_t requests)
{
	const struct rr_verbs_queue *of = &edge->queues[queue];

	return of->posted - of->completed + requests <= of->depth;
}

/* Whether an event of the device is the cause of a call's failure: it is this thread's record then. */
static bool device_tells(struct rr_verbs_edge *edge, enum rr_mendable *mendable)
{
	return rr_domain_look(edge->domain, edge->rail.port, edge, true, &edge->events_seen, mendable) < 0;
}

static void post_failed(struct rr_verbs_edge *edge, const struct rr_verbs_queue *queue, const char *call, int result)
{
	enum rr_mendable mendable = RR_MENDABLE_NOT;

	/* While it is made anew, what this was for is sent again; and events are heard when the queue pairs go. */
	if (edge->state == RR_VERBS_MENDING || !device_tells(edge, &mendable)) {
		rr_fail(RR_ERR_LINK, "%s on queue pair 0x%x %s failed: %s", call, queue->qp->qp_num, edge->what,
			rr_verbs_error(result));
		strcpy(rr_error_here()->hint, "see dmesg for the device's driver");
	}
	rr_verbs_befallen(edge, mendable);
}

void rr_verbs_post_line(struct rr_verbs_edge *edge, uint32_t queue, uint64_t offset, uint32_t bytes, uint32_t imm,
			struct rr_ibv_send_wr *before, bool held)
{
	struct rr_verbs_queue *on = &edge->queues[queue];
	uint32_t requests = before ? 2 : 1;
	bool signalled = held || on->unsignalled + requests >= on->depth / 4;
	struct rr_ibv_sge sge = {.addr = (uint64_t)(uintptr_t)(edge->outbound + offset), .length = bytes,
				 .lkey = edge->outbound_mr->lkey};
	struct rr_ibv_send_wr wr = {.sg_list = &sge, .num_sge = bytes ? 1 : 0, .imm_data = htonl(imm),
				    .opcode = imm ? RR_IBV_WR_RDMA_WRITE_WITH_IMM : RR_IBV_WR_RDMA_WRITE};
	struct rr_ibv_send_wr *bad = NULL;
	int result;

	on->posted += requests;
	wr.wr_id = (uint64_t)queue << WR_QUEUE_SHIFT | on->posted | (held ? WR_HELD : 0);
	wr.send_flags = (signalled ? RR_IBV_SEND_SIGNALED : 0) | (bytes && bytes <= on->inline_bytes ? RR_IBV_SEND_INLINE : 0);
	wr.wr.rdma.remote_addr = edge->peer_address + offset;
	wr.wr.rdma.rkey = edge->peer_key;
	if (before)
		before->next = &wr;
	result = edge->verbs->post_send(on->qp, before ? before : &wr, &bad);
	if (result) {
		post_failed(edge, on, "posting a send", result);
		return;
	}
	on->unsignalled = signalled ? 0 : on->unsignalled + requests;
	edge->domain->under_way += held;
	edge->held += held;
}

rr_status rr_verbs_post_receives(struct rr_verbs_edge *edge, uint32_t queue, uint32_t count)
{
	struct rr_verbs_queue *on = &edge->queues[queue];
	struct rr_ibv_recv_wr requests[COMPLETIONS_A_POLL];
	struct rr_ibv_recv_wr *bad = NULL;

	while (count) {
		uint32_t batch = count < COMPLETIONS_A_POLL ? count : COMPLETIONS_A_POLL;
		for (uint32_t i = 0; i < batch; i++)
			requests[i] = (struct rr_ibv_recv_wr){.wr_id = (uint64_t)queue << WR_QUEUE_SHIFT | WR_RECEIVE,
							      .next = i + 1 < batch ? &requests[i + 1] : NULL};
		int result = edge->verbs->post_recv(on->qp, requests, &bad);
		if (result) {
			post_failed(edge, on, "posting a receive", result);
			return edge->failed ? rr_error_set(&edge->failure) : RR_ERR_LINK;
		}
		on->receives += batch;
		count -= batch;
	}
	return RR_OK;
}

/* The first failed completion that is no flush is the cause; a flush alone is told only if nothing else comes. */
static void completion_failed(struct rr_verbs_edge *edge, const struct rr_ibv_wc *wc)
{
	uint32_t queue = (uint32_t)(wc->wr_id >> WR_QUEUE_SHIFT);
	const struct rr_verbs_queue *on = &edge->queues[queue];
	bool flush = wc->status == RR_IBV_WC_WR_FLUSH_ERR;
	struct rr_ibv_qp_attr attributes = {.qp_state = -1};
	struct rr_ibv_qp_init_attr made_with;
	struct rr_verbs_where where = {.peer = edge->peer, .device = edge->rail.device, .port = edge->rail.port,
				       .pair = &edge->pair, .our_number = on->qp->qp_num, .their_number = on->peer_number};

	if (edge->state == RR_VERBS_MENDING ? flush || !edge->mend.by_flush : edge->failed && (flush || !edge->failed_by_flush))
		return;
	where.state = edge->verbs->query_qp(on->qp, &attributes, RR_IBV_QP_STATE, &made_with) == 0 ? attributes.qp_state : -1;
	rr_verbs_fail(&where, wc, wc->wr_id & WR_RECEIVE ? "receiving from" : "writing to");
	if (edge->state == RR_VERBS_MENDING && rr_verbs_wc_mendable(wc->status) == RR_MENDABLE_HERE) {
		edge->mend.cause = *rr_error_here(); /* better than what was known: a flush, or the peer's word */
		edge->mend.by_flush = false;
		return;
	}
	if (rr_verbs_trouble(edge, rr_verbs_wc_mendable(wc->status))) {
		edge->mend.by_flush = flush;
		return;
	}
	edge->failed = false; /* a flush makes way */
	rr_verbs_lose(edge);
	edge->failed_by_flush = flush;
	edge->failed_of_peer = rr_verbs_wc_of_peer(wc->status);
}

static void flush_failed(struct rr_verbs_edge *edge, const struct rr_ibv_wc *wc)
{
	edge->flush_posted = false;
	if (edge->state == RR_VERBS_MENDING || (wc->status == RR_IBV_WC_WR_FLUSH_ERR && edge->failed))
		return; /* it is made anew, and asked for again; or the edge was severed */
	rr_fail(RR_ERR_LINK, "the READ that flushes GPU memory on device %s failed: %s (status %d)", edge->rail.device,
		rr_verbs_wc_name(wc->status), wc->status);
	strcpy(rr_error_here()->hint, "RDMARING_VERBS_GPU_DIRECT=3 moves GPU vectors through host memory instead");
	rr_verbs_befallen(edge, rr_verbs_wc_mendable(wc->status));
}

static void completed(struct rr_verbs_edge *edge, const struct rr_ibv_wc *wc)
{
	uint32_t queue = (uint32_t)(wc->wr_id >> WR_QUEUE_SHIFT);

	if (wc->wr_id & RR_WR_FLUSH) {
		if (wc->status != RR_IBV_WC_SUCCESS)
			flush_failed(edge, wc);
		else
			rr_verbs_gdr_flushed(edge);
		return;
	}
	if (wc->wr_id & WR_HELD && edge->held) {
		edge->held--;
		edge->domain->under_way--;
	}
	if (wc->wr_id & WR_RECEIVE)
		edge->queues[queue].receives--;
	if (wc->status != RR_IBV_WC_SUCCESS) {
		completion_failed(edge, wc);
		return;
	}
	if (wc->wr_id & WR_RECEIVE) {
		edge->queues[queue].spent++;
		edge->mend.received++;
		rr_verbs_arrived(edge, wc);
	} else {
		edge->queues[queue].completed = wc->wr_id & WR_COUNT_MASK;
	}
}

static void note_sent(struct rr_verbs_edge *edge)
{
	if ((int64_t)(edge->credited - edge->sent_whole) > 0)
		edge->sent_whole = edge->credited;
	while (edge->sent_whole != edge->serial &&
	       edge->queues[edge->sent_whole % edge->settings.qps].completed >=
		       edge->request_of[edge->sent_whole % RR_RING_COUNT])
		edge->sent_whole++;
}

/* RR_OK: there was something; RR_AGAIN: nothing. */
static rr_status poll_once(struct rr_verbs_edge *edge)
{
	struct rr_ibv_wc entries[COMPLETIONS_A_POLL];
	int count = edge->verbs->poll_cq(edge->cq, COMPLETIONS_A_POLL, entries);

	if (count < 0) {
		enum rr_mendable mendable = RR_MENDABLE_NOT;
		if (edge->state == RR_VERBS_MENDING)
			return RR_AGAIN; /* the queue goes soon */
		if (!device_tells(edge, &mendable))
			rr_fail(RR_ERR_LINK, "polling completions %s failed", edge->what);
		rr_verbs_befallen(edge, mendable);
		return edge->failed ? rr_error_set(&edge->failure) : RR_AGAIN;
	}
	for (int i = 0; i < count; i++)
		completed(edge, &entries[i]);
	for (uint32_t q = 0; count && q < edge->settings.qps; q++) {
		uint32_t spent = edge->queues[q].spent;
		edge->queues[q].spent = 0;
		if (spent && !edge->failed && edge->state == RR_VERBS_UP)
			rr_verbs_post_receives(edge, q, spent);
	}
	return count ? RR_OK : RR_AGAIN;
}

bool rr_verbs_drained(struct rr_verbs_edge *edge)
{
	uint32_t left = edge->held;

	while (edge->cq && poll_once(edge) == RR_OK)
		;
	for (uint32_t q = 0; q < edge->settings.qps; q++)
		left += edge->queues[q].receives;
	return left == 0;
}

/* Events are read only here: each look is a system call. */
static void arm(struct rr_verbs_edge *edge)
{
	struct rr_ibv_cq *cq;
	void *user;
	unsigned int events = 0;
	int result;

	while (edge->verbs->get_cq_event(edge->channel, &cq, &user) == 0)
		events++;
	if (events)
		edge->verbs->ack_cq_events(edge->cq, events);
	result = edge->verbs->req_notify_cq(edge->cq, 0);
	if (result) {
		enum rr_mendable mendable = RR_MENDABLE_NOT;
		if (!device_tells(edge, &mendable))
			rr_fail(RR_ERR_LINK, "arming completions %s failed: %s", edge->what, rr_verbs_error(result));
		rr_verbs_befallen(edge, mendable);
		return;
	}
	edge->armed = true;
}

/*
 * Well before a driver sleeps the queue is armed, and then polled once more: what comes after that poll makes the
 * channel readable.
 */
rr_status rr_verbs_poll(struct rr_verbs_edge *edge)
{
	rr_status status;

	edge->idle_polls++;
	for (;;) {
		while ((status = poll_once(edge)) == RR_OK)
			edge->armed = false; /* the event for it is in the channel, or on its way there */
		if (status < 0 || edge->failed || edge->state != RR_VERBS_UP || edge->armed || edge->idle_polls < rr_far_passes(edge->far) / 2)
			break;
		arm(edge);
	}
	note_sent(edge);
	return status < 0 ? status : RR_OK;
}

/* A request without bytes that tells when all before it on the queue pair are acknowledged. */
static void post_fence(struct rr_verbs_edge *edge, uint32_t queue)
{
	struct rr_verbs_queue *on = &edge->queues[queue];
	struct rr_ibv_send_wr wr = {.opcode = RR_IBV_WR_RDMA_WRITE, .send_flags = RR_IBV_SEND_SIGNALED};
	struct rr_ibv_send_wr *bad = NULL;
	int result;

	wr.wr.rdma.remote_addr = edge->peer_address;
	wr.wr.rdma.rkey = edge->peer_key;
	wr.wr_id = (uint64_t)queue << WR_QUEUE_SHIFT | ++on->posted;
	on->unsignalled = 0;
	result = edge->verbs->post_send(on->qp, &wr, &bad);
	if (result)
		post_failed(edge, on, "posting a send", result);
}

static bool all_ended(struct rr_verbs_edge *edge)
{
	bool ended = true;

	for (uint32_t q = 0; q < edge->settings.qps; q++) {
		if (edge->queues[q].unsignalled && rr_verbs_room(edge, q, 1))
			post_fence(edge, q);
		ended = ended && edge->queues[q].completed == edge->queues[q].posted;
	}
	return ended;
}

void rr_verbs_linger(struct rr_verbs_edge *edge, uint64_t limit_ns)
{
	const struct rr_page *peer = rr_far_page(edge->far, edge->peer);
	const struct timespec nap = {.tv_nsec = LINGER_NAP_NS};
	uint64_t until = rr_now_ns() + limit_ns;

	if (edge->state != RR_VERBS_UP && edge->state != RR_VERBS_MENDING)
		return;
	while (!edge->failed && (edge->state == RR_VERBS_MENDING || !all_ended(edge)) && rr_now_ns() < until) {
		rr_far_look(edge->far);
		if (rr_observe32(&peer->state) != RR_PAGE_RUNNING || rr_far_state(edge->far, edge->peer) != RR_EDGE_UP)
			return; /* it waits for nothing from here */
		if ((edge->state == RR_VERBS_MENDING ? rr_verbs_mend(edge) : rr_verbs_poll(edge)) < 0)
			return;
		rr_verbs_send_waiting(edge);
		nanosleep(&nap, NULL);
	}
}
