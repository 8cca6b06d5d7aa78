/*
 * engine_carry.h - the carrier: moves slices between the streams of a list and links, for edges whose other end maps none of our GPU memory.
 *
 * To the list such an edge is one like any other (enqueued.h), but its slots and flags lie in pinned memory of this rank,
 * which streams and the host have mapped. What answers at the other end of the flags is no peer's stream, but this:
 *
 *   out   ready[slot] == 1 -> 0 · reserve, commit from the slot · released: credit[slot] = 1
 *   in    credit[slot] == 1 -> 0 · peek into the slot           · ready[slot] = 1, release
 *
 * Transfers go over a link in the order in which the progress executor of a peer has them: row by row, slice by slice.
 *
 * Threads: the driver of the communicator.
 */
#ifndef RR_ENGINE_CARRY_H
#define RR_ENGINE_CARRY_H

#include <stdbool.h>

#include "engine_enqueue.h"

struct rr_engine;
struct rr_carrier;

/*
 * out, in: [rows->link_count] of the list, addresses as the host has them; slot_count 0: the link is not carried.
 * *made stays NULL where none is. Links of the engine are numbered as those of the list's plan.
 */
rr_status rr_carrier_make(const struct rr_enqueue *list, const struct rr_enqueued_link *out, const struct rr_enqueued_link *in,
			  struct rr_carrier **made);
void rr_carrier_free(struct rr_carrier *carrier);

/* An operation begins, before its list does: all its OPENs are here. */
void rr_carrier_start(struct rr_carrier *carrier, struct rr_engine *engine);
/* RR_OK: all that the list sends or receives is carried, and the slots are free. */
rr_status rr_carrier_progress(struct rr_carrier *carrier, struct rr_engine *engine, bool *moved);

#endif
