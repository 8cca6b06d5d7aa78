/* verdict_slow.c - ranks that get on, and one edge that holds them up; see verdict.h. */
#include <stdlib.h>

#include "verdict.h"

#define FRESH_NS (2 * RR_STALE_NS)  /* what is told of a rank's pace */
#define SPAN_MIN_NS 500000000ull    /* shorter, it may be chance */
#define BUSY_MIN_PERMILLE 500       /* an edge that is idle half the time holds up nobody */
#define MEDIANS 3                   /* so many times the median of the edges */
#define STARVED_MAX_PERMILLE 300    /* of a processor: then it is not the edge that is slow */
#define NS_PER_S 1e9

static bool tells(const rr_rank_seen *rank, int32_t world)
{
	return rank->known && rank->pace_peer >= 0 && rank->pace_peer < world && rank->pace_age_ns < FRESH_NS &&
	       rank->pace_span_ns > SPAN_MIN_NS;
}

static int ascending(const void *left, const void *right)
{
	return *(const int32_t *)left - *(const int32_t *)right;
}

/* The lower one, of edges between nodes or of those within, as the busiest is; -1: it is the only one. */
static int32_t median_of(const rr_rank_seen *seen, int32_t world, int32_t far, int32_t *count)
{
	int32_t *shares = malloc((size_t)world * sizeof(*shares)), median = -1;

	*count = 0;
	for (int32_t r = 0; shares && r < world; r++)
		if (tells(&seen[r], world) && seen[r].pace_far == far)
			shares[(*count)++] = seen[r].busy_permille;
	if (*count > 1) {
		qsort(shares, (size_t)*count, sizeof(*shares), ascending);
		median = shares[(*count - 1) / 2];
	}
	free(shares);
	return median;
}

static bool had_processor(const rr_rank_seen *rank)
{
	return rank->starved_permille >= 0 && rank->starved_permille <= STARVED_MAX_PERMILLE && rank->life != RR_LIFE_STOPPED &&
	       rank->life != RR_LIFE_FROZEN;
}

void rr_verdict_slow(const rr_rank_seen *seen, int32_t world, uint64_t op, rr_verdict *out)
{
	int32_t found = -1, count;

	rr_verdict_clear(out);
	for (int32_t r = 0; r < world; r++)
		if (tells(&seen[r], world) && (found < 0 || seen[r].busy_permille > seen[found].busy_permille))
			found = r;
	if (found < 0 || seen[found].busy_permille < BUSY_MIN_PERMILLE)
		return;
	const rr_rank_seen *from = &seen[found], *to = &seen[from->pace_peer];
	int32_t median = median_of(seen, world, from->pace_far, &count);
	bool moves = from->pace_moved_ns < FRESH_NS || (tells(to, world) && to->pace_moved_ns < FRESH_NS);
	if (median < 0 || from->busy_permille <= MEDIANS * median || !moves || !had_processor(from) || !had_processor(to))
		return;
	rr_verdict_set(out, RR_VERDICT_SLOW, from, to, op);
	rr_verdict_note(out, "bytes were under way on it for %d %% of %.1f s, on the median of %d edges for %d %%",
			from->busy_permille / 10, (double)from->pace_span_ns / NS_PER_S, count, median / 10);
	rr_verdict_note(out, "rank %d wanted a processor and had none for %d %% of that time, rank %d for %d %%", from->rank,
			from->starved_permille / 10, to->rank, to->starved_permille / 10);
}
