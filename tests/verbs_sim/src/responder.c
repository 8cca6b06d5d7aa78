/* responder.c - the receiving end: keys are checked, bytes are placed in their time, receives complete in order. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

#define UNDEFINED_BYTE 0xa5

/* The RNR NAK timer's field, 0 to 31, in units of 10 us. */
static const uint32_t rnr_timer_10us[32] = {
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
};

void sim_message_free(struct sim_message *message)
{
	if (message)
		free(message->data);
	free(message);
}

static bool is_write(const struct sim_message *message)
{
	return message->opcode == IBV_WR_RDMA_WRITE || message->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

static void answer(struct sim_qp *qp, enum sim_packet_kind kind, uint64_t index, enum ibv_wc_status status)
{
	struct sim_packet packet = { .kind = kind, .index = index, .status = status };

	/* Answers are few and small beside the socket's space; one that does not fit means a peer that reads nothing. */
	if (qp->in_fd >= 0 && sim_packet_send(qp->in_fd, &packet, NULL) <= 0)
		sim_close_fd(&qp->in_fd);
}

/* The requester learns of it by the NAK, this end by the event; both queue pairs are in ERR afterwards. */
static void refuse(struct sim_qp *qp, uint64_t index, enum ibv_wc_status status)
{
	answer(qp, SIM_NAK, index, status);
	sim_qp_to_error(qp);
	if (status == IBV_WC_REM_ACCESS_ERR)
		sim_async(qp->base.context, IBV_EVENT_QP_ACCESS_ERR, &qp->base);
	else if (status == IBV_WC_REM_INV_REQ_ERR)
		sim_async(qp->base.context, IBV_EVENT_QP_REQ_ERR, &qp->base);
}

static void land(struct sim_qp *qp, struct sim_message *message, uint32_t from, uint32_t to)
{
	if (from >= to || message->status != IBV_WC_SUCCESS)
		return;
	if (is_write(message)) /* a region deregistered since the acknowledgement: the bytes have no place any more */
		sim_place(qp->base.pd, message->rkey, message->remote_addr + from, message->data + from, to - from);
	else
		message->status = sim_scatter(qp->base.pd, message->recv.sge, message->recv.sge_count, from,
					      message->data + from, to - from);
}

static void land_rest(struct sim_qp *qp, struct sim_message *message)
{
	land(qp, message, 0, message->landed_from);
	land(qp, message, message->landed_to, message->bytes);
	message->landed_from = 0;
	message->landed_to = message->bytes;
}

void sim_responder_land_all(struct sim_qp *qp)
{
	for (struct sim_message *message = qp->deliveries; message; message = message->next)
		land_rest(qp, message);
}

static enum ibv_wc_status request_error(const struct sim_qp *qp, const struct sim_packet *packet)
{
	unsigned access;

	if (qp->peer_mtu > qp->attr.path_mtu && packet->total > 128u << qp->attr.path_mtu)
		return IBV_WC_REM_INV_REQ_ERR; /* packets longer than this end's path MTU */
	if (packet->opcode == IBV_WR_SEND || packet->opcode == IBV_WR_SEND_WITH_IMM)
		return IBV_WC_SUCCESS;
	access = packet->opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
	if (!(qp->attr.qp_access_flags & access))
		return IBV_WC_REM_INV_REQ_ERR;
	if (access == IBV_ACCESS_REMOTE_READ && !qp->attr.max_dest_rd_atomic)
		return IBV_WC_REM_INV_REQ_ERR;
	if (!sim_remote_ok(qp->base.pd, packet->rkey, packet->remote_addr, packet->total, access))
		return IBV_WC_REM_ACCESS_ERR;
	return IBV_WC_SUCCESS;
}

static struct sim_message *begin(struct sim_qp *qp, const struct sim_packet *packet)
{
	struct sim_message *message = calloc(1, sizeof(*message));

	if (message)
		message->data = malloc(packet->total + 1ull);
	if (!message || !message->data) {
		sim_violation("the simulator is out of memory");
		abort();
	}
	message->index = packet->index;
	message->opcode = (uint8_t)packet->opcode;
	message->remote_addr = packet->remote_addr;
	message->rkey = packet->rkey;
	message->imm = packet->imm;
	message->bytes = packet->total;
	message->solicited = packet->solicited;
	message->takes_recv = packet->opcode != IBV_WR_RDMA_WRITE;
	message->landing = (enum sim_landing)(sim_random(&qp->random) % SIM_LANDING_COUNT);
	return message;
}

static uint32_t extent_bytes(const struct sim_recv *recv)
{
	uint32_t bytes = 0;

	for (int i = 0; i < recv->sge_count; i++)
		bytes += recv->sge[i].length;
	return bytes;
}

/* Takes the receive. False when it does not fit the message: both ends fail. */
static bool take_recv(struct sim_qp *qp, struct sim_message *message)
{
	enum ibv_wc_status told = IBV_WC_SUCCESS;

	message->recv_index = qp->rq_taken++;
	message->recv = qp->rq[message->recv_index % qp->cap.max_recv_wr];
	if (is_write(message))
		return true;
	if (extent_bytes(&message->recv) < message->bytes) {
		message->status = IBV_WC_LOC_LEN_ERR;
		told = IBV_WC_REM_INV_REQ_ERR;
	} else if (!sim_local_ok(qp->base.pd, message->recv.sge, message->recv.sge_count, IBV_ACCESS_LOCAL_WRITE)) {
		message->status = IBV_WC_LOC_PROT_ERR;
		told = IBV_WC_REM_OP_ERR;
	}
	if (told != IBV_WC_SUCCESS)
		answer(qp, SIM_NAK, message->index, told);
	return told == IBV_WC_SUCCESS;
}

/* All bytes are here. It waits for a receive, or is acknowledged and delivered in its time. */
static void arrived(struct sim_qp *qp, uint64_t now)
{
	struct sim_message *message = qp->assembling;
	bool fits = true;

	qp->awaiting_recv = message->takes_recv && qp->rq_taken == qp->rq_posted;
	if (qp->awaiting_recv) {
		answer(qp, SIM_RNR, message->index, IBV_WC_SUCCESS);
		qp->rnr_at_ns = now + rnr_timer_10us[qp->attr.min_rnr_timer & 31] * 10 * NS_PER_US;
		return;
	}
	if (message->takes_recv)
		fits = take_recv(qp, message);
	qp->assembling = NULL;
	qp->in_index = message->index + 1;
	if (message->landing == SIM_LAND_EARLY) {
		land_rest(qp, message);
	} else if (message->landing == SIM_LAND_HALVES) {
		land(qp, message, message->bytes / 2, message->bytes);
		message->landed_from = message->bytes / 2;
		message->landed_to = message->bytes;
	}
	message->due_ns = now + sim_delay_ns(&qp->random);
	if (message->due_ns < qp->rq_last_ns)
		message->due_ns = qp->rq_last_ns;
	qp->rq_last_ns = message->due_ns;
	*qp->deliveries_tail = message;
	qp->deliveries_tail = &message->next;
	if (fits)
		answer(qp, SIM_ACK, message->index, IBV_WC_SUCCESS);
	else
		sim_qp_to_error(qp);
}

static void begin_read(struct sim_qp *qp, const struct sim_packet *packet)
{
	sim_responder_land_all(qp); /* a read sees the writes before it */
	qp->read_reply = begin(qp, packet);
}

static void send_read_reply(struct sim_qp *qp)
{
	struct sim_message *reply = qp->read_reply;

	do {
		uint32_t left = reply->bytes - reply->received;
		struct sim_packet packet = {
			.kind = SIM_READ_DATA, .index = reply->index, .offset = reply->received,
			.bytes = left < SIM_PACKET_BYTES ? left : SIM_PACKET_BYTES,
		};
		uint8_t payload[SIM_PACKET_BYTES];
		int sent;

		if (!sim_fetch(qp->base.pd, reply->rkey, reply->remote_addr + reply->received, payload, packet.bytes)) {
			refuse(qp, reply->index, IBV_WC_REM_ACCESS_ERR);
			return;
		}
		sent = sim_packet_send(qp->in_fd, &packet, payload);
		if (sent == 0)
			return;
		if (sent < 0) {
			sim_close_fd(&qp->in_fd);
			break;
		}
		reply->received += packet.bytes;
	} while (reply->received < reply->bytes);
	if (reply->received == reply->bytes && reply->index >= qp->in_index)
		qp->in_index = reply->index + 1;
	qp->read_reply = NULL;
	sim_message_free(reply);
}

static void request(struct sim_qp *qp, const struct sim_packet *packet, const uint8_t *payload)
{
	enum ibv_wc_status status;
	struct sim_message *message;

	if (packet->index < qp->in_index && packet->opcode != IBV_WR_RDMA_READ) {
		if (packet->offset + packet->bytes == packet->total)
			answer(qp, SIM_ACK, packet->index, IBV_WC_SUCCESS); /* sent again: done already */
		return;
	}
	if (packet->offset == 0) {
		status = request_error(qp, packet);
		if (status != IBV_WC_SUCCESS) {
			refuse(qp, packet->index, status);
			return;
		}
		if (packet->opcode == IBV_WR_RDMA_READ) {
			begin_read(qp, packet);
			return;
		}
		sim_message_free(qp->assembling);
		qp->assembling = begin(qp, packet);
	}
	message = qp->assembling;
	if (!message || message->index != packet->index || packet->bytes > message->bytes - message->received) {
		sim_violation("a packet out of order reached queue pair %#x", qp->base.qp_num);
		sim_close_fd(&qp->in_fd);
		return;
	}
	memcpy(message->data + packet->offset, payload, packet->bytes);
	message->received += packet->bytes;
	if (message->landing == SIM_LAND_EARLY && is_write(message)) {
		land(qp, message, packet->offset, message->received);
		message->landed_to = message->received;
	}
	if (message->received == message->bytes)
		arrived(qp, sim_now());
}

static void lost(struct sim_qp *qp)
{
	sim_close_fd(&qp->in_fd);
	sim_message_free(qp->assembling);
	qp->assembling = NULL;
	qp->awaiting_recv = false;
	sim_message_free(qp->read_reply);
	qp->read_reply = NULL;
}

void sim_responder_input(struct sim_qp *qp)
{
	uint8_t payload[SIM_PACKET_BYTES];
	struct sim_packet packet;

	if (qp->awaiting_recv || qp->read_reply) { /* called for the end of the connection alone */
		lost(qp);
		return;
	}
	while (qp->in_fd >= 0 && !qp->awaiting_recv && !qp->read_reply) {
		int got = sim_packet_receive(qp->in_fd, &packet, payload);

		if (got == -1)
			return;
		if (got == -2) {
			lost(qp);
			return;
		}
		request(qp, &packet, payload);
	}
}

static void push_completion(struct sim_qp *qp, const struct sim_message *message)
{
	struct sim_wc_fault *fault = &sim.config.recv_fault;
	struct sim_cqe entry = { .qp = qp, .index = message->recv_index };
	struct ibv_wc *wc = &entry.wc;

	memset(wc, UNDEFINED_BYTE, sizeof(*wc));
	wc->wr_id = message->recv.wr_id;
	wc->status = message->status;
	wc->vendor_err = message->status == IBV_WC_SUCCESS ? 0 : 0x51;
	wc->qp_num = qp->base.qp_num;
	if (wc->status == IBV_WC_SUCCESS && ++fault->seen == fault->nth) {
		wc->status = fault->status;
		wc->vendor_err = fault->vendor_err;
		sim_qp_to_error(qp);
	}
	if (wc->status == IBV_WC_SUCCESS) {
		wc->opcode = is_write(message) ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
		wc->byte_len = message->bytes;
		wc->wc_flags = message->opcode == IBV_WR_SEND ? 0 : IBV_WC_WITH_IMM;
		if (wc->wc_flags)
			wc->imm_data = message->imm;
		wc->src_qp = qp->attr.dest_qp_num;
		wc->pkey_index = 0;
		wc->sl = qp->attr.ah_attr.sl;
	}
	sim.counts.recv_completions++;
	sim_cq_push(qp->base.recv_cq, &entry, message->solicited);
}

static void deliver(struct sim_qp *qp, uint64_t now)
{
	while (qp->deliveries && qp->deliveries->due_ns <= now) {
		struct sim_message *message = qp->deliveries;

		land_rest(qp, message);
		qp->deliveries = message->next;
		if (!qp->deliveries)
			qp->deliveries_tail = &qp->deliveries;
		if (message->takes_recv) {
			qp->rq_completed++;
			push_completion(qp, message);
		}
		sim_message_free(message);
	}
}

static void flush(struct sim_qp *qp, uint64_t now)
{
	while (qp->rq_completed < qp->rq_posted) {
		struct sim_recv *recv = &qp->rq[qp->rq_completed % qp->cap.max_recv_wr];
		struct sim_cqe entry = { .qp = qp, .index = qp->rq_completed };

		if (!recv->due_ns)
			recv->due_ns = now + sim_delay_ns(&qp->random);
		if (recv->due_ns > now)
			return;
		memset(&entry.wc, UNDEFINED_BYTE, sizeof(entry.wc));
		entry.wc.wr_id = recv->wr_id;
		entry.wc.status = IBV_WC_WR_FLUSH_ERR;
		entry.wc.vendor_err = 0xf9;
		entry.wc.qp_num = qp->base.qp_num;
		qp->rq_completed++;
		qp->rq_taken = qp->rq_completed;
		sim.counts.recv_completions++;
		sim.counts.flushed++;
		sim_cq_push(qp->base.recv_cq, &entry, false);
	}
}

void sim_responder_run(struct sim_qp *qp, uint64_t now)
{
	if (qp->awaiting_recv && qp->rq_taken < qp->rq_posted)
		arrived(qp, now);
	else if (qp->awaiting_recv && now >= qp->rnr_at_ns)
		arrived(qp, now); /* tells the requester once more */
	if (qp->read_reply && qp->in_fd >= 0)
		send_read_reply(qp);
	deliver(qp, now);
	if (qp->base.state == IBV_QPS_ERR && !qp->deliveries)
		flush(qp, now);
}

uint64_t sim_responder_next(const struct sim_qp *qp)
{
	uint64_t next = SIM_NEVER, other = SIM_NEVER;

	if (qp->awaiting_recv)
		next = qp->rnr_at_ns;
	if (qp->deliveries)
		other = qp->deliveries->due_ns;
	else if (qp->base.state == IBV_QPS_ERR && qp->rq_completed < qp->rq_posted)
		other = qp->rq[qp->rq_completed % qp->cap.max_recv_wr].due_ns;
	return other < next ? other : next;
}
