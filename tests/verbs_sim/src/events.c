/* events.c - queues of events behind a real descriptor: completion channels and asynchronous events. */
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

int sim_events_open(struct sim_event_queue *queue)
{
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
		return errno;
	queue->read_fd = ends[0];
	queue->write_fd = ends[1];
	queue->head = NULL;
	queue->tail = &queue->head;
	return 0;
}

void sim_events_close(struct sim_event_queue *queue)
{
	sim_events_drop(queue, NULL);
	sim_close_fd(&queue->read_fd);
	sim_close_fd(&queue->write_fd);
}

void sim_events_add(struct sim_event_queue *queue, void *object, const struct ibv_async_event *async)
{
	struct sim_event *event = calloc(1, sizeof(*event));

	if (!event || send(queue->write_fd, "e", 1, MSG_DONTWAIT | MSG_NOSIGNAL) != 1) {
		free(event);
		sim_violation("an event was lost: too many stand unread");
		return;
	}
	event->object = object;
	if (async)
		event->async = *async;
	*queue->tail = event;
	queue->tail = &event->next;
}

/* Unread events of an object that goes away; of all objects with NULL. */
void sim_events_drop(struct sim_event_queue *queue, void *object)
{
	struct sim_event **link = &queue->head;

	while (*link) {
		struct sim_event *event = *link;
		char byte;

		if (object && event->object != object) {
			link = &event->next;
			continue;
		}
		*link = event->next;
		free(event);
		if (recv(queue->read_fd, &byte, 1, MSG_DONTWAIT) != 1)
			break; /* another thread has read it, and finds nothing */
	}
	for (queue->tail = &queue->head; *queue->tail;)
		queue->tail = &(*queue->tail)->next;
}

/* 0, or -1 with errno. Waits where the descriptor is blocking, EAGAIN where it is not. */
int sim_events_take(struct sim_event_queue *queue, struct sim_event *out)
{
	for (;;) {
		struct sim_event *event;
		char byte;
		ssize_t got = read(queue->read_fd, &byte, 1);

		if (got != 1) {
			if (got == 0)
				errno = EIO;
			return -1;
		}
		pthread_mutex_lock(&sim_lock);
		event = queue->head;
		if (event) {
			*out = *event;
			queue->head = event->next;
			if (!queue->head)
				queue->tail = &queue->head;
			free(event);
			return 0; /* the caller counts the event on its object and unlocks */
		}
		pthread_mutex_unlock(&sim_lock);
	}
}

void sim_async(struct ibv_context *context, enum ibv_event_type type, void *object)
{
	struct ibv_async_event event = { .event_type = type };

	if (object)
		event.element.qp = object; /* or a CQ: all pointers of the union are alike */
	else
		event.element.port_num = SIM_PORT;
	sim_events_add(&sim_context_of(context)->async, object, &event);
}

static bool of_cq(enum ibv_event_type type)
{
	return type == IBV_EVENT_CQ_ERR;
}

static bool of_qp(enum ibv_event_type type)
{
	return type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_REQ_ERR || type == IBV_EVENT_QP_ACCESS_ERR ||
	       type == IBV_EVENT_COMM_EST || type == IBV_EVENT_SQ_DRAINED;
}

SIM_EXPORT int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	struct sim_event taken;
	int error = sim_fault("ibv_get_async_event");

	if (error) {
		errno = error;
		return -1;
	}
	if (sim_events_take(&sim_context_of(context)->async, &taken) < 0)
		return -1;
	*event = taken.async;
	if (of_cq(event->event_type))
		((struct sim_cq *)event->element.cq)->async_fetched++;
	else if (of_qp(event->event_type))
		((struct sim_qp *)event->element.qp)->async_fetched++;
	pthread_mutex_unlock(&sim_lock);
	return 0;
}

SIM_EXPORT void ibv_ack_async_event(struct ibv_async_event *event)
{
	pthread_mutex_lock(&sim_lock);
	if (of_cq(event->event_type))
		((struct sim_cq *)event->element.cq)->async_acked++;
	else if (of_qp(event->event_type))
		((struct sim_qp *)event->element.qp)->async_acked++;
	pthread_mutex_unlock(&sim_lock);
}
