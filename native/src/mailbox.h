/*
 * mailbox.h - tiny messages: one line a rank, read by all, no rows interpreted.
 *
 * For collectives in which every rank depends on every other. Rank r writes its payload, then a tag
 * (mailbox serial, descriptor hash). When all tags of a serial are there, each rank combines all
 * payloads in rank order: the same bits everywhere. Two lines alternate by serial: a rank writes line
 * s+2 only after it has seen all tags s+1, which their owners wrote after reading all lines s.
 *
 * Where ranks share processors they run one after another. All N payloads through all N ranks would take N passes over
 * N payloads then: so the first rank that has the sum of a larger message leaves it beside its payload, and those that
 * run later copy that.
 *
 * It is the one-shot `direct` schedule, compiled. Threads: the driver of the communicator only.
 */
#ifndef RR_MAILBOX_H
#define RR_MAILBOX_H

#include "engine.h"
#include "plan.h"
#include "link.h"
#include "shm.h"

#define RR_MAILBOX_WORLD_MAX RR_COMBINE_SOURCES_MAX

struct rr_mailbox {
	struct rr_shm *shm;
	uint32_t serial;  /* of the last message posted */
	int32_t checked;  /* peers whose tag was seen, counted round from our rank */
	bool unrung;      /* posted, and no sleeper was woken for it yet */
	int32_t mismatch; /* the peer whose tag has another hash */
	/* ranks on other nodes; NULL where there are none */
	struct rr_link **out, **in;
	const void *payloads[RR_MAILBOX_WORLD_MAX];
	rr_status status; /* of the last post */
	rr_error error;
};

void rr_mailbox_post(struct rr_mailbox *mailbox, const struct rr_plan *plan, const struct rr_buffer *input);
/*
 * Wake who sleeps over the last post. Apart from it, since its fence waits for the tag to leave this core:
 * after a while of polling, or when the message is complete, it has left long ago.
 */
void rr_mailbox_ring(struct rr_mailbox *mailbox);
/* RR_AGAIN: a tag is missing. RR_ERR_MISMATCH: mailbox->mismatch called something else. */
rr_status rr_mailbox_poll(struct rr_mailbox *mailbox, const struct rr_plan *plan, const struct rr_buffer *output);

#endif
