/* plan_check.c - see plan_check.h. */
#include "plan_check.h"

#include <math.h>

#include "mailbox.h"
#include "status.h"

/* Chunk r, or so many chunks, belong to rank r. */
static bool is_per_rank(int32_t collective)
{
	return collective == RR_REDUCE_SCATTER || collective == RR_ALL_GATHER || collective == RR_GATHER || collective == RR_SCATTER;
}

static bool is_rooted(int32_t collective)
{
	return collective == RR_BROADCAST || collective == RR_REDUCE || collective == RR_GATHER || collective == RR_SCATTER;
}

/* A barrier is an all_reduce of no elements. */
static bool fits_schedule(const rr_plan_spec *spec)
{
	const struct rr_schedule *rows = spec->schedule;
	int32_t collective = spec->collective == RR_BARRIER ? RR_ALL_REDUCE : spec->collective;

	return collective == (rows->collective == RR_BARRIER ? RR_ALL_REDUCE : rows->collective) &&
	       (!is_rooted(collective) || (spec->root == rows->root && spec->root >= 0));
}

/* The chunk table: ascending, from 0 to count, with as many chunks as the collective has. */
static rr_status check_chunks(int32_t world, const rr_plan_spec *spec)
{
	const struct rr_schedule *rows = spec->schedule;

	for (uint32_t c = 0; c < rows->chunk_count; c++)
		if (spec->chunk_offsets[c] > spec->chunk_offsets[c + 1])
			return rr_fail(RR_ERR_ARGUMENT, "chunk_offsets[%u] is above its successor", c);
	if (is_per_rank(spec->collective) && rows->chunk_count % rows->world)
		return rr_fail(RR_ERR_ARGUMENT, "%u chunks do not fall to %u ranks alike", rows->chunk_count, rows->world);
	if (spec->chunk_offsets[0] != 0 || spec->chunk_offsets[rows->chunk_count] != spec->count)
		return rr_fail(RR_ERR_ARGUMENT, "chunk_offsets must run from 0 to count");
	if (spec->collective == RR_ALL_TO_ALL && rows->chunk_count != (uint64_t)world * (uint64_t)world)
		return rr_fail(RR_ERR_ARGUMENT, "all_to_all among %d ranks has %d chunks, not %u", world, world * world,
			       rows->chunk_count);
	return RR_OK;
}

/* Counts by pair: of a chunk only the rank that gives it and the one that gets it know how long it is. */
static rr_status check_paired(const rr_plan_spec *spec)
{
	const struct rr_forward *forward = &spec->schedule->forward;

	if (!spec->paired)
		return RR_OK;
	if (spec->collective != RR_ALL_TO_ALL || spec->round_count > 1)
		return rr_fail(RR_ERR_UNSUPPORTED, "paired: only all_to_all has counts by pair, and in one round");
	if (forward->chunk >= 0)
		return rr_fail(RR_ERR_UNSUPPORTED,
			       "paired: row %u of rank %d of %.23s handles chunk %d, whose length that rank cannot know", forward->row,
			       forward->rank, spec->algorithm, forward->chunk);
	return RR_OK;
}

rr_status rr_plan_check_spec(int32_t rank, int32_t world, const rr_plan_spec *spec)
{
	const struct rr_schedule *rows = spec->schedule;

	if (spec->dtype < 0 || spec->dtype >= (int32_t)RR_DTYPE_COUNT || spec->redop < 0 || spec->redop >= (int32_t)RR_REDOP_COUNT)
		return rr_fail(RR_ERR_ARGUMENT, "dtype %d, redop %d: see rr_dtype and rr_redop", spec->dtype, spec->redop);
	if (!rr_dtype_is_float((rr_dtype)spec->dtype) && rr_collective_reduces(spec->collective) &&
	    (spec->redop == RR_AVG || spec->scale != 1.0))
		return rr_fail(RR_ERR_ARGUMENT, "avg and scale need a floating dtype, this is %s", rr_dtype_name((rr_dtype)spec->dtype));
	if (isnan(spec->scale))
		return rr_fail(RR_ERR_ARGUMENT, "scale is NaN");
	if (spec->count > UINT64_MAX / 16 / rr_dtype_bytes((rr_dtype)spec->dtype))
		return rr_fail(RR_ERR_ARGUMENT, "count %llu is beyond 64-bit arithmetic in bytes", (unsigned long long)spec->count);
	if (!rows)
		return rr_fail(RR_ERR_ARGUMENT, "schedule is NULL");
	if ((int32_t)rows->world != world || (int32_t)rows->rank != rank)
		return rr_fail(RR_ERR_ARGUMENT, "the schedule is rank %u's of %u ranks, this is rank %d of %d", rows->rank,
			       rows->world, rank, world);
	if (!fits_schedule(spec))
		return rr_fail(RR_ERR_ARGUMENT, "the schedule is for %s with root %d, not for %s with root %d",
			       rr_collective_name(rows->collective), rows->root, rr_collective_name(spec->collective), spec->root);
	rr_status status = check_chunks(world, spec);
	if (status == RR_OK)
		status = check_paired(spec);
	if (status < 0)
		return status;
	if (spec->mailbox && (spec->count * rr_dtype_bytes((rr_dtype)spec->dtype) > RR_MAILBOX_BYTES ||
			      world > (int32_t)RR_MAILBOX_WORLD_MAX ||
			      (spec->collective != RR_ALL_REDUCE && spec->collective != RR_BARRIER)))
		return rr_fail(RR_ERR_UNSUPPORTED, "mailboxes carry all_reduce and barrier of at most %u bytes among at most %u ranks",
			       RR_MAILBOX_BYTES, RR_MAILBOX_WORLD_MAX);
	return RR_OK;
}

/* Whether `owner` has the row's chunks in a buffer: docs/ALGORITHMS.md, "Buffers". Cells of scratch have room for any. */
static bool has_chunks(const rr_plan_spec *spec, int32_t owner, int32_t buffer, const struct rr_row *row)
{
	const struct rr_schedule *rows = spec->schedule;
	uint64_t parts = rows->chunk_count / rows->world, begin = (uint64_t)row->chunk_begin, end = (uint64_t)row->chunk_end;
	bool own = begin >= (uint64_t)owner * parts && end <= ((uint64_t)owner + 1) * parts;
	bool root = owner == spec->root;

	if (buffer == RR_SCRATCH || begin == end)
		return true;
	switch (spec->collective) {
	case RR_REDUCE_SCATTER:
		return buffer == RR_INPUT || own;
	case RR_ALL_GATHER:
		return buffer == RR_OUTPUT || own;
	case RR_BROADCAST:
		return buffer == RR_OUTPUT || root;
	case RR_REDUCE:
		return buffer == RR_INPUT || root;
	case RR_ALL_TO_ALL: /* of the output a rank has every N-th chunk */
		return buffer == RR_INPUT ? own : begin + 1 == end && begin % rows->world == (uint64_t)owner;
	case RR_GATHER:
		return buffer == RR_INPUT ? own : root;
	case RR_SCATTER:
		return buffer == RR_INPUT ? root : own;
	default:
		return true;
	}
}

/* The row itself, where its sources lie at their senders, and where its sends land at their receivers. */
static rr_status check_places(const rr_plan_spec *spec, uint32_t index)
{
	const struct rr_schedule *rows = spec->schedule;
	const struct rr_row *row = &rows->rows[index];
	int32_t owner = (int32_t)rows->rank;
	bool ok = has_chunks(spec, owner, row->buffer, row) &&
		  (row->operand_buffer < 0 || has_chunks(spec, owner, row->operand_buffer, row));

	for (int32_t i = row->receive_begin; ok && i < row->receive_end; i++) {
		owner = rows->receives[i].peer;
		ok = has_chunks(spec, owner, rows->receives[i].source, row);
	}
	for (int32_t i = row->send_begin; ok && i < row->send_end; i++) {
		owner = rows->sends[i].peer;
		ok = rows->sends[i].lands < 0 || has_chunks(spec, owner, rows->sends[i].lands, row);
	}
	if (ok)
		return RR_OK;
	return rr_fail(RR_ERR_SCHEDULE, "row %u of rank %u of %.23s touches chunks %d to %d of an array of which rank %d has another part",
		       index, rows->rank, spec->algorithm, row->chunk_begin, row->chunk_end, owner);
}

rr_status rr_plan_check_rows(const rr_plan_spec *spec)
{
	const struct rr_schedule *rows = spec->schedule;
	rr_status status = RR_OK;

	for (uint32_t r = 0; r < rows->row_count && status == RR_OK; r++) {
		const struct rr_row *row = &rows->rows[r];
		uint32_t sources = (uint32_t)(row->receive_end - row->receive_begin) + 1;
		if (sources > RR_COMBINE_SOURCES_MAX)
			return rr_fail(RR_ERR_UNSUPPORTED, "row %u adds more than %u vectors: use algorithm ring for so many ranks",
				       r, RR_COMBINE_SOURCES_MAX);
		if (!spec->wide && (row->flags & (RR_ROW_WIDE | RR_ROW_TAKES_WIDE)))
			return rr_fail(RR_ERR_ARGUMENT, "row %u carries float32: set wide in the plan's spec", r);
		if (spec->round_count > 1 && row->chunk_end - row->chunk_begin > 1)
			return rr_fail(RR_ERR_ARGUMENT, "round_count %u: row %u moves several chunks at once", spec->round_count, r);
		/* What the two ends of a transfer compare is the count of one pair. */
		if (spec->paired && row->chunk_end - row->chunk_begin > 1 && (sources > 1 || row->send_end > row->send_begin))
			return rr_fail(RR_ERR_UNSUPPORTED, "paired: row %u moves several chunks at once", r);
		status = check_places(spec, r);
	}
	return status;
}
