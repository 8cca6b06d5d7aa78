/* apart.c - see apart.h. */
#include "apart.h"

#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "order.h"
#include "reduce.h"
#include "shm.h"

#define TRIAL_BYTES (64u << 10)
#define TRIALS 4
#define RECENT ((1u << RR_APART_VOTES) - 1)

/* What RR_PROBE_LINES lines take that are stored past the caches, as part of many. */
static uint64_t time_past_caches(void)
{
	uint64_t best_ns = UINT64_MAX;
	char *memory = aligned_alloc(4096, 2 * TRIAL_BYTES);

	if (!memory)
		return 0;
	memset(memory, 0, 2 * TRIAL_BYTES);
	for (int i = 0; i < TRIALS; i++) {
		void *to = memory + TRIAL_BYTES;
		const void *from = memory;
		struct rr_combine copy = {.dst = &to, .dst_count = 1, .src = &from, .src_count = 1, .count = TRIAL_BYTES,
					  .dtype = RR_UINT8, .past_last = true};
		uint64_t begin_ns = rr_now_ns();
		rr_combine_lookup(RR_UINT8, RR_SUM, rr_simd_level_best())(&copy);
		uint64_t spent_ns = rr_now_ns() - begin_ns;
		best_ns = spent_ns < best_ns ? spent_ns : best_ns;
	}
	free(memory);
	return best_ns * RR_PROBE_LINES * RR_CACHE_LINE / TRIAL_BYTES;
}

void rr_apart_begin(struct rr_shm *shm)
{
	uint64_t far_ns = shm->count > 1 ? RR_APART_TIMES * time_past_caches() : 0;

	shm->apart_ns = far_ns > RR_APART_NS ? far_ns : RR_APART_NS;
}

/* Store to the lines, timed. */
static void probe_lines(const struct rr_shm *shm, struct rr_apart *state, struct rr_probe *probe, uint64_t number)
{
	uint64_t begin_ns, spent_ns;

	rr_store_before_load(); /* what was stored before is not timed */
	begin_ns = rr_now_ns();
	for (uint32_t i = 0; i < RR_PROBE_LINES; i++)
		rr_note64(&probe->lines[i].value, number);
	rr_store_before_load();
	spent_ns = rr_now_ns() - begin_ns;
	rr_publish64(&probe->asked, number); /* pairs with rr_apart_answer() */
	if (number == 1) /* nobody had read them yet */
		return;
	state->line_ps = (uint32_t)((spent_ns < RR_NS_PER_MS ? spent_ns : RR_NS_PER_MS) * 1000 / RR_PROBE_LINES);
	state->votes = state->votes << 1 | (spent_ns > shm->apart_ns);
	state->apart = (uint32_t)__builtin_popcount(state->votes & RECENT) > RR_APART_VOTES / 2;
}

static const struct rr_consumed *consumed_by(const struct rr_shm *shm, int32_t reader)
{
	return rr_page_consumed(shm->peers[reader].page, &shm->layout, (uint32_t)shm->index[shm->rank]);
}

bool rr_apart_look(struct rr_shm *shm, int32_t peer, uint32_t bytes)
{
	struct rr_apart *state = &shm->peers[peer].apart;
	struct rr_probe *probe = rr_page_probe(shm->page, &shm->layout, (uint32_t)shm->index[peer]);
	uint64_t asked = rr_own64(&probe->asked);

	if (bytes < RR_APART_BYTES_MIN)
		return false;
	if (state->places++ % RR_APART_EVERY == 0 && rr_observe64(&consumed_by(shm, peer)->probed) == asked)
		probe_lines(shm, state, probe, asked + 1);
	return state->apart;
}

/* Some rank has read what was written for all. The one that had the last time is asked first. */
static bool read_by_some(struct rr_shm *shm, uint64_t asked)
{
	for (int32_t i = 0; i < shm->world; i++) {
		int32_t r = (shm->probe_reader + i) % shm->world;
		if (r == shm->rank || shm->index[r] < 0 || !shm->peers[r].page ||
		    rr_observe64(&consumed_by(shm, r)->common_probed) != asked)
			continue;
		shm->probe_reader = r;
		return true;
	}
	return false;
}

bool rr_apart_look_common(struct rr_shm *shm, uint32_t bytes)
{
	struct rr_apart *state = &shm->common_apart;
	struct rr_probe *probe = rr_page_probe(shm->page, &shm->layout, (uint32_t)shm->index[shm->rank]);
	uint64_t asked = rr_own64(&probe->asked);

	if (bytes < RR_APART_BYTES_MIN)
		return false;
	if (state->places++ % RR_APART_EVERY == 0 && (asked == 0 || read_by_some(shm, asked)))
		probe_lines(shm, state, probe, asked + 1);
	return state->apart;
}

void rr_apart_answer(struct rr_shm *shm, int32_t peer, bool common, uint32_t bytes)
{
	uint32_t theirs = (uint32_t)shm->index[peer];
	struct rr_consumed *ours = rr_page_consumed(shm->page, &shm->layout, theirs);
	_Atomic uint64_t *answer = common ? &ours->common_probed : &ours->probed;
	struct rr_probe *probe;
	uint64_t asked;

	if (bytes < RR_APART_BYTES_MIN)
		return;
	probe = rr_page_probe(shm->peers[peer].page, &shm->layout, common ? theirs : (uint32_t)shm->index[shm->rank]);
	asked = rr_observe64(&probe->asked); /* pairs with probe_lines() */
	if (asked == rr_own64(answer))
		return;
	for (uint32_t i = 0; i < RR_PROBE_LINES; i++)
		(void)rr_observe64(&probe->lines[i].value);
	rr_publish64(answer, asked); /* pairs with rr_apart_look() */
}
