/*
 * stream_lists.h - the lists of a communicator: what its operations and the engine know of them.
 *
 * A plan with a list is an operation like any other, but for who runs its rows:
 *
 *   caller   emit: the whole list, behind a wait for its ticket; it is in the caller's stream from then on
 *   driver   OPENs exchanged and alike, all earlier operations ended: go(ticket)
 *   streams  the list
 *   driver   ended(ticket)
 *
 * cuda_lists.c serves it. Threads: the driver of the communicator; emit() in the driver's place, too.
 */
#ifndef RR_STREAM_LISTS_H
#define RR_STREAM_LISTS_H

#include <stdbool.h>

#include "plan.h"
#include "rdmaring_lists.h"

struct rr_buffer;
struct rr_carrier;

/* One call of a list. Tickets count from 1 in the order of emission. */
struct rr_emission {
	uint64_t ticket;
	bool captured; /* runs when its graph is launched: it has no ticket, no go and no end */
};

struct rr_lists_ops {
	/* What plan->listed is: the rows of the plan in their order. Of a plan without a list it stays NULL. */
	rr_status (*make)(struct rr_lists *lists, const rr_plan_spec *spec, struct rr_listed **out);
	/* After an error the list may stand half in the streams: the communicator must be lost. */
	rr_status (*emit)(struct rr_lists *lists, struct rr_listed *listed, const struct rr_buffer *input,
			  const struct rr_buffer *output, const rr_list_streams *streams, struct rr_emission *out);
	void (*go)(struct rr_lists *lists, const struct rr_emission *emission);
	/* RR_AGAIN: not yet. */
	rr_status (*ended)(struct rr_lists *lists, const struct rr_emission *emission);
	/* What is put into the stream from now on runs behind the emission. */
	rr_status (*order)(struct rr_lists *lists, const struct rr_emission *emission, void *stream);
	/* The communicator is lost: let all that was emitted run to its end. False: it did not within a few seconds. */
	bool (*drain)(struct rr_lists *lists);
};

struct rr_lists {
	const struct rr_lists_ops *ops;
};

/* A plan's list. It may outlive the lists of its communicator. */
struct rr_listed {
	void (*free)(struct rr_listed *listed);
	uint64_t *sent_bytes, *received_bytes; /* [world] of one call, past the engine's links */
	struct rr_carrier *carrier; /* of what goes over the engine's links; NULL: nothing does */
};

#endif
