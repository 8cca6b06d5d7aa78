/* post.c - work requests enter their queues. */
#include "sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int send_error(const struct sim_qp *qp, const struct ibv_send_wr *wr)
{
	unsigned flags = IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE;
	uint64_t bytes = 0;

	if (qp->base.state != IBV_QPS_RTS && qp->base.state != IBV_QPS_ERR)
		return EINVAL;
	if (qp->sq_posted - qp->sq_freed >= qp->cap.max_send_wr)
		return ENOMEM;
	if (wr->num_sge < 0 || (unsigned)wr->num_sge > qp->cap.max_send_sge || wr->send_flags & ~flags)
		return EINVAL;
	for (int i = 0; i < wr->num_sge; i++)
		bytes += wr->sg_list[i].length;
	if (bytes > 1u << 30)
		return EINVAL;
	if (wr->send_flags & IBV_SEND_INLINE && bytes > qp->cap.max_inline_data)
		return EINVAL;
	switch (wr->opcode) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
	case IBV_WR_SEND:
	case IBV_WR_SEND_WITH_IMM:
		return 0;
	case IBV_WR_RDMA_READ:
		return wr->send_flags & IBV_SEND_INLINE || !qp->attr.max_rd_atomic ? EINVAL : 0;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
	case IBV_WR_LOCAL_INV:
	case IBV_WR_BIND_MW:
	case IBV_WR_SEND_WITH_INV:
	case IBV_WR_TSO:
	case IBV_WR_DRIVER1:
	default: /* later headers know more */
		return EINVAL;
	}
}

static int copy_inline(struct sim_send *own, const struct ibv_send_wr *wr)
{
	uint8_t *to = own->inline_data = malloc(own->bytes + 1);

	if (!to)
		return ENOMEM;
	for (int i = 0; i < wr->num_sge; i++) {
		memcpy(to, (void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
		to += wr->sg_list[i].length;
	}
	return 0;
}

/* A time not before those given earlier: a queue keeps its order whatever the delays. */
static uint64_t later(struct sim_qp *qp, uint64_t *last)
{
	uint64_t time = sim_now() + sim_delay_ns(&qp->random);

	if (time < *last)
		time = *last;
	return *last = time;
}

static int enqueue(struct sim_qp *qp, const struct ibv_send_wr *wr)
{
	struct sim_send *own = &qp->sq[qp->sq_posted % qp->cap.max_send_wr];
	int error = 0;

	*own = (struct sim_send){
		.wr_id = wr->wr_id, .opcode = wr->opcode, .flags = wr->send_flags, .imm = wr->imm_data,
		.remote_addr = wr->wr.rdma.remote_addr, .rkey = wr->wr.rdma.rkey, .sge_count = wr->num_sge,
		.signaled = qp->sq_sig_all || wr->send_flags & IBV_SEND_SIGNALED,
		.start_ns = later(qp, &qp->sq_last_ns), .gpu_post = sim_gpu_posted(),
	};
	for (int i = 0; i < wr->num_sge; i++) {
		own->sge[i] = wr->sg_list[i];
		own->bytes += wr->sg_list[i].length;
	}
	if (wr->send_flags & IBV_SEND_INLINE)
		error = copy_inline(own, wr);
	if (!error) {
		qp->sq_posted++;
		sim.counts.sends++;
	}
	return error;
}

int sim_post_send(struct ibv_qp *base, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct sim_qp *qp = (struct sim_qp *)base;
	int error = 0;

	pthread_mutex_lock(&sim_lock);
	for (; wr; wr = wr->next) {
		error = sim_fault_locked("ibv_post_send");
		if (!error && sim_context_of(base->context)->fatal)
			error = EIO;
		if (!error)
			error = send_error(qp, wr);
		if (!error)
			error = enqueue(qp, wr);
		if (error) {
			*bad = wr;
			break;
		}
	}
	sim_check_triggers(sim_now());
	pthread_mutex_unlock(&sim_lock);
	sim_wake();
	return error;
}

static int recv_error(const struct sim_qp *qp, const struct ibv_recv_wr *wr)
{
	if (qp->base.state == IBV_QPS_RESET)
		return EINVAL;
	if (qp->rq_posted - qp->rq_freed >= qp->cap.max_recv_wr)
		return ENOMEM;
	if (wr->num_sge < 0 || (unsigned)wr->num_sge > qp->cap.max_recv_sge)
		return EINVAL;
	return 0;
}

int sim_post_recv(struct ibv_qp *base, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct sim_qp *qp = (struct sim_qp *)base;
	bool waited;
	int error = 0;

	pthread_mutex_lock(&sim_lock);
	for (; wr; wr = wr->next) {
		struct sim_recv *own;

		error = sim_fault_locked("ibv_post_recv");
		if (!error && sim_context_of(base->context)->fatal)
			error = EIO;
		if (!error)
			error = recv_error(qp, wr);
		if (error) {
			*bad = wr;
			break;
		}
		own = &qp->rq[qp->rq_posted++ % qp->cap.max_recv_wr];
		*own = (struct sim_recv){ .wr_id = wr->wr_id, .sge_count = wr->num_sge };
		for (int i = 0; i < wr->num_sge; i++)
			own->sge[i] = wr->sg_list[i];
		sim.counts.recvs++;
	}
	waited = qp->awaiting_recv || base->state == IBV_QPS_ERR;
	pthread_mutex_unlock(&sim_lock);
	if (waited)
		sim_wake();
	return error;
}
