/* completion.c - completion queues and the channels that tell of them. */
#include "sim.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

SIM_EXPORT struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	struct sim_channel *channel = calloc(1, sizeof(*channel));
	int error = sim_fault("ibv_create_comp_channel");

	if (!error)
		error = channel ? sim_events_open(&channel->events) : ENOMEM;
	if (error) {
		free(channel);
		errno = error;
		return NULL;
	}
	channel->base.context = context;
	channel->base.fd = channel->events.read_fd;
	pthread_mutex_lock(&sim_lock);
	sim.channels++;
	pthread_mutex_unlock(&sim_lock);
	return &channel->base;
}

SIM_EXPORT int ibv_destroy_comp_channel(struct ibv_comp_channel *base)
{
	struct sim_channel *channel = (struct sim_channel *)base;
	int error = sim_fault("ibv_destroy_comp_channel");

	pthread_mutex_lock(&sim_lock);
	if (!error && base->refcnt)
		error = EBUSY;
	if (!error) {
		sim_events_close(&channel->events);
		sim.channels--;
	}
	pthread_mutex_unlock(&sim_lock);
	if (!error)
		free(channel);
	return error;
}

static int cq_error(struct ibv_context *context, int entries, int vector)
{
	if (sim_context_of(context)->fatal)
		return EIO;
	if (entries < 1 || (unsigned)entries > sim.config.max_cqe || vector < 0 || vector >= context->num_comp_vectors)
		return EINVAL;
	return 0;
}

SIM_EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *context, int entries, void *cq_context,
					struct ibv_comp_channel *channel, int vector)
{
	int error = sim_fault("ibv_create_cq");
	struct sim_cq *cq;

	if (!error)
		error = cq_error(context, entries, vector);
	if (error) {
		errno = error;
		return NULL;
	}
	cq = calloc(1, sizeof(*cq));
	if (cq)
		cq->ring = calloc((size_t)entries, sizeof(*cq->ring));
	if (!cq || !cq->ring) {
		free(cq);
		errno = ENOMEM;
		return NULL;
	}
	cq->size = (unsigned)entries;
	cq->base.context = context;
	cq->base.channel = channel;
	cq->base.cq_context = cq_context;
	cq->base.cqe = entries;
	pthread_mutex_lock(&sim_lock);
	if (channel)
		channel->refcnt++;
	sim.cqs++;
	pthread_mutex_unlock(&sim_lock);
	return &cq->base;
}

SIM_EXPORT int ibv_destroy_cq(struct ibv_cq *base)
{
	struct sim_cq *cq = (struct sim_cq *)base;
	int error = sim_fault("ibv_destroy_cq");

	pthread_mutex_lock(&sim_lock);
	if (!error && cq->users)
		error = EBUSY;
	if (error) {
		pthread_mutex_unlock(&sim_lock);
		return error;
	}
	if (cq->events_fetched != cq->events_acked || cq->async_fetched != cq->async_acked)
		sim_violation("ibv_destroy_cq with events that were not acknowledged: it waits for ever");
	if (base->channel) {
		sim_events_drop(&((struct sim_channel *)base->channel)->events, base);
		base->channel->refcnt--;
	}
	sim_events_drop(&sim_context_of(base->context)->async, base);
	sim.cqs--;
	pthread_mutex_unlock(&sim_lock);
	free(cq->ring);
	free(cq);
	return 0;
}

static void overrun(struct sim_cq *cq)
{
	if (cq->overrun)
		return;
	cq->overrun = true;
	sim_async(cq->base.context, IBV_EVENT_CQ_ERR, &cq->base);
	for (struct sim_qp *qp = sim.qps; qp; qp = qp->next) {
		if (qp->base.send_cq != &cq->base && qp->base.recv_cq != &cq->base)
			continue;
		sim_qp_to_error(qp);
		sim_async(qp->base.context, IBV_EVENT_QP_FATAL, &qp->base);
	}
}

void sim_cq_push(struct ibv_cq *base, const struct sim_cqe *entry, bool solicited)
{
	struct sim_cq *cq = (struct sim_cq *)base;

	if (cq->overrun)
		return;
	if (cq->pushed - cq->polled == cq->size) {
		overrun(cq);
		return;
	}
	cq->ring[cq->pushed % cq->size] = *entry;
	__atomic_store_n(&cq->pushed, cq->pushed + 1, __ATOMIC_RELEASE); /* read without the lock by sim_poll_cq */
	if (cq->armed && (!cq->solicited_only || solicited || entry->wc.status != IBV_WC_SUCCESS)) {
		cq->armed = false;
		if (base->channel)
			sim_events_add(&((struct sim_channel *)base->channel)->events, base, NULL);
	}
}

/* Entries of a queue pair that goes away or is reset: providers take them out. */
void sim_cq_purge(struct ibv_cq *base, struct sim_qp *qp)
{
	struct sim_cq *cq = (struct sim_cq *)base;
	uint64_t kept = cq->polled;

	for (uint64_t i = cq->polled; i < cq->pushed; i++)
		if (cq->ring[i % cq->size].qp != qp)
			cq->ring[kept++ % cq->size] = cq->ring[i % cq->size];
	cq->pushed = kept;
}

static void free_queue(const struct sim_cqe *entry)
{
	uint64_t *freed = entry->is_send ? &entry->qp->sq_freed : &entry->qp->rq_freed;

	if (entry->index + 1 > *freed)
		*freed = entry->index + 1;
}

int sim_poll_cq(struct ibv_cq *base, int count, struct ibv_wc *wc)
{
	struct sim_cq *cq = (struct sim_cq *)base;
	int error, got = 0;

	if (!sim.config.fault_count && __atomic_load_n(&cq->pushed, __ATOMIC_ACQUIRE) == cq->polled) {
		sched_yield(); /* the thread that would fill it wants the processor */
		return 0;
	}
	pthread_mutex_lock(&sim_lock);
	error = sim_fault_locked("ibv_poll_cq");
	while (!error && got < count && cq->polled < cq->pushed) {
		const struct sim_cqe *entry = &cq->ring[cq->polled++ % cq->size];

		wc[got++] = entry->wc;
		free_queue(entry);
	}
	if (got)
		sim_gpu_seen();
	pthread_mutex_unlock(&sim_lock);
	return error ? -1 : got;
}

int sim_req_notify_cq(struct ibv_cq *base, int solicited_only)
{
	struct sim_cq *cq = (struct sim_cq *)base;
	int error;

	pthread_mutex_lock(&sim_lock);
	error = sim_fault_locked("ibv_req_notify_cq");
	if (!error) {
		/* An arm for all completions is not weakened by a later one for solicited ones. */
		cq->solicited_only = solicited_only && (!cq->armed || cq->solicited_only);
		cq->armed = true;
	}
	pthread_mutex_unlock(&sim_lock);
	return error;
}

SIM_EXPORT int ibv_get_cq_event(struct ibv_comp_channel *base, struct ibv_cq **cq, void **cq_context)
{
	struct sim_channel *channel = (struct sim_channel *)base;
	int error = sim_fault("ibv_get_cq_event");
	struct sim_event event;

	if (error) {
		errno = error;
		return -1;
	}
	if (sim_events_take(&channel->events, &event) < 0)
		return -1;
	*cq = event.object;
	*cq_context = (*cq)->cq_context;
	((struct sim_cq *)*cq)->events_fetched++;
	pthread_mutex_unlock(&sim_lock);
	return 0;
}

SIM_EXPORT void ibv_ack_cq_events(struct ibv_cq *base, unsigned int count)
{
	struct sim_cq *cq = (struct sim_cq *)base;

	pthread_mutex_lock(&sim_lock);
	cq->events_acked += count;
	if (cq->events_acked > cq->events_fetched)
		sim_violation("ibv_ack_cq_events acknowledged more events than were fetched");
	pthread_mutex_unlock(&sim_lock);
}
