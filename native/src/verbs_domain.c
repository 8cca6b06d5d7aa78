/* verbs_domain.c - see verbs_domain.h. */
#define _GNU_SOURCE
#include "verbs_domain.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "clock.h"
#include "forked.h"
#include "memory.h"
#include "status.h"
#include "verbs_words.h"

#define LOOK_NS (5 * RR_NS_PER_MS) /* between two looks at a device's events: each is a system call */

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct rr_domain *list;

static void close_context(struct rr_domain *domain)
{
	rr_own_give(domain->context->cmd_fd);
	rr_own_give(domain->context->async_fd);
	domain->verbs->close_device(domain->context);
}

static rr_status own_context(struct rr_domain *domain)
{
	if (rr_own_take(domain->context->cmd_fd) && rr_own_take(domain->context->async_fd))
		return RR_OK;
	close_context(domain);
	return rr_fail(RR_ERR_NO_MEMORY, "no memory to note the descriptors of %s", domain->device);
}

static rr_status open_named(struct rr_domain *domain)
{
	int count = 0;
	struct rr_ibv_device **devices = domain->verbs->get_device_list(&count);
	struct rr_ibv_device *device = NULL;
	rr_status status = RR_OK;

	for (int i = 0; devices && i < count && !device; i++)
		if (strcmp(devices[i]->name, domain->device) == 0)
			device = devices[i];
	if (!device) {
		status = rr_fail(RR_ERR_LINK, "RDMA device %s is gone", domain->device);
	} else {
		domain->context = domain->verbs->open_device(device);
		if (!domain->context)
			status = rr_fail(RR_ERR_LINK, "RDMA device %s cannot be opened: %s", domain->device, strerror(errno));
		else
			status = own_context(domain);
	}
	if (devices)
		domain->verbs->free_device_list(devices);
	return status;
}

static rr_status set_up(struct rr_domain *domain)
{
	rr_status status = open_named(domain);
	int result;

	if (status < 0)
		return status;
	result = domain->verbs->query_device(domain->context, &domain->attributes);
	if (result) {
		status = rr_fail(RR_ERR_LINK, "RDMA device %s cannot be asked: %s", domain->device, rr_verbs_error(result));
		goto close_device;
	}
	domain->pd = domain->verbs->alloc_pd(domain->context);
	if (!domain->pd) {
		status = rr_fail(RR_ERR_LINK, "RDMA device %s gives no protection domain: %s", domain->device, strerror(errno));
		goto close_device;
	}
	if (fcntl(domain->context->async_fd, F_SETFL, fcntl(domain->context->async_fd, F_GETFL) | O_NONBLOCK) < 0) {
		status = rr_fail(RR_ERR_SYSTEM, "fcntl of the events of %s: %s", domain->device, strerror(errno));
		goto dealloc_pd;
	}
	status = rr_far_sleep_on(domain->far, domain->context->async_fd);
	if (status < 0)
		goto dealloc_pd;
	return RR_OK;

dealloc_pd:
	domain->verbs->dealloc_pd(domain->pd);
close_device:
	close_context(domain);
	return status;
}

rr_status rr_domain_get(struct rr_far *far, const char *device, struct rr_domain **out)
{
	struct rr_domain *domain;
	rr_status status = RR_OK;

	pthread_mutex_lock(&list_lock);
	for (domain = list; domain; domain = domain->next)
		if (domain->far == far && strcmp(domain->device, device) == 0)
			break;
	if (domain) {
		domain->users++;
		goto unlock;
	}
	domain = calloc(1, sizeof(*domain));
	if (!domain) {
		status = rr_fail(RR_ERR_NO_MEMORY, "no memory for RDMA device %s", device);
		goto unlock;
	}
	domain->far = far;
	domain->users = 1;
	snprintf(domain->device, sizeof(domain->device), "%s", device);
	status = rr_verbs_load(&domain->verbs);
	if (status == RR_OK)
		status = set_up(domain);
	if (status < 0) {
		free(domain);
		goto unlock;
	}
	domain->next = list;
	list = domain;
unlock:
	pthread_mutex_unlock(&list_lock);
	if (status == RR_OK)
		*out = domain;
	return status;
}

void rr_domain_put(struct rr_domain *domain)
{
	struct rr_domain **at = &list;

	pthread_mutex_lock(&list_lock);
	if (--domain->users) {
		pthread_mutex_unlock(&list_lock);
		return;
	}
	while (*at != domain)
		at = &(*at)->next;
	*at = domain->next;
	pthread_mutex_unlock(&list_lock);
	rr_domain_sever(domain);
	rr_far_sleep_off(domain->far, domain->context->async_fd);
	domain->verbs->dealloc_pd(domain->pd);
	close_context(domain);
	free(domain->registrations);
	free(domain);
}

/* ---- registrations ---- */

rr_status rr_domain_memory_refused(const struct rr_domain *domain, const char *what, uint64_t bytes)
{
	int why = errno;
	struct rlimit limit = {0};

	rr_fail(RR_ERR_NO_MEMORY, "device %s does not register %llu bytes of %s: %s", domain->device,
		(unsigned long long)bytes, what, strerror(why));
	getrlimit(RLIMIT_MEMLOCK, &limit);
	if (why == ENOMEM && limit.rlim_cur != RLIM_INFINITY)
		snprintf(rr_error_here()->hint, sizeof(rr_error_here()->hint),
			 "memory that may be locked is limited to %llu KiB: raise it (ulimit -l unlimited; LimitMEMLOCK= of the service, docker --ulimit memlock=-1)",
			 (unsigned long long)limit.rlim_cur / 1024);
	return RR_ERR_NO_MEMORY;
}

/* What is registered of regions that are gone. */
static void refresh(struct rr_domain *domain)
{
	uint64_t generation = rr_memory_generation();

	if (domain->generation == generation || domain->under_way)
		return;
	domain->generation = generation;
	for (uint32_t i = 0; i < domain->registration_count;) {
		struct rr_registration *registration = &domain->registrations[i];
		struct rr_gdr_region gpu;
		if (registration->owner ? rr_gdr_by_id(registration->region, &gpu) : rr_memory_lives(registration->region)) {
			i++;
			continue;
		}
		if (registration->mr)
			domain->verbs->dereg_mr(registration->mr); /* a refusal leaves pages locked until the device is closed */
		*registration = domain->registrations[--domain->registration_count];
	}
}

static const struct rr_registration *registered(const struct rr_domain *domain, uint32_t region)
{
	for (uint32_t i = 0; i < domain->registration_count; i++)
		if (domain->registrations[i].region == region)
			return &domain->registrations[i];
	return NULL;
}

static rr_status make_room(struct rr_domain *domain)
{
	if (domain->registration_count == domain->registration_room) {
		uint32_t room = domain->registration_room ? domain->registration_room * 2 : 16;
		struct rr_registration *larger = realloc(domain->registrations, room * sizeof(*larger));
		if (!larger)
			return rr_fail(RR_ERR_NO_MEMORY, "no memory for %u registrations", room);
		domain->registrations = larger;
		domain->registration_room = room;
	}
	return RR_OK;
}

static rr_status register_region(struct rr_domain *domain, const struct rr_region *region,
				 const struct rr_registration **out)
{
	rr_status status = make_room(domain);
	struct rr_ibv_mr *mr;

	if (status < 0)
		return status;
	mr = domain->verbs->reg_mr(domain->pd, region->address, region->bytes,
				   RR_IBV_ACCESS_LOCAL_WRITE | RR_IBV_ACCESS_REMOTE_WRITE);
	if (!mr)
		return rr_domain_memory_refused(domain, "registered memory", region->bytes);
	struct rr_registration *registration = &domain->registrations[domain->registration_count++];
	*registration = (struct rr_registration){.region = region->id, .address = region->address, .bytes = region->bytes,
						 .mr = mr};
	*out = registration;
	return RR_OK;
}

static rr_status register_gpu(struct rr_domain *domain, const struct rr_gdr_region *region, const struct rr_registration **out)
{
	rr_status status = make_room(domain);

	if (status < 0)
		return status;
	struct rr_registration *registration = &domain->registrations[domain->registration_count++];
	rr_verbs_gdr_register(domain, region, registration);
	*out = registration->mr ? registration : NULL;
	return RR_OK;
}

rr_status rr_domain_register(struct rr_domain *domain, uint32_t region, const struct rr_registration **out)
{
	struct rr_gdr_region gpu;
	struct rr_region found;

	refresh(domain);
	*out = registered(domain, region);
	if (*out) {
		*out = (*out)->mr ? *out : NULL;
		return RR_OK;
	}
	if (rr_gdr_by_id(region, &gpu))
		return register_gpu(domain, &gpu, out);
	if (!rr_memory_by_id(region, &found))
		return rr_fail(RR_ERR_ARGUMENT, "registered memory was freed while an operation uses it");
	return register_region(domain, &found, out);
}

rr_status rr_domain_find(struct rr_domain *domain, const void *address, uint64_t bytes,
			 const struct rr_registration **out)
{
	struct rr_gdr_region gpu;
	struct rr_region region;

	refresh(domain);
	*out = NULL;
	if (rr_gdr_find(address, bytes, &gpu))
		return rr_domain_register(domain, gpu.id, out);
	if (!rr_memory_find(address, bytes, &region))
		return RR_OK;
	*out = registered(domain, region.id);
	return *out ? RR_OK : register_region(domain, &region, out);
}

void rr_domain_sever(struct rr_domain *domain)
{
	for (uint32_t i = 0; i < domain->registration_count; i++)
		if (domain->registrations[i].mr)
			domain->verbs->dereg_mr(domain->registrations[i].mr);
	domain->registration_count = 0;
	domain->under_way = 0;
}

/* ---- events ---- */

static void note_event(struct rr_domain *domain, const struct rr_ibv_async_event *event)
{
	struct rr_domain_event *kept = &domain->events[domain->event_count % RR_DOMAIN_EVENTS_MAX];

	if (rr_verbs_event(domain->device, event) == RR_OK)
		return;
	*kept = (struct rr_domain_event){.error = *rr_error_here()};
	switch (event->event_type) {
	case RR_IBV_EVENT_PORT_ERR:
		kept->port = (uint8_t)event->element.port_num;
		kept->mendable = RR_MENDABLE_HERE;
		break;
	case RR_IBV_EVENT_DEVICE_FATAL:
		kept->mendable = RR_MENDABLE_ELSEWHERE;
		break;
	case RR_IBV_EVENT_CQ_ERR:
		kept->user = event->element.cq->cq_context;
		break;
	case RR_IBV_EVENT_QP_FATAL:
		kept->mendable = RR_MENDABLE_HERE;
		kept->user = event->element.qp->qp_context;
		break;
	case RR_IBV_EVENT_QP_REQ_ERR:
	case RR_IBV_EVENT_QP_ACCESS_ERR:
		kept->user = event->element.qp->qp_context;
		break;
	}
	domain->event_count++;
}

rr_status rr_domain_look(struct rr_domain *domain, uint8_t port, const void *user, bool now, uint64_t *seen,
			 enum rr_mendable *mendable)
{
	struct rr_ibv_async_event event;
	uint64_t time_ns = rr_now_ns();

	if (now || time_ns - domain->looked_ns >= LOOK_NS) {
		domain->looked_ns = time_ns;
		while (domain->verbs->get_async_event(domain->context, &event) == 0) {
			note_event(domain, &event);
			domain->verbs->ack_async_event(&event);
		}
	}
	if (domain->event_count - *seen > RR_DOMAIN_EVENTS_MAX)
		*seen = domain->event_count - RR_DOMAIN_EVENTS_MAX;
	while (*seen < domain->event_count) {
		const struct rr_domain_event *kept = &domain->events[(*seen)++ % RR_DOMAIN_EVENTS_MAX];
		if ((kept->port && kept->port != port) || (kept->user && kept->user != user))
			continue;
		if (mendable)
			*mendable = kept->mendable;
		return rr_error_set(&kept->error);
	}
	return RR_OK;
}

void rr_domain_forget(void)
{
	pthread_mutex_init(&list_lock, NULL);
	list = NULL;
}
