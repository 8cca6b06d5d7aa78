/* queue_pair.c - the life of a queue pair: what each transition demands, and what ERR and RESET do. */
#include "sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MASK_24_BITS 0xffffffu

static const struct {
	enum ibv_qp_state from, to;
	unsigned required, optional;
} transitions[] = {
	{ IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0 },
	{ IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS },
	{ IBV_QPS_INIT, IBV_QPS_RTR,
	  IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
		  IBV_QP_MIN_RNR_TIMER,
	  IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX },
	{ IBV_QPS_RTR, IBV_QPS_RTS,
	  IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
	  IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER },
	{ IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER },
};

static int qp_init_error(const struct ibv_pd *pd, const struct ibv_qp_init_attr *attr)
{
	const struct ibv_qp_cap *cap = &attr->cap;

	if (sim_context_of(pd->context)->fatal)
		return EIO;
	if (attr->qp_type != IBV_QPT_RC || attr->srq)
		return EOPNOTSUPP;
	if (!attr->send_cq || !attr->recv_cq)
		return EINVAL;
	if (cap->max_send_wr > sim.config.max_qp_wr || cap->max_recv_wr > sim.config.max_qp_wr ||
	    cap->max_send_sge > sim.config.max_sge || cap->max_recv_sge > sim.config.max_sge ||
	    cap->max_inline_data > sim.config.max_inline)
		return EINVAL;
	return 0;
}

static void reset_qp(struct sim_qp *qp)
{
	sim_qp_forget_work(qp);
	qp->base.state = IBV_QPS_RESET;
	qp->sq_posted = qp->sq_sent = qp->sq_acked = qp->sq_completed = qp->sq_freed = 0;
	qp->sq_last_ns = qp->sq_due_ns = 0;
	qp->rq_posted = qp->rq_taken = qp->rq_completed = qp->rq_freed = qp->rq_last_ns = 0;
	qp->sent_bytes = 0;
	qp->reads_open = 0;
	qp->rnr_seen = 0;
	qp->silent_since_ns = SIM_NEVER;
	qp->retry_at_ns = 0;
	qp->in_index = 0;
	memset(&qp->attr, 0, sizeof(qp->attr));
}

static uint32_t new_qpn(struct sim_context *context)
{
	uint32_t qpn;
	const struct sim_qp *other;

	do {
		qpn = context->qpn_block << 12 | (context->qpn_next++ & 0xfff);
		for (other = sim.qps; other; other = other->next)
			if (other->base.qp_num == qpn && other->base.context == &context->verbs.context)
				break;
	} while (other);
	return qpn;
}

SIM_EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct sim_context *context = sim_context_of(pd->context);
	int error = sim_fault("ibv_create_qp");
	struct sim_qp *qp = calloc(1, sizeof(*qp));

	if (!error)
		error = qp ? qp_init_error(pd, attr) : ENOMEM;
	if (error) {
		free(qp);
		errno = error;
		return NULL;
	}
	qp->cap = attr->cap;
	qp->sq = calloc(qp->cap.max_send_wr + 1, sizeof(*qp->sq));
	qp->rq = calloc(qp->cap.max_recv_wr + 1, sizeof(*qp->rq));
	if (!qp->sq || !qp->rq) {
		free(qp->sq);
		free(qp->rq);
		free(qp);
		errno = ENOMEM;
		return NULL;
	}
	qp->sq_sig_all = attr->sq_sig_all;
	qp->listen_fd = qp->out_fd = qp->pending_fd = qp->in_fd = -1;
	qp->deliveries_tail = &qp->deliveries;
	qp->base = (struct ibv_qp){
		.context = pd->context, .qp_context = attr->qp_context, .pd = pd, .send_cq = attr->send_cq,
		.recv_cq = attr->recv_cq, .qp_type = IBV_QPT_RC,
	};
	pthread_mutex_lock(&sim_lock);
	reset_qp(qp);
	qp->base.qp_num = new_qpn(context);
	qp->random = sim.config.seed ^ (uint64_t)qp->base.qp_num << 20 ^ sim.config.rank;
	((struct sim_pd *)pd)->users++;
	((struct sim_cq *)attr->send_cq)->users++;
	((struct sim_cq *)attr->recv_cq)->users++;
	qp->next = sim.qps;
	sim.qps = qp;
	pthread_mutex_unlock(&sim_lock);
	return &qp->base;
}

SIM_EXPORT int ibv_destroy_qp(struct ibv_qp *base)
{
	struct sim_qp *qp = (struct sim_qp *)base, **link = &sim.qps;
	int error = sim_fault("ibv_destroy_qp");

	if (error)
		return error;
	pthread_mutex_lock(&sim_lock);
	if (qp->async_fetched != qp->async_acked)
		sim_violation("ibv_destroy_qp with events that were not acknowledged: it waits for ever");
	while (*link != qp)
		link = &(*link)->next;
	*link = qp->next;
	if (base->state == IBV_QPS_RTS)
		sim.counts.dropped += qp->sq_posted - qp->sq_acked;
	sim_qp_forget_work(qp);
	sim_events_drop(&sim_context_of(base->context)->async, base);
	((struct sim_pd *)base->pd)->users--;
	((struct sim_cq *)base->send_cq)->users--;
	((struct sim_cq *)base->recv_cq)->users--;
	pthread_mutex_unlock(&sim_lock);
	free(qp->sq);
	free(qp->rq);
	free(qp);
	return 0;
}

/* Drop the sockets, all messages and all entries of completion queues: for RESET and the end. */
void sim_qp_forget_work(struct sim_qp *qp)
{
	sim_disconnect(qp);
	for (uint64_t i = qp->sq_completed; i < qp->sq_posted; i++)
		free(qp->sq[i % qp->cap.max_send_wr].inline_data);
	sim_message_free(qp->assembling);
	qp->assembling = NULL;
	sim_message_free(qp->read_reply);
	qp->read_reply = NULL;
	while (qp->deliveries) {
		struct sim_message *message = qp->deliveries;

		qp->deliveries = message->next;
		sim_message_free(message);
	}
	qp->deliveries_tail = &qp->deliveries;
	qp->awaiting_recv = false;
	sim_cq_purge(qp->base.send_cq, qp);
	sim_cq_purge(qp->base.recv_cq, qp);
}

/*
 * What was acknowledged lands now: after this call nothing is written on behalf of the queue pair. Its completions,
 * and those of flushed requests, follow in their time.
 */
void sim_qp_to_error(struct sim_qp *qp)
{
	if (qp->base.state == IBV_QPS_ERR)
		return;
	sim_responder_land_all(qp);
	sim_disconnect(qp);
	sim_message_free(qp->assembling);
	qp->assembling = NULL;
	sim_message_free(qp->read_reply);
	qp->read_reply = NULL;
	qp->awaiting_recv = false;
	qp->base.state = IBV_QPS_ERR;
	sim_wake();
}

static int av_error(const struct sim_qp *qp, const struct ibv_ah_attr *ah)
{
	static const union ibv_gid zero;
	const struct sim_device *device = sim_context_of(qp->base.context)->device;
	const struct sim_gid *own = sim_gid_row(device, ah->grh.sgid_index);
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };

	if (ah->port_num != SIM_PORT || ah->sl > 15)
		return EINVAL;
	if (sim.config.link_layer == IBV_LINK_LAYER_INFINIBAND && !ah->is_global)
		return ah->dlid ? 0 : EINVAL;
	if (!ah->is_global || !own || own->type == SIM_GID_NONE)
		return EINVAL; /* Ethernet has no other address than a GID */
	if (!memcmp(&ah->grh.dgid, &zero, sizeof(zero)) || ah->grh.flow_label > 0xfffff)
		return EINVAL;
	if (own->type == SIM_GID_V2 && !memcmp(own->gid.raw, mapped, 12) != !memcmp(ah->grh.dgid.raw, mapped, 12))
		return EINVAL; /* RoCE v2 is IP: both ends of one family */
	return 0;
}

static int value_error(const struct sim_qp *qp, const struct ibv_qp_attr *attr, unsigned mask)
{
	unsigned access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
			  IBV_ACCESS_REMOTE_ATOMIC;

	if ((mask & IBV_QP_CUR_STATE && attr->cur_qp_state != qp->base.state) ||
	    (mask & IBV_QP_PORT && attr->port_num != SIM_PORT) || (mask & IBV_QP_PKEY_INDEX && attr->pkey_index) ||
	    (mask & IBV_QP_ACCESS_FLAGS && attr->qp_access_flags & ~access) ||
	    (mask & IBV_QP_PATH_MTU && (attr->path_mtu < IBV_MTU_256 || attr->path_mtu > sim.config.mtu)) ||
	    (mask & IBV_QP_DEST_QPN && (attr->dest_qp_num > MASK_24_BITS || !attr->dest_qp_num)) ||
	    (mask & IBV_QP_RQ_PSN && attr->rq_psn > MASK_24_BITS) ||
	    (mask & IBV_QP_SQ_PSN && attr->sq_psn > MASK_24_BITS) ||
	    (mask & IBV_QP_MAX_DEST_RD_ATOMIC && attr->max_dest_rd_atomic > sim.config.max_rd_atomic) ||
	    (mask & IBV_QP_MAX_QP_RD_ATOMIC && attr->max_rd_atomic > sim.config.max_rd_atomic) ||
	    (mask & IBV_QP_MIN_RNR_TIMER && attr->min_rnr_timer > 31) ||
	    (mask & IBV_QP_TIMEOUT && attr->timeout > 31) || (mask & IBV_QP_RETRY_CNT && attr->retry_cnt > 7) ||
	    (mask & IBV_QP_RNR_RETRY && attr->rnr_retry > 7))
		return EINVAL;
	return mask & IBV_QP_AV ? av_error(qp, &attr->ah_attr) : 0;
}

static int transition_error(const struct sim_qp *qp, const struct ibv_qp_attr *attr, unsigned mask)
{
	enum ibv_qp_state to = mask & IBV_QP_STATE ? attr->qp_state : qp->base.state;

	if (to == IBV_QPS_ERR && qp->base.state == IBV_QPS_RESET)
		return EINVAL;
	if (to == IBV_QPS_RESET || to == IBV_QPS_ERR)
		return mask & ~(unsigned)(IBV_QP_STATE | IBV_QP_CUR_STATE) ? EINVAL : 0;
	if (to == IBV_QPS_SQD || to == IBV_QPS_SQE)
		return EOPNOTSUPP;
	for (size_t i = 0; i < sizeof(transitions) / sizeof(transitions[0]); i++) {
		unsigned required = transitions[i].required;
		unsigned allowed = required | transitions[i].optional | IBV_QP_STATE;

		if (transitions[i].from != qp->base.state || transitions[i].to != to)
			continue;
		if ((mask & required) != required || mask & ~allowed)
			return EINVAL;
		return value_error(qp, attr, mask);
	}
	return EINVAL;
}

static void store(struct ibv_qp_attr *own, const struct ibv_qp_attr *attr, unsigned mask)
{
#define TAKE(bit, field)            \
	if (mask & (bit))           \
		own->field = attr->field
	TAKE(IBV_QP_PORT, port_num);
	TAKE(IBV_QP_PKEY_INDEX, pkey_index);
	TAKE(IBV_QP_ACCESS_FLAGS, qp_access_flags);
	TAKE(IBV_QP_AV, ah_attr);
	TAKE(IBV_QP_PATH_MTU, path_mtu);
	TAKE(IBV_QP_DEST_QPN, dest_qp_num);
	TAKE(IBV_QP_RQ_PSN, rq_psn);
	TAKE(IBV_QP_SQ_PSN, sq_psn);
	TAKE(IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic);
	TAKE(IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic);
	TAKE(IBV_QP_MIN_RNR_TIMER, min_rnr_timer);
	TAKE(IBV_QP_TIMEOUT, timeout);
	TAKE(IBV_QP_RETRY_CNT, retry_cnt);
	TAKE(IBV_QP_RNR_RETRY, rnr_retry);
#undef TAKE
}

static int enter(struct sim_qp *qp, enum ibv_qp_state to)
{
	int error = 0;

	switch (to) {
	case IBV_QPS_RESET:
		reset_qp(qp);
		break;
	case IBV_QPS_ERR:
		sim_qp_to_error(qp);
		break;
	case IBV_QPS_RTR:
		error = sim_wire_cut(qp) ? 0 : sim_listen(qp);
		break;
	case IBV_QPS_INIT:
	case IBV_QPS_RTS:
	case IBV_QPS_SQD:
	case IBV_QPS_SQE:
	case IBV_QPS_UNKNOWN:
		break;
	}
	if (!error)
		qp->base.state = to;
	return error;
}

SIM_EXPORT int ibv_modify_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask)
{
	struct sim_qp *qp = (struct sim_qp *)base;
	int error;

	pthread_mutex_lock(&sim_lock);
	error = sim_fault_locked("ibv_modify_qp");
	if (!error && sim_context_of(base->context)->fatal)
		error = EIO;
	if (!error)
		error = transition_error(qp, attr, (unsigned)mask);
	if (!error) {
		store(&qp->attr, attr, (unsigned)mask);
		if (mask & IBV_QP_STATE && attr->qp_state != base->state)
			error = enter(qp, attr->qp_state);
	}
	pthread_mutex_unlock(&sim_lock);
	sim_wake();
	return error;
}

SIM_EXPORT int ibv_query_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	struct sim_qp *qp = (struct sim_qp *)base;
	int error;

	(void)mask; /* what it asks for is the least that is filled */
	pthread_mutex_lock(&sim_lock);
	error = sim_fault_locked("ibv_query_qp");
	if (!error) {
		*attr = qp->attr;
		attr->qp_state = attr->cur_qp_state = base->state;
		attr->cap = qp->cap;
		*init = (struct ibv_qp_init_attr){
			.qp_context = base->qp_context, .send_cq = base->send_cq, .recv_cq = base->recv_cq,
			.cap = qp->cap, .qp_type = IBV_QPT_RC, .sq_sig_all = qp->sq_sig_all,
		};
	}
	pthread_mutex_unlock(&sim_lock);
	return error;
}
