/* slot_ring.c - see slot_ring.h. */
#include "slot_ring.h"

#include "order.h"

static uint64_t bit_of(uint64_t number)
{
	return 1ull << number % RR_SLOT_CLAIMS_MAX;
}

void rr_slot_ring_init(struct rr_slot_ring *ring, uint64_t bytes)
{
	*ring = (struct rr_slot_ring){.bytes = bytes, .first = 1, .next = 1};
}

bool rr_slot_claim(struct rr_slot_ring *ring, uint64_t bytes, struct rr_slot_claim *claim)
{
	uint64_t piece = bytes ? (bytes + RR_CACHE_LINE - 1) / RR_CACHE_LINE * RR_CACHE_LINE : RR_CACHE_LINE;
	uint64_t at = ring->end % ring->bytes, skip = 0;

	if (ring->next - ring->first == RR_SLOT_CLAIMS_MAX)
		return false;
	if (ring->first == ring->next) { /* nothing is held: begin again at the warm front of the ring */
		ring->end += (ring->bytes - at) % ring->bytes;
		ring->begin = ring->end;
		at = 0;
	} else if (at + piece > ring->bytes) { /* a piece does not wrap: the ring's end stays unused */
		skip = ring->bytes - at;
		at = 0;
	}
	if (skip + piece > rr_slot_ring_free(ring))
		return false;
	ring->end += skip + piece;
	ring->claims[ring->next % RR_SLOT_CLAIMS_MAX].end = ring->end;
	ring->open |= bit_of(ring->next);
	*claim = (struct rr_slot_claim){.number = ring->next++, .offset = at};
	return true;
}

void rr_slot_pop(struct rr_slot_ring *ring)
{
	ring->begin = ring->claims[ring->first % RR_SLOT_CLAIMS_MAX].end;
	ring->aborted &= ~bit_of(ring->first);
	ring->first++;
}

uint64_t rr_slot_first(struct rr_slot_ring *ring)
{
	while (ring->first < ring->next && ring->aborted & bit_of(ring->first))
		rr_slot_pop(ring);
	return ring->first == ring->next || ring->open & bit_of(ring->first) ? 0 : ring->first;
}

void rr_slot_commit(struct rr_slot_ring *ring, struct rr_slot_claim *claim, uint64_t serial)
{
	if (!claim->number)
		return;
	ring->claims[claim->number % RR_SLOT_CLAIMS_MAX].serial = serial;
	ring->open &= ~bit_of(claim->number);
	claim->number = 0;
}

void rr_slot_abort(struct rr_slot_ring *ring, struct rr_slot_claim *claim)
{
	if (!claim->number)
		return;
	ring->open &= ~bit_of(claim->number);
	ring->aborted |= bit_of(claim->number);
	claim->number = 0;
	rr_slot_first(ring);
}

void rr_slot_release(struct rr_slot_ring *ring, uint64_t serial)
{
	for (uint64_t number = rr_slot_first(ring); number; number = rr_slot_first(ring)) {
		if ((int64_t)(serial - ring->claims[number % RR_SLOT_CLAIMS_MAX].serial) <= 0)
			return;
		rr_slot_pop(ring);
	}
}
