/*
 * enqueued.h - one direction of an edge as the enqueue executor sees it: slots and flags in device memory.
 *
 * The slots lie at the receiver, as do the ready flags; the credit flags lie at the sender. Either end has all of them
 * mapped; addresses are this rank's. Transfer n of an operation uses slot n % slot_count:
 *
 *   sender     wait credit[slot] == 1, = 0 · fill the slot · ready[slot] = 1
 *   receiver   wait ready[slot] == 1, = 0 · use it        · credit[slot] = 1
 *
 * Before the first operation, and between operations, ready is 0 and credit is 1 everywhere.
 */
#ifndef RR_ENQUEUED_H
#define RR_ENQUEUED_H

#include <stdint.h>

struct rr_enqueued_link {
	char *slots;
	uint64_t slot_bytes;  /* from one slot to the next, too */
	uint32_t slot_count;  /* 0: there is no such link */
	uint32_t flag_stride; /* words from one flag to the next */
	uint32_t *ready;
	uint32_t *credit;
};

#endif
