/* apart.c - see apart.h. */
#include "apart.h"

#include "clock.h"
#include "order.h"

bool rr_apart_look(struct rr_apart *state, void *place, uint32_t bytes)
{
	volatile uint8_t *lines = place;
	uint64_t begin_ns, spent_ns;
	bool found;

	if (bytes < RR_APART_BYTES_MIN)
		return false;
	if (state->places++ % RR_APART_EVERY != 0)
		return state->apart;
	rr_store_before_load(); /* what was stored before is not timed */
	begin_ns = rr_now_ns();
	for (uint32_t i = 0; i < RR_APART_LINES; i++)
		lines[(uint64_t)i * RR_CACHE_LINE] = 0;
	rr_store_before_load();
	spent_ns = rr_now_ns() - begin_ns;
	state->line_ps = (uint32_t)((spent_ns < RR_NS_PER_MS ? spent_ns : RR_NS_PER_MS) * 1000 / RR_APART_LINES);
	found = spent_ns > RR_APART_NS;
	if (found == state->last)
		state->apart = found;
	state->last = found;
	return state->apart;
}
