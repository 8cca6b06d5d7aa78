/*
 * engine_slice.h - one slice of one open row, between the parts of the engine that handle it.
 *
 *   engine_row.c      the row: its slices in turn, and when it is through
 *   engine_after.c    may this slice go: what it needs of earlier rows
 *   engine_receive.c  the receive part: sources here, and the pass over them
 *   engine_send.c     the send part: reserve before the pass, commit after it, or from dst later
 *   engine_origin.c   where the plan checks: what its bytes were where they came from
 *
 * Included by these only.
 */
#ifndef RR_ENGINE_SLICE_H
#define RR_ENGINE_SLICE_H

#include "engine.h"

#define RR_SENDS_FUSED_MAX 64u /* bits of a mask; later sends of a row go by the send part */
_Static_assert(RR_SENDS_FUSED_MAX + 1 <= RR_COMBINE_TARGETS_MAX, "dst and all fused sends are targets of one pass");

/* One open row at work: what does not change from slice to slice. */
struct rr_open_row {
	struct rr_engine *engine;
	const struct rr_plan *plan;
	const struct rr_row *row;
	struct rr_row_state *state;
	uint64_t round;
	uint32_t index; /* of the row */
};

/* One slice of it. */
struct rr_slice {
	uint32_t number;
	uint64_t offset; /* in the row */
	uint32_t bytes;
	uint32_t source_count, target_count;
	const void *sources[RR_COMBINE_SOURCES_MAX + 1];
	void *targets[RR_SENDS_FUSED_MAX + 1];
	int32_t operand;   /* place of the local operand among the sources, or -1 */
	bool store;        /* dst itself is a target: the first */
	bool landed;       /* the bytes lie in dst already */
	bool past;         /* the last target is best stored past the caches (apart.h) */
	uint64_t fused;    /* bit i: send i is committed after the pass */
	uint64_t here_ns;  /* its last input; 0: not traced, or no inputs */
};

/* Where the plan checks: of a slice as it is, and as its origin had it. */
struct rr_sums {
	uint32_t crc, origin;
};

/* ---- where bytes lie ---- */

/*
 * Offsets and bytes of slices count in the vector's dtype. What is float32 takes this many times as many: the row's
 * cell of scratch and its sends, and its receives. (A row with float32 in part reads no cell.)
 */
static inline uint32_t rr_slice_width(const struct rr_row *row)
{
	return row->flags & RR_ROW_WIDE ? 2 : 1;
}

static inline uint32_t rr_slice_width_received(const struct rr_row *row)
{
	return row->flags & RR_ROW_TAKES_WIDE ? 2 : 1;
}

/* Does the row give on what it receives, bit for bit? Else its result is a new one, whose origin is this rank. */
static inline bool rr_slice_passes_on(const struct rr_open_row *work)
{
	const struct rr_row *row = work->row;

	return row->action == RR_ACTION_COPY && row->receive_end - row->receive_begin == 1 && row->operand_buffer < 0 &&
	       !((row->flags & RR_ROW_LAST) && work->plan->post) && rr_slice_width(row) == rr_slice_width_received(row);
}

/* Coordinate of the row's bytes in one of its buffers: scratch cells have coordinates of their own. */
static inline uint64_t rr_slice_coordinate(const struct rr_open_row *work, int32_t buffer, int32_t cell,
					   uint64_t offset)
{
	if (buffer != RR_SCRATCH)
		return work->state->begin + offset;
	uint64_t parity = (work->round & 1) * work->plan->rows->cell_count;
	return (parity + (uint64_t)cell) * work->plan->cell_bytes + offset * rr_slice_width(work->row);
}

static inline bool rr_slice_holds(const struct rr_buffer *buffer, uint32_t extent, uint64_t coordinate)
{
	return extent < buffer->count && coordinate >= buffer->starts[extent] &&
	       coordinate - buffer->starts[extent] < buffer->extents[extent].bytes;
}

/* Which extent holds a coordinate: of many small ones mostly the last one asked for, or the next. */
static inline uint32_t rr_slice_extent(struct rr_buffer *buffer, uint64_t coordinate)
{
	uint32_t low = 0, high = buffer->count;

	if (rr_slice_holds(buffer, buffer->recent, coordinate))
		return buffer->recent;
	if (rr_slice_holds(buffer, buffer->recent + 1, coordinate))
		return ++buffer->recent;
	while (high - low > 1) {
		uint32_t middle = low + (high - low) / 2;
		if (buffer->starts[middle] <= coordinate)
			low = middle;
		else
			high = middle;
	}
	buffer->recent = low;
	return low;
}

/* The address at a coordinate; *run shrinks to what lies in one piece from there. */
static inline char *rr_slice_address(struct rr_buffer *buffer, uint64_t coordinate, uint64_t *run)
{
	if (buffer->zero)
		return (char *)((uintptr_t)buffer->zero + coordinate);
	uint32_t extent = rr_slice_extent(buffer, coordinate);
	uint64_t inside = coordinate - buffer->starts[extent];
	uint64_t left = buffer->extents[extent].bytes - inside;
	*run = left < *run ? left : *run;
	return (char *)buffer->extents[extent].address + inside;
}

/* ---- the parts ---- */

/* Are the bytes this slice needs of earlier rows done, and those it overwrites released? */
bool rr_slice_may_go(const struct rr_open_row *work, const struct rr_slice *slice);
/* All sources in their stated order. RR_AGAIN: an input is not here yet. */
rr_status rr_slice_gather(const struct rr_open_row *work, struct rr_slice *slice);
/* Where the plan checks, before its inputs are looked for: it will overwrite its dst. */
rr_status rr_slice_overwrite(const struct rr_open_row *work, const struct rr_slice *slice);
/* Where the plan checks, right before the pass: are all sources what they were? */
rr_status rr_slice_compare(const struct rr_open_row *work, const struct rr_slice *slice);
/* Places in the links wherever there is credit; what has none goes later, from dst. Given back by abort. */
rr_status rr_slice_reserve(const struct rr_open_row *work, struct rr_slice *slice);
void rr_slice_abort(const struct rr_open_row *work, uint64_t fused);
/* The pass: all targets = op(all sources). */
rr_status rr_slice_combine(const struct rr_open_row *work, struct rr_slice *slice, rr_token *token);
/* Where the plan checks, right behind the pass: the sums of its result, if it goes on from here. */
rr_status rr_slice_result(const struct rr_open_row *work, uint64_t fused, uint32_t number, struct rr_sums *sums);
/* The pass over slice `number` has ended at now_ns: what was fused goes. */
void rr_slice_commit(const struct rr_open_row *work, uint64_t fused, uint32_t number, const struct rr_sums *sums, uint64_t now_ns);
/* Slices of dst that are done, to one peer. RR_AGAIN: no credit, or not this row's turn on the link. */
rr_status rr_slice_send_rest(const struct rr_open_row *work, uint32_t at, bool *moved);

static inline uint64_t rr_slice_offset(const struct rr_open_row *work, uint32_t number)
{
	return (uint64_t)number * work->plan->slice_bytes;
}

static inline uint32_t rr_slice_bytes(const struct rr_open_row *work, uint64_t offset)
{
	uint64_t left = work->state->bytes - offset;

	return left < work->plan->slice_bytes ? (uint32_t)left : work->plan->slice_bytes;
}

/* Whether the slot just reserved is best filled past the caches. */
static inline bool rr_slice_past(const struct rr_link *out, const struct rr_transfer *transfer)
{
	return out->past && transfer->mode == RR_MODE_SLOT;
}

/* What both ends of a transfer compare where each knows its own counts only; see link.h. */
static inline uint64_t rr_slice_row_bytes(const struct rr_open_row *work)
{
	return work->plan->paired ? work->state->bytes + 1 : 0;
}

#endif
