/* requester.c - the sending end: requests go out in order, answers come back, completions follow. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

#define RECONNECT_NS      (2 * NS_PER_MS)
#define TIMEOUT_LEAST_NS  (2 * NS_PER_MS)
#define UNDEFINED_BYTE    0xa5 /* fills what the verbs leave undefined in a completion */

static struct sim_send *at(const struct sim_qp *qp, uint64_t index)
{
	return &qp->sq[index % qp->cap.max_send_wr];
}

/* How long no answer is borne: 4.096 us * 2^timeout for each try, scaled down; 0 is for ever. */
static uint64_t patience_ns(const struct sim_qp *qp)
{
	uint64_t ns;

	if (!qp->attr.timeout)
		return 0;
	ns = (4096ull << qp->attr.timeout) * (qp->attr.retry_cnt + 1u) / 100 * sim.config.timeout_percent;
	return ns < TIMEOUT_LEAST_NS ? TIMEOUT_LEAST_NS : ns;
}

static void acknowledge(struct sim_qp *qp, uint64_t index)
{
	while (qp->sq_acked <= index && qp->sq_acked < qp->sq_posted) {
		if (at(qp, qp->sq_acked)->opcode == IBV_WR_RDMA_READ && qp->reads_open)
			qp->reads_open--;
		at(qp, qp->sq_acked++)->status = IBV_WC_SUCCESS;
	}
	qp->rnr_seen = 0;
	qp->silent_since_ns = SIM_NEVER;
}

void sim_requester_fail(struct sim_qp *qp, uint64_t index, enum ibv_wc_status status, uint32_t vendor_err)
{
	if (index < qp->sq_acked || index >= qp->sq_posted)
		return;
	if (index)
		acknowledge(qp, index - 1);
	at(qp, index)->status = status;
	at(qp, index)->vendor_err = vendor_err;
	qp->sq_acked = index + 1;
	sim_qp_to_error(qp);
}

/* Start again from the first request without an answer. */
static void reconnect(struct sim_qp *qp, uint64_t now)
{
	sim_connect(qp, now);
	qp->retry_at_ns = now + RECONNECT_NS;
	if (qp->out_fd < 0)
		return;
	if (qp->sq_sent > qp->sq_acked || qp->sent_bytes)
		sim.counts.retries++;
	qp->sq_sent = qp->sq_acked;
	qp->sent_bytes = 0;
	qp->reads_open = 0;
	qp->out_blocked = qp->stalled = false;
}

static void lost(struct sim_qp *qp)
{
	sim_close_fd(&qp->out_fd);
	qp->retry_at_ns = sim_now() + RECONNECT_NS;
}

/* While nobody listens at the other end. A peer that listens but is stopped is waited for: its NIC would answer. */
static void bear_silence(struct sim_qp *qp, uint64_t now)
{
	uint64_t patience = patience_ns(qp);

	if (qp->silent_since_ns == SIM_NEVER)
		qp->silent_since_ns = now;
	if (patience && now - qp->silent_since_ns >= patience)
		sim_requester_fail(qp, qp->sq_acked, IBV_WC_RETRY_EXC_ERR, 0x81);
	else if (now >= qp->retry_at_ns && !sim_wire_cut(qp))
		reconnect(qp, now);
}

/* False when the request has to wait for answers to earlier ones. */
static bool may_start(struct sim_qp *qp, const struct sim_send *send)
{
	if (send->opcode == IBV_WR_RDMA_READ && qp->reads_open >= qp->attr.max_rd_atomic)
		return false;
	return !(send->flags & IBV_SEND_FENCE && qp->reads_open);
}

static bool keys_ok(const struct sim_qp *qp, const struct sim_send *send)
{
	unsigned access = send->opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_LOCAL_WRITE : 0;

	return send->inline_data || sim_local_ok(qp->base.pd, send->sge, send->sge_count, access);
}

/* The next packet of a request: 1 sent, 0 not now, -1 the queue pair has failed or lost its peer. */
static int send_packet(struct sim_qp *qp, struct sim_send *send)
{
	bool is_read = send->opcode == IBV_WR_RDMA_READ;
	uint32_t left = send->bytes - qp->sent_bytes;
	struct sim_packet packet = {
		.kind = SIM_REQUEST, .opcode = send->opcode, .index = qp->sq_sent, .remote_addr = send->remote_addr,
		.rkey = send->rkey, .imm = send->imm, .total = send->bytes, .offset = qp->sent_bytes,
		.bytes = is_read ? 0 : left < SIM_PACKET_BYTES ? left : SIM_PACKET_BYTES,
		.solicited = (send->flags & IBV_SEND_SOLICITED) != 0,
	};
	uint8_t payload[SIM_PACKET_BYTES];
	enum ibv_wc_status status = IBV_WC_SUCCESS;
	int sent;

	sim_gpu_reads_behind(send->gpu_post);
	if (send->inline_data)
		memcpy(payload, send->inline_data + qp->sent_bytes, packet.bytes);
	else
		status = sim_gather(qp->base.pd, send->sge, send->sge_count, packet.offset, payload, packet.bytes);
	if (status != IBV_WC_SUCCESS) {
		sim_requester_fail(qp, qp->sq_sent, status, 0x04);
		return -1;
	}
	sent = sim_packet_send(qp->out_fd, &packet, payload);
	if (sent > 0) {
		qp->sent_bytes += packet.bytes;
		sim.counts.bytes += packet.bytes;
	}
	return sent;
}

static void transmit(struct sim_qp *qp, uint64_t now)
{
	qp->out_blocked = qp->stalled = false;
	while (qp->base.state == IBV_QPS_RTS && qp->out_fd >= 0 && qp->sq_sent < qp->sq_posted) {
		struct sim_send *send = at(qp, qp->sq_sent);
		bool is_read = send->opcode == IBV_WR_RDMA_READ, bad_key;
		int sent;

		if (send->start_ns > now)
			return;
		bad_key = !qp->sent_bytes && !keys_ok(qp, send);
		qp->stalled = (!qp->sent_bytes && !may_start(qp, send)) || (bad_key && qp->sq_acked < qp->sq_sent);
		if (qp->stalled)
			return;
		if (bad_key) {
			sim_requester_fail(qp, qp->sq_sent, IBV_WC_LOC_PROT_ERR, 0x51);
			return;
		}
		sent = send_packet(qp, send);
		if (sent < 0 && qp->base.state == IBV_QPS_RTS) {
			sim_requester_input(qp); /* the peer's last word, if it left one */
			if (qp->base.state == IBV_QPS_RTS && qp->out_fd >= 0)
				lost(qp);
			return;
		}
		qp->out_blocked = sent == 0;
		if (sent <= 0)
			return;
		if (is_read || qp->sent_bytes == send->bytes) {
			qp->reads_open += is_read;
			qp->sq_sent++;
			qp->sent_bytes = 0;
		}
	}
}

static void push_completion(struct sim_qp *qp, const struct sim_send *send, enum ibv_wc_status status)
{
	struct sim_cqe entry = { .qp = qp, .is_send = true, .index = qp->sq_completed };
	struct ibv_wc *wc = &entry.wc;

	memset(wc, UNDEFINED_BYTE, sizeof(*wc));
	wc->wr_id = send->wr_id;
	wc->status = status;
	wc->qp_num = qp->base.qp_num;
	wc->vendor_err = status == IBV_WC_SUCCESS ? 0 : status == IBV_WC_WR_FLUSH_ERR ? 0xf9 : send->vendor_err;
	if (status == IBV_WC_SUCCESS) {
		wc->wc_flags = 0;
		wc->opcode = send->opcode == IBV_WR_RDMA_READ ? IBV_WC_RDMA_READ :
			     send->opcode == IBV_WR_SEND || send->opcode == IBV_WR_SEND_WITH_IMM ? IBV_WC_SEND :
			     IBV_WC_RDMA_WRITE;
		if (send->opcode == IBV_WR_RDMA_READ)
			wc->byte_len = send->bytes;
	}
	sim.counts.send_completions++;
	sim.counts.flushed += status == IBV_WC_WR_FLUSH_ERR;
	sim_cq_push(qp->base.send_cq, &entry, false);
}

static void complete(struct sim_qp *qp, uint64_t now)
{
	while (qp->sq_completed < qp->sq_posted) {
		struct sim_send *send = at(qp, qp->sq_completed);
		bool answered = qp->sq_completed < qp->sq_acked;
		enum ibv_wc_status status = answered ? send->status : IBV_WC_WR_FLUSH_ERR;
		struct sim_wc_fault *fault = &sim.config.send_fault;

		if (!answered && qp->base.state != IBV_QPS_ERR)
			return;
		if (!send->due_ns) {
			send->due_ns = now + sim_delay_ns(&qp->random);
			if (send->due_ns < qp->sq_due_ns)
				send->due_ns = qp->sq_due_ns;
			qp->sq_due_ns = send->due_ns;
		}
		if (send->due_ns > now)
			return;
		if (status == IBV_WC_SUCCESS && ++fault->seen == fault->nth) {
			status = fault->status;
			send->vendor_err = fault->vendor_err;
			sim_qp_to_error(qp);
		}
		free(send->inline_data);
		send->inline_data = NULL;
		if (status != IBV_WC_SUCCESS || send->signaled)
			push_completion(qp, send, status);
		qp->sq_completed++;
	}
}

void sim_requester_run(struct sim_qp *qp, uint64_t now)
{
	bool open = qp->base.state == IBV_QPS_RTS && qp->sq_acked < qp->sq_posted;

	if (open && qp->out_fd < 0 && at(qp, qp->sq_acked)->start_ns <= now)
		bear_silence(qp, now);
	if (open)
		transmit(qp, now);
	complete(qp, now);
}

static void read_arrived(struct sim_qp *qp, const struct sim_packet *packet, const uint8_t *payload)
{
	struct sim_send *send;
	enum ibv_wc_status status;

	if (packet->index < qp->sq_acked || packet->index >= qp->sq_posted)
		return;
	send = at(qp, packet->index);
	status = sim_scatter(qp->base.pd, send->sge, send->sge_count, packet->offset, payload, packet->bytes);
	if (status != IBV_WC_SUCCESS)
		sim_requester_fail(qp, packet->index, status, 0x51);
	else if (packet->offset + packet->bytes == send->bytes)
		acknowledge(qp, packet->index);
}

static void not_ready(struct sim_qp *qp, uint64_t index)
{
	sim.counts.rnr_naks++;
	if (index < qp->sq_acked)
		return;
	if (index > qp->sq_acked)
		acknowledge(qp, index - 1);
	qp->silent_since_ns = SIM_NEVER;
	if (++qp->rnr_seen > qp->attr.rnr_retry && qp->attr.rnr_retry != 7)
		sim_requester_fail(qp, index, IBV_WC_RNR_RETRY_EXC_ERR, 0x87);
}

void sim_requester_input(struct sim_qp *qp)
{
	uint8_t payload[SIM_PACKET_BYTES];
	struct sim_packet packet;

	while (qp->out_fd >= 0 && qp->base.state == IBV_QPS_RTS) {
		int got = sim_packet_receive(qp->out_fd, &packet, payload);

		if (got == -1)
			return;
		if (got == -2) {
			lost(qp);
			return;
		}
		if (packet.kind == SIM_ACK)
			acknowledge(qp, packet.index);
		else if (packet.kind == SIM_NAK)
			sim_requester_fail(qp, packet.index, (enum ibv_wc_status)packet.status, 0x88);
		else if (packet.kind == SIM_RNR)
			not_ready(qp, packet.index);
		else if (packet.kind == SIM_READ_DATA)
			read_arrived(qp, &packet, payload);
	}
}

bool sim_requester_wants_output(const struct sim_qp *qp)
{
	return qp->out_blocked;
}

uint64_t sim_requester_next(const struct sim_qp *qp)
{
	uint64_t next = SIM_NEVER, start;

	if (qp->sq_completed < qp->sq_posted && (qp->sq_completed < qp->sq_acked || qp->base.state == IBV_QPS_ERR))
		next = at(qp, qp->sq_completed)->due_ns;
	if (qp->base.state != IBV_QPS_RTS || qp->sq_acked == qp->sq_posted)
		return next;
	if (qp->out_fd < 0) {
		start = at(qp, qp->sq_acked)->start_ns;
		if (start < qp->retry_at_ns)
			start = qp->retry_at_ns;
		if (qp->silent_since_ns != SIM_NEVER && patience_ns(qp) &&
		    qp->silent_since_ns + patience_ns(qp) < start)
			start = qp->silent_since_ns + patience_ns(qp);
		return start < next ? start : next;
	}
	if (qp->sq_sent < qp->sq_posted && !qp->out_blocked && !qp->stalled) {
		start = at(qp, qp->sq_sent)->start_ns;
		return start < next ? start : next;
	}
	return next;
}
