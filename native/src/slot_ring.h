/*
 * slot_ring.h - a ring of payload bytes with credit, as the sender keeps it.
 *
 * A claim takes a piece of the ring, whole lines in one piece; commit says which transfer carries it, abort gives it up.
 * What was committed is free again when its reader has released that transfer. Pieces become free in the order in which
 * they were claimed. Positions count bytes since creation and only grow; a byte lies at its position modulo the ring.
 *
 *	          begin                    end
 *	  ... free | claim | claim | claim | free ...      begin <= end <= begin + bytes
 *	             first            next - 1
 *
 *	claim    RR_SLOT_CLAIMS_MAX at a time, open until it is
 *	commit   held until the transfer `serial` is released: rr_slot_release(), or rr_slot_pop() where several read it
 *	abort    free as soon as it is the first
 *
 * A transfer without payload here (read in place, or written in place) has no claim, whatever its serial is: to commit
 * or abort a claim that holds nothing changes nothing.
 *
 * Threads: the owner's only.
 */
#ifndef RR_SLOT_RING_H
#define RR_SLOT_RING_H

#include <stdbool.h>
#include <stdint.h>

#define RR_SLOT_CLAIMS_MAX 64u /* a bit each in the masks below */

struct rr_slot_claim {
	uint64_t number; /* counted from 1; 0: holds nothing */
	uint64_t offset; /* in the ring */
};

struct rr_slot_ring {
	uint64_t bytes;	      /* a multiple of a cache line */
	uint64_t begin, end;  /* positions in use */
	uint64_t first, next; /* numbers of the claims that hold them */
	struct {
		uint64_t end;	 /* position behind it */
		uint64_t serial; /* of the transfer that carries it */
	} claims[RR_SLOT_CLAIMS_MAX]; /* by number modulo their count */
	uint64_t open, aborted; /* bit number % RR_SLOT_CLAIMS_MAX */
};

void rr_slot_ring_init(struct rr_slot_ring *ring, uint64_t bytes);
/* False: no room now. bytes 0 takes a line, too: each claim has a place of its own. */
bool rr_slot_claim(struct rr_slot_ring *ring, uint64_t bytes, struct rr_slot_claim *claim);
/* Both leave the claim holding nothing. */
void rr_slot_commit(struct rr_slot_ring *ring, struct rr_slot_claim *claim, uint64_t serial);
void rr_slot_abort(struct rr_slot_ring *ring, struct rr_slot_claim *claim);
/* The reader is done with all transfers before `serial`, which may be one that is not committed yet. */
void rr_slot_release(struct rr_slot_ring *ring, uint64_t serial);
/* The oldest claim, if it is committed: 0 if not. It is freed by rr_slot_pop(). */
uint64_t rr_slot_first(struct rr_slot_ring *ring);
void rr_slot_pop(struct rr_slot_ring *ring);

static inline uint64_t rr_slot_ring_free(const struct rr_slot_ring *ring)
{
	return ring->bytes - (ring->end - ring->begin);
}

#endif
