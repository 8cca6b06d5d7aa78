/*
 * verbs_setup.c - how an edge over verbs comes up, and goes.
 *
 *   COLD --want--> WANTED --control connection up--> MADE --their parameters--> CONNECTED --their READY--> UP
 *                            memory, queue pairs in INIT      RTR, RTS; READY sent
 *                            with all receives posted;
 *                            parameters sent
 *
 * Nothing is sent on a queue pair before the peer's READY: then its receives are posted and it is in RTR. From UP an edge may go
 * to MENDING and back: verbs_mend.c.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

#include "clock.h"
#include "forked.h"
#include "memory.h"
#include "order.h"
#include "status.h"
#include "verbs_edge.h"

#define PAGE_BYTES 4096u
#define BLAME_NS (500 * RR_NS_PER_MS) /* in which the peer's own record of a failure, or its death, is told */
#define ENDED_NS (3 * RR_NS_PER_S) /* more than the peer waits for acknowledgements before it goes */
#define PASSES_A_LOOK 32u /* at a device's events: a clock is read for it, which is slow on some machines */

/* What is asked of a queue pair, best first: a device may refuse much. */
static const struct {
	uint32_t inline_bytes, sges;
} wishes[] = {{RR_EDGE_LINE_BYTES, RR_PIECES_MAX}, {RR_EDGE_LINE_BYTES, 4}, {sizeof(struct rr_data), 4}, {0, 4}, {0, 1}};

/* ---- failure ---- */

void rr_verbs_lose(struct rr_verbs_edge *edge)
{
	rr_error *error = rr_error_here();

	if (edge->failed)
		return;
	rr_verbs_attend(edge, false);
	edge->failed = true;
	edge->failed_ns = rr_now_ns();
	edge->failed_of_peer = false;
	edge->failed_by_flush = false;
	error->peer = edge->peer;
	snprintf(error->transport, sizeof(error->transport), "verbs");
	edge->failure = *error;
}

rr_status rr_verbs_health(struct rr_verbs_edge *edge)
{
	if (!edge->failed)
		return RR_OK;
	if (edge->failed_of_peer && rr_now_ns() - edge->failed_ns < BLAME_NS)
		return RR_AGAIN;
	return rr_error_set(&edge->failure);
}

void rr_verbs_look(struct rr_verbs_edge *edge)
{
	if (edge->state < RR_VERBS_MADE || edge->state == RR_VERBS_SEVERED || (edge->failed && !edge->failed_of_peer))
		return;
	if (!edge->armed && !edge->failed && ++edge->passes % PASSES_A_LOOK)
		return;
	enum rr_mendable mendable = RR_MENDABLE_NOT;
	if (!edge->domain || rr_domain_look(edge->domain, edge->rail.port, edge, false, &edge->events_seen, &mendable) == RR_OK)
		return;
	if (edge->state == RR_VERBS_MENDING &&
	    (mendable == RR_MENDABLE_HERE || (mendable == RR_MENDABLE_ELSEWHERE && rr_verbs_movable(edge)))) {
		rr_verbs_mend_event(edge, mendable);
		return;
	}
	if (rr_verbs_trouble(edge, mendable))
		return;
	edge->failed = false;
	rr_verbs_lose(edge);
}

rr_status rr_verbs_waiting(struct rr_verbs_edge *edge)
{
	rr_status status = rr_verbs_health(edge);
	uint32_t state = rr_observe32(&rr_far_page(edge->far, edge->peer)->state);

	if (status != RR_OK || state == RR_PAGE_RUNNING || state == RR_PAGE_SETUP)
		return status < 0 ? status : RR_AGAIN;
	/* What it sent before may be on its way; and whoever fails in the operation that we are in is the watch's to tell. */
	if (!edge->ended_ns)
		edge->ended_ns = rr_now_ns();
	if (rr_now_ns() - edge->ended_ns < ENDED_NS)
		return RR_AGAIN;
	rr_fail(RR_ERR_LINK, "rank %d %s before all that it had sent arrived", edge->peer,
		state == RR_PAGE_CLOSED ? "closed its communicator" : "failed in a later operation");
	strcpy(rr_error_here()->hint, "look at that rank's own error, and for packets that are lost between the ranks");
	rr_verbs_lose(edge);
	return rr_error_set(&edge->failure);
}

/* ---- made ---- */

rr_status rr_verbs_memory(struct rr_verbs_edge *edge)
{
	uint64_t lines = (uint64_t)RR_RING_COUNT * RR_EDGE_LINE_BYTES;
	uint64_t slots = edge->slot_bytes * edge->slot_count;
	rr_status status;
	void *memory;

	if (edge->inbound)
		return RR_OK;
	edge->opens_at = lines;
	edge->tinies_at = edge->opens_at + RR_EDGE_OPENS * RR_EDGE_OPEN_BYTES;
	edge->flush_at = edge->tinies_at + 2 * RR_EDGE_TINY_BYTES;
	edge->slots_at = (edge->flush_at + RR_CACHE_LINE + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
	edge->area_bytes = edge->slots_at + slots;
	status = rr_memory_available(2 * edge->area_bytes, "slots of a link");
	if (status < 0)
		return status;
	/* Shared: a fork must not copy these pages away from under the device. */
	memory = rr_own_map(NULL, 2 * edge->area_bytes, -1, RR_CHILD_EMPTY);
	if (memory == MAP_FAILED)
		return rr_fail(RR_ERR_NO_MEMORY, "no %llu bytes for the slots of a link: %s",
			       (unsigned long long)(2 * edge->area_bytes), strerror(errno));
	rr_pin_own(&edge->areas, memory, 2 * edge->area_bytes);
	edge->inbound = memory;
	edge->outbound = edge->inbound + edge->area_bytes;
	return RR_OK;
}

rr_status rr_verbs_refused(const struct rr_verbs_edge *edge, const char *what)
{
	return rr_fail(RR_ERR_LINK, "device %s gives no %s for the edge %s: %s", edge->rail.device, what, edge->what,
		       strerror(errno));
}

uint32_t rr_verbs_sends_of(const struct rr_verbs_edge *edge)
{
	int most = edge->domain->attributes.max_qp_wr;

	return most > 0 && (uint32_t)most < RR_EDGE_SENDS ? (uint32_t)most : RR_EDGE_SENDS;
}

uint32_t rr_verbs_receives_of(uint32_t queue)
{
	return queue == 0 ? RR_EDGE_RECEIVES : RR_EDGE_RECEIVES_MORE;
}

rr_status rr_verbs_make_queue(struct rr_verbs_edge *edge, uint32_t q)
{
	struct rr_verbs_queue *queue = &edge->queues[q];
	struct rr_ibv_qp_init_attr made;
	rr_status status;

	for (size_t w = 0; !queue->qp && w < sizeof(wishes) / sizeof(wishes[0]); w++) {
		int most = edge->domain->attributes.max_sge;
		made = (struct rr_ibv_qp_init_attr){.qp_context = edge, .send_cq = edge->cq, .recv_cq = edge->cq,
						    .qp_type = RR_IBV_QPT_RC};
		made.cap.max_send_wr = rr_verbs_sends_of(edge);
		made.cap.max_recv_wr = rr_verbs_receives_of(q);
		made.cap.max_send_sge = most > 0 && (uint32_t)most < wishes[w].sges ? (uint32_t)most : wishes[w].sges;
		made.cap.max_recv_sge = 1;
		made.cap.max_inline_data = wishes[w].inline_bytes;
		queue->qp = edge->verbs->create_qp(edge->domain->pd, &made);
	}
	if (!queue->qp)
		return rr_verbs_refused(edge, "queue pair");
	queue->depth = made.cap.max_send_wr < RR_EDGE_SENDS ? made.cap.max_send_wr : RR_EDGE_SENDS;
	queue->inline_bytes = made.cap.max_inline_data;
	queue->sge_max = made.cap.max_send_sge < RR_PIECES_MAX ? made.cap.max_send_sge : RR_PIECES_MAX;
	if (queue->depth < RR_EDGE_SENDS_MIN)
		return rr_fail(RR_ERR_LINK, "device %s allows %u requests a queue pair: at least %u are needed", edge->rail.device,
			       queue->depth, RR_EDGE_SENDS_MIN);
	if (getrandom(&queue->psn, sizeof(queue->psn), GRND_NONBLOCK) != sizeof(queue->psn))
		queue->psn = (uint32_t)rr_now_ns();
	queue->psn &= RR_PSN_MASK;
	status = rr_qp_init(edge->verbs, queue->qp, edge->rail.port, edge->what);
	return status < 0 ? status : rr_verbs_post_receives(edge, q, rr_verbs_receives_of(q));
}

static rr_status make(struct rr_verbs_edge *edge)
{
	rr_status status = rr_verbs_memory(edge);

	if (status == RR_OK)
		status = rr_verbs_take_device(edge);
	for (uint32_t q = 0; status == RR_OK && q < edge->settings.qps; q++)
		status = rr_verbs_make_queue(edge, q);
	return status; /* what was made goes with the edge */
}

/* ---- messages ---- */

void rr_verbs_fill_parameters(const struct rr_verbs_edge *edge, enum rr_verbs_message kind, struct rr_verbs_parameters *out)
{
	memset(out, 0, sizeof(*out));
	out->magic = RR_VERBS_MAGIC;
	out->kind = kind;
	out->qps = edge->settings.qps;
	out->slot_count = edge->slot_count;
	out->slot_bytes = edge->slot_bytes;
	out->address = (uint64_t)(uintptr_t)edge->inbound;
	out->bytes = edge->area_bytes;
	out->key = edge->inbound_mr->rkey;
	out->serial = (uint32_t)edge->serial_start;
	memcpy(out->gid, edge->pair.our_gid.gid, sizeof(out->gid));
	out->lid = edge->rail.lid;
	out->port = edge->rail.port;
	for (uint32_t q = 0; q < edge->settings.qps; q++) {
		out->numbers[q] = edge->queues[q].qp->qp_num;
		out->psns[q] = edge->queues[q].psn;
	}
}

/* All that the peer said, before any of it is used. */
static rr_status check_parameters(const struct rr_verbs_edge *edge, const struct rr_verbs_parameters *theirs)
{
	if (theirs->qps != edge->settings.qps)
		return rr_fail(RR_ERR_SETUP, "verbs.qps is %u on rank %d and %u on rank %d: it must be equal", edge->settings.qps,
			       edge->rank, theirs->qps, edge->peer);
	if (theirs->slot_bytes != edge->slot_bytes || theirs->slot_count != edge->slot_count)
		return rr_fail(RR_ERR_SETUP, "slots are %u x %llu bytes on rank %d and %u x %llu on rank %d: they must be equal",
			       edge->slot_count, (unsigned long long)edge->slot_bytes, edge->rank, theirs->slot_count,
			       (unsigned long long)theirs->slot_bytes, edge->peer);
	if (theirs->bytes != edge->area_bytes || theirs->address + theirs->bytes < theirs->address ||
	    theirs->serial != (uint32_t)edge->serial_start)
		return rr_fail(RR_ERR_PROTOCOL, "rank %d lays out its link in another way: is another version at the other end?",
			       edge->peer);
	if (theirs->kind == RR_VERBS_PARAMETERS && memcmp(theirs->gid, edge->pair.their_gid.gid, sizeof(theirs->gid)) != 0)
		return rr_fail(RR_ERR_SETUP, "rank %d uses another GID than it told at the beginning: did its addresses change?",
			       edge->peer);
	for (uint32_t q = 0; q < theirs->qps; q++)
		if (theirs->numbers[q] > RR_PSN_MASK || theirs->psns[q] > RR_PSN_MASK)
			return rr_fail(RR_ERR_PROTOCOL, "rank %d has a queue pair 0x%x with serial 0x%x: both have 24 bits",
				       edge->peer, theirs->numbers[q], theirs->psns[q]);
	return RR_OK;
}

rr_status rr_verbs_connect_queues(struct rr_verbs_edge *edge, const struct rr_verbs_parameters *theirs)
{
	rr_status status = check_parameters(edge, theirs);

	memcpy(edge->pair.their_gid.gid, theirs->gid, sizeof(theirs->gid));
	edge->pair.their_lid = theirs->lid;
	for (uint32_t q = 0; status == RR_OK && q < edge->settings.qps; q++) {
		struct rr_verbs_queue *queue = &edge->queues[q];
		queue->peer_number = theirs->numbers[q];
		status = rr_qp_rtr(edge->verbs, queue->qp, edge->rail.port, &edge->settings, &edge->pair, queue->peer_number,
				   theirs->psns[q], edge->what);
		if (status == RR_OK)
			status = rr_qp_rts(edge->verbs, queue->qp, &edge->settings, queue->psn, edge->what);
	}
	edge->peer_address = theirs->address;
	edge->peer_key = theirs->key;
	return status;
}

static rr_status send_message(struct rr_verbs_edge *edge, enum rr_verbs_message kind, bool *sent)
{
	struct rr_verbs_parameters message;
	rr_status status;

	if (*sent)
		return RR_OK;
	rr_verbs_fill_parameters(edge, kind, &message);
	status = rr_far_send(edge->far, edge->peer, edge->channel_number, &message, sizeof(message));
	*sent = status == RR_OK;
	return status;
}

/* As far as it goes now. */
static rr_status advance(struct rr_verbs_edge *edge)
{
	rr_status status = RR_OK;

	if (edge->state < RR_VERBS_MADE) {
		status = make(edge);
		if (status == RR_OK)
			edge->state = RR_VERBS_MADE;
	}
	if (status == RR_OK)
		status = send_message(edge, RR_VERBS_PARAMETERS, &edge->parameters_sent);
	if (status == RR_OK && edge->state == RR_VERBS_MADE && edge->theirs_known) {
		status = rr_verbs_connect_queues(edge, &edge->theirs);
		if (status == RR_OK)
			edge->state = RR_VERBS_CONNECTED;
	}
	if (status == RR_OK && edge->state == RR_VERBS_CONNECTED)
		status = send_message(edge, RR_VERBS_READY, &edge->ready_sent);
	if (status == RR_OK && edge->state == RR_VERBS_CONNECTED && edge->ready_sent && edge->ready_known) {
		edge->state = RR_VERBS_UP;
		rr_verbs_attend(edge, edge->reconnect_ns > 0);
	}
	if (status < 0)
		rr_verbs_lose(edge);
	else if (edge->state == RR_VERBS_UP)
		rr_verbs_send_waiting(edge);
	return status;
}

static void edge_up(void *user)
{
	struct rr_verbs_edge *edge = user;

	if (edge->late && edge->state == RR_VERBS_COLD && !edge->theirs_known)
		return;
	if (!edge->failed && edge->state < RR_VERBS_UP)
		advance(edge); /* an error is told by the next call that has a status */
}

static void edge_message(void *user, const void *body, uint32_t bytes)
{
	struct rr_verbs_edge *edge = user;
	struct rr_verbs_parameters message;

	if (edge->failed || edge->state == RR_VERBS_SEVERED)
		return;
	if (bytes == sizeof(struct rr_verbs_resume) && edge->state >= RR_VERBS_CONNECTED) {
		struct rr_verbs_resume resume;
		memcpy(&resume, body, sizeof(resume));
		rr_verbs_mend_message(edge, &resume);
		return;
	}
	if (bytes == sizeof(struct rr_verbs_rails) && edge->state >= RR_VERBS_CONNECTED) {
		struct rr_verbs_rails rails;
		memcpy(&rails, body, sizeof(rails));
		rr_verbs_rails_message(edge, &rails);
		return;
	}
	if (edge->state >= RR_VERBS_UP)
		return;
	if (bytes != sizeof(message)) {
		rr_fail(RR_ERR_PROTOCOL, "rank %d sent %u bytes to set up a link: expected are %zu", edge->peer, bytes,
			sizeof(message));
		rr_verbs_lose(edge);
		return;
	}
	memcpy(&message, body, sizeof(message));
	if (message.magic == RR_VERBS_MAGIC && message.kind == RR_VERBS_PARAMETERS && !edge->theirs_known) {
		edge->theirs = message;
		edge->theirs_known = true;
	} else if (message.magic == RR_VERBS_MAGIC && message.kind == RR_VERBS_READY && edge->theirs_known) {
		edge->ready_known = true;
	} else {
		rr_fail(RR_ERR_PROTOCOL, "rank %d sent what does not set up a link (0x%x, kind %u)", edge->peer, message.magic,
			message.kind);
		rr_verbs_lose(edge);
		return;
	}
	if (rr_far_state(edge->far, edge->peer) == RR_EDGE_UP)
		advance(edge);
}

static void edge_attend(void *user)
{
	struct rr_verbs_edge *edge = user;

	if (edge->failed)
		return; /* told by the next call that has a status */
	if (edge->state == RR_VERBS_MENDING)
		rr_verbs_mend(edge);
	if (edge->state != RR_VERBS_UP)
		return;
	rr_verbs_look(edge);
	if (edge->state == RR_VERBS_UP && !edge->failed && rr_verbs_poll(edge) == RR_OK)
		rr_verbs_send_waiting(edge);
}

const struct rr_edge_ops rr_verbs_edge_ops = {.up = edge_up, .message = edge_message, .attend = edge_attend};

rr_status rr_verbs_join(struct rr_verbs_edge *edge)
{
	rr_status status = rr_verbs_health(edge);

	if (status != RR_OK)
		return status;
	if (edge->state == RR_VERBS_UP)
		return RR_OK;
	if (edge->state == RR_VERBS_SEVERED)
		return rr_fail(RR_ERR_LINK, "the edge %s was severed after an error", edge->what);
	if (edge->state == RR_VERBS_MENDING)
		return RR_AGAIN;
	if (edge->state == RR_VERBS_COLD)
		edge->state = RR_VERBS_WANTED;
	if (rr_far_state(edge->far, edge->peer) == RR_EDGE_UP)
		status = advance(edge);
	else
		status = rr_far_want(edge->far, edge->peer, edge->channel_number);
	if (status < 0)
		return status;
	return edge->state == RR_VERBS_UP ? RR_OK : RR_AGAIN;
}

/* ---- gone ---- */

void rr_verbs_sever(struct rr_verbs_edge *edge)
{
	if (edge->state == RR_VERBS_SEVERED)
		return;
	rr_verbs_linger(edge, RR_LINGER_SEVER_NS);
	for (uint32_t q = 0; q < edge->settings.qps; q++)
		if (edge->queues[q].qp)
			rr_qp_error(edge->verbs, edge->queues[q].qp); /* one that cannot go there does not send either */
	if (edge->loop)
		rr_qp_error(edge->verbs, edge->loop);
	if (edge->inbound_mr)
		edge->verbs->dereg_mr(edge->inbound_mr);
	if (edge->outbound_mr)
		edge->verbs->dereg_mr(edge->outbound_mr);
	edge->inbound_mr = NULL;
	edge->outbound_mr = NULL;
	if (edge->domain)
		rr_domain_sever(edge->domain); /* the communicator is lost: all its edges over this device are */
	edge->state = RR_VERBS_SEVERED;
}

/* In the reverse order; one that fails leaves the others to go. */
void rr_verbs_destroy(struct rr_verbs_edge *edge)
{
	rr_verbs_attend(edge, false);
	if (edge->domain)
		rr_domain_look(edge->domain, edge->rail.port, edge, true, &edge->events_seen, NULL); /* events name queues that go now */
	for (uint32_t q = 0; q < edge->settings.qps; q++)
		if (edge->queues[q].qp)
			edge->verbs->destroy_qp(edge->queues[q].qp);
	rr_verbs_leave_device(edge);
	rr_pin_disown(&edge->areas);
	if (edge->inbound)
		rr_own_unmap(edge->inbound, 2 * edge->area_bytes);
}
