/* apart.c - see apart.h. */
#include "apart.h"

#include "clock.h"
#include "order.h"

/* From here on stores past the caches are quicker, the reader's loads counted in; see apart.h. */
static const uint32_t bytes_min[] = {
	[RR_APART_NOT] = UINT32_MAX,
	[RR_APART_OTHER] = 32u << 10,
	[RR_APART_FAR] = RR_APART_BYTES_MIN,
};

static enum rr_apart_far far_of(uint64_t spent_ns)
{
	return spent_ns > RR_APART_FAR_NS ? RR_APART_FAR : spent_ns > RR_APART_OTHER_NS ? RR_APART_OTHER : RR_APART_NOT;
}

bool rr_apart_look(struct rr_apart *state, void *place, uint32_t bytes)
{
	volatile uint8_t *lines = place;
	uint64_t begin_ns, spent_ns;
	enum rr_apart_far found;

	if (bytes < RR_APART_BYTES_MIN)
		return false;
	if (state->slots++ % RR_APART_EVERY != 0)
		return bytes >= bytes_min[state->far];
	rr_store_before_load(); /* what was stored before is not timed */
	begin_ns = rr_now_ns();
	for (uint32_t i = 0; i < RR_APART_LINES; i++)
		lines[(uint64_t)i * RR_CACHE_LINE] = 0;
	rr_store_before_load();
	spent_ns = rr_now_ns() - begin_ns;
	state->line_ps = (uint32_t)((spent_ns < RR_NS_PER_MS ? spent_ns : RR_NS_PER_MS) * 1000 / RR_APART_LINES);
	found = far_of(spent_ns);
	if (found == state->last)
		state->far = found;
	state->last = found;
	return bytes >= bytes_min[state->far];
}
