/*
 * verbs_domain.h - one opened device of one communicator: context, protection domain, registrations and device events.
 *
 * All edges of a communicator over a device share it. Registrations are of whole regions of registered memory
 * (memory.h), made when first needed, by region id. A region that is gone is deregistered when no request that
 * names it is under way: a credit may tell that bytes have arrived before the acknowledgement does, and the device
 * may send them once more until then. The registration keeps the pages, not the addresses, alive.
 * Allocations of GPU memory (gdr.h) are registered alike; where the device does not take them, that is kept as well.
 *
 * Threads: the driver of the communicator only; rr_domain_get() and rr_domain_put() from any.
 */
#ifndef RR_VERBS_DOMAIN_H
#define RR_VERBS_DOMAIN_H

#include <stdbool.h>

#include "far.h"
#include "verbs_api.h"
#include "verbs_gdr.h"
#include "verbs_words.h"

#define RR_DOMAIN_EVENTS_MAX 8u

struct rr_registration {
	uint32_t region; /* id */
	const char *address;
	uint64_t bytes;
	struct rr_ibv_mr *mr;       /* NULL: GPU memory that the device refused */
	struct rr_gdr_owner *owner; /* of GPU memory; NULL: host memory */
};

struct rr_domain_event {
	rr_error error;
	uint8_t port; /* 0: all ports */
	enum rr_mendable mendable;
	const void *user; /* of the queue pair or completion queue; NULL: all */
};

struct rr_domain {
	const struct rr_verbs *verbs;
	struct rr_far *far;
	char device[32];
	struct rr_ibv_context *context;
	struct rr_ibv_pd *pd;
	struct rr_ibv_device_attr attributes;
	uint32_t users;
	uint64_t generation; /* of the regions when registrations were last compared with them */
	struct rr_registration *registrations;
	uint32_t registration_count, registration_room;
	enum rr_gdr_allowed gdr_allowed;
	struct rr_gdr_outcome gdr;
	uint64_t under_way; /* requests posted that name a registration, and not completed */
	struct rr_domain_event events[RR_DOMAIN_EVENTS_MAX]; /* event n at n % RR_DOMAIN_EVENTS_MAX */
	uint64_t event_count;
	uint64_t looked_ns;
	struct rr_domain *next;
};

rr_status rr_domain_get(struct rr_far *far, const char *device, struct rr_domain **out);
void rr_domain_put(struct rr_domain *domain);
/*
 * Device events that concern this port or user, from number *seen on, which becomes the one after. Reads new ones if `now` or
 * a few milliseconds have gone. mendable: may be NULL.
 */
rr_status rr_domain_look(struct rr_domain *domain, uint8_t port, const void *user, bool now, uint64_t *seen,
			 enum rr_mendable *mendable);
/* The registration of a region, made if need be. *out NULL: GPU memory that the device refuses. */
rr_status rr_domain_register(struct rr_domain *domain, uint32_t region, const struct rr_registration **out);
/* The registration that holds these bytes, made if need be; NULL: they are in no memory that is, or can be, registered. */
rr_status rr_domain_find(struct rr_domain *domain, const void *address, uint64_t bytes,
			 const struct rr_registration **out);
/* Deregister all: nothing of ours can be reached any more. The queue pairs are in error. */
void rr_domain_sever(struct rr_domain *domain);
/* With the hint about locked memory, where that is why. */
rr_status rr_domain_memory_refused(const struct rr_domain *domain, const char *what, uint64_t bytes);
/* In a child of a fork: the domains are the parent's. */
void rr_domain_forget(void);

#endif
