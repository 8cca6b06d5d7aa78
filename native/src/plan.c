/* plan.c - plans: made, checked, bound. */
#include <stdlib.h>
#include <string.h>

#include "comm.h"
#include "engine_origin.h"
#include "forked.h"
#include "order.h"
#include "plan_check.h"
#include "stage.h"
#include "status.h"

#define SLICE_BYTES_MIN 4096u

static rr_status find_peers(struct rr_plan *plan, int32_t world)
{
	const struct rr_schedule *rows = plan->rows;

	plan->peers = calloc((size_t)world, sizeof(*plan->peers));
	plan->links = calloc(rows->link_count, sizeof(*plan->links));
	if (!plan->peers || !plan->links)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for a plan");
	for (int32_t r = 0; r < world; r++) {
		uint32_t before = plan->link_total;
		for (uint32_t link = (uint32_t)r; link < rows->link_count; link += (uint32_t)world)
			if (rows->sends_to[link] || rows->receives_from[link])
				plan->links[plan->link_total++] = link;
		if (plan->link_total > before)
			plan->peers[plan->peer_count++] = r;
	}
	return RR_OK;
}

static void find_buffers(struct rr_plan *plan, int32_t rank)
{
	const struct rr_schedule *rows = plan->rows;
	uint32_t parts = rows->chunk_count / rows->world; /* chunks a rank, of those whose chunks belong to ranks */
	uint64_t cell = 0;

	for (uint32_t r = 0; r < rows->row_count; r++) {
		const struct rr_row *row = &rows->rows[r];
		plan->uses[row->buffer] = true;
		if (row->operand_buffer >= 0)
			plan->uses[row->operand_buffer] = true;
		if (row->buffer != RR_SCRATCH && row->operand_buffer != RR_SCRATCH)
			continue;
		for (uint32_t k = 0; k < plan->round_count; k++) {
			uint64_t bytes = plan->round_count == 1
				? plan->chunk_offsets[row->chunk_end] - plan->chunk_offsets[row->chunk_begin]
				: rr_plan_part(plan, (uint32_t)row->chunk_begin, k + 1) - rr_plan_part(plan, (uint32_t)row->chunk_begin, k);
			bytes *= row->flags & RR_ROW_WIDE ? 2 : 1;
			cell = bytes > cell ? bytes : cell;
		}
	}
	plan->cell_bytes = (cell + 63) / 64 * 64;
	plan->input_end = plan->vector_bytes;
	plan->output_end = plan->vector_bytes;
	if (plan->descriptor.collective == RR_REDUCE_SCATTER || plan->descriptor.collective == RR_SCATTER) {
		plan->output_begin = plan->chunk_offsets[(uint32_t)rank * parts];
		plan->output_end = plan->chunk_offsets[((uint32_t)rank + 1) * parts];
	}
	if (plan->descriptor.collective == RR_ALL_GATHER || plan->descriptor.collective == RR_GATHER) {
		plan->input_begin = plan->chunk_offsets[(uint32_t)rank * parts];
		plan->input_end = plan->chunk_offsets[((uint32_t)rank + 1) * parts];
	}
	/* What only the root has. */
	if (plan->descriptor.collective == RR_GATHER && !plan->uses[RR_OUTPUT])
		plan->output_end = 0;
	if (plan->descriptor.collective == RR_SCATTER && !plan->uses[RR_INPUT])
		plan->input_end = 0;
	if (plan->scattered) {
		uint32_t world = rows->world;
		plan->input_begin = plan->chunk_offsets[(uint32_t)rank * world];
		plan->input_end = plan->chunk_offsets[((uint32_t)rank + 1) * world];
		plan->output_end = 0;
		for (uint32_t s = 0; s < world; s++)
			plan->output_end += rr_plan_chunk_bytes(plan, s * world + (uint32_t)rank);
	}
}

static void describe(struct rr_plan *plan, const rr_plan_spec *spec, uint64_t slice_bytes)
{
	struct rr_descriptor *descriptor = &plan->descriptor;

	descriptor->count = spec->paired ? 0 : spec->count;
	descriptor->schedule = spec->schedule->identity;
	descriptor->chunks = spec->paired ? 0 : rr_hash_bytes(spec->chunk_offsets, (spec->schedule->chunk_count + 1) * sizeof(uint64_t), 0);
	descriptor->slice_bytes = slice_bytes;
	descriptor->scale = spec->scale;
	descriptor->collective = spec->collective;
	descriptor->dtype = spec->dtype;
	descriptor->redop = rr_collective_reduces(spec->collective) ? spec->redop : 0;
	descriptor->root = spec->root;
	descriptor->round_count = plan->round_count;
	descriptor->mailbox = spec->mailbox;
	memcpy(descriptor->algorithm, spec->algorithm, sizeof(descriptor->algorithm));
	descriptor->costs = spec->costs;
	descriptor->check = plan->check;
	descriptor->channels = spec->mailbox ? 1 : (uint8_t)rr_schedule_channel_count(spec->schedule);
	descriptor->hash = rr_descriptor_hash(descriptor);
}

static rr_status fill(struct rr_plan *plan, int32_t rank, int32_t world, uint64_t slot_bytes, const uint32_t *channels,
		      const rr_plan_spec *spec)
{
	uint64_t slice_bytes = spec->slice_bytes ? spec->slice_bytes : slot_bytes;
	uint32_t chunk_count = spec->schedule->chunk_count;
	uint64_t cells;

	/* Slices are counted in bytes of the vector; a wide one takes twice that in a slot. */
	slot_bytes = spec->wide ? slot_bytes / 2 / 64 * 64 : slot_bytes;
	if (spec->wide && slot_bytes < SLICE_BYTES_MIN)
		return rr_fail(RR_ERR_UNSUPPORTED, "wide needs slots of at least %u bytes", 2 * SLICE_BYTES_MIN);
	slice_bytes = slice_bytes > slot_bytes ? slot_bytes : slice_bytes;
	slice_bytes = slice_bytes < SLICE_BYTES_MIN ? SLICE_BYTES_MIN : slice_bytes / 64 * 64;
	plan->element_bytes = (uint32_t)rr_dtype_bytes((rr_dtype)spec->dtype);
	plan->vector_bytes = spec->count * plan->element_bytes;
	plan->slice_bytes = (uint32_t)slice_bytes;
	plan->round_count = spec->round_count ? spec->round_count : 1;
	plan->mailbox = spec->mailbox != 0;
	plan->paired = spec->paired != 0;
	plan->check = spec->check != 0;
	plan->scattered = spec->collective == RR_ALL_TO_ALL;
	plan->pass = rr_combine_lookup((rr_dtype)spec->dtype, (rr_redop)spec->redop, rr_simd_level_best());
	plan->wide_pass = spec->wide ? rr_combine_lookup_wide((rr_dtype)spec->dtype, (rr_redop)spec->redop) : NULL;
	if (spec->wide && !plan->wide_pass)
		return rr_fail(RR_ERR_ARGUMENT, "wide is for sum and avg of float16 and bfloat16, not for %s of %s",
			       rr_redop_name((rr_redop)spec->redop), rr_dtype_name((rr_dtype)spec->dtype));
	plan->factor = spec->scale / (spec->redop == RR_AVG ? world : 1);
	plan->post = rr_collective_reduces(spec->collective) && plan->factor != 1.0;
	plan->rows = rr_schedule_copy(spec->schedule);
	plan->chunk_offsets = calloc((size_t)chunk_count + 1, sizeof(uint64_t));
	if (plan->scattered) {
		plan->extents = calloc((size_t)world, sizeof(*plan->extents));
		plan->starts = calloc((size_t)world, sizeof(*plan->starts));
	}
	if (!plan->rows || !plan->chunk_offsets || (plan->scattered && (!plan->extents || !plan->starts)))
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for a plan of %u rows", spec->schedule->row_count);
	for (uint32_t c = 0; c <= chunk_count; c++)
		plan->chunk_offsets[c] = spec->chunk_offsets[c] * plan->element_bytes;
	rr_status status = rr_schedule_bind(plan->rows, channels);
	if (status >= 0)
		status = find_peers(plan, world);
	if (status < 0)
		return status;
	describe(plan, spec, slice_bytes);
	find_buffers(plan, rank);
	if (plan->check && !(plan->kept = rr_origin_kept(plan->rows)))
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for a plan of %u rows", plan->rows->row_count);
	/* Two rounds are open at most: their cells alternate. */
	if (__builtin_mul_overflow(plan->cell_bytes, 2ull * plan->rows->cell_count, &cells) || cells > UINT64_MAX / 2)
		return rr_fail(RR_ERR_SCHEDULE, "%u cells of %llu bytes are beyond 64-bit arithmetic", plan->rows->cell_count,
			       (unsigned long long)plan->cell_bytes);
	if (plan->uses[RR_SCRATCH] && !plan->mailbox)
		plan->scratch_bytes = cells / (plan->round_count > 1 ? 1 : 2) + 64;
	return RR_OK;
}

void rr_plan_unmake(struct rr_plan *plan)
{
	if (plan->listed)
		plan->listed->free(plan->listed);
	rr_schedule_free(plan->rows);
	free(plan->chunk_offsets);
	free(plan->peers);
	free(plan->staged);
	free(plan->extents);
	free(plan->starts);
	free(plan->links);
	free(plan->kept);
	free(plan);
}

rr_status rr_plan_make(int32_t rank, int32_t world, uint64_t slot_bytes, const uint32_t *channels,
		       const rr_plan_spec *spec, struct rr_plan **out)
{
	rr_status status = rr_plan_check_spec(rank, world, spec);
	struct rr_plan *plan;

	if (status >= 0)
		status = rr_plan_check_rows(spec);
	if (status < 0)
		return status;
	plan = calloc(1, sizeof(*plan));
	if (!plan)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for a plan");
	plan->process_mark = rr_forked_mark();
	status = fill(plan, rank, world, slot_bytes, channels, spec);
	if (status < 0) {
		rr_plan_unmake(plan);
		return status;
	}
	*out = plan;
	return RR_OK;
}

/* Scratch moves when it grows: not under an operation that uses it. */
static rr_status grow_scratch(struct rr_comm *comm, const struct rr_plan *plan)
{
	uint64_t bytes = plan->listed ? 0 : plan->scratch_bytes; /* lists have their own */

	if (bytes <= (plan->device ? comm->device_scratch_bytes : comm->scratch_bytes))
		return RR_OK;
	for (struct rr_work *work = comm->first; work; work = comm->first)
		rr_drive_held(comm, work, UINT64_MAX);
	if (comm->failed)
		return rr_error_set(&comm->failure);
	return plan->device ? rr_comm_device_scratch(comm, bytes) : rr_comm_scratch(comm, bytes);
}

/* Whether the communicator's device serves it. Mailboxes are host memory: the rows are run instead. */
static rr_status check_device(const struct rr_comm *comm, rr_plan_spec *spec)
{
	if (!comm->device)
		return rr_fail(RR_ERR_ARGUMENT, "on_device: this communicator has no device; rr_comm_use_device() gives it one");
	if (spec->check)
		return rr_fail(RR_ERR_UNSUPPORTED, "check: the CRC32C of slices in GPU memory is not computed; accepted are vectors in host memory");
	if (spec->dtype < 0 || spec->dtype >= (int32_t)RR_DTYPE_COUNT || spec->redop < 0 || spec->redop >= (int32_t)RR_REDOP_COUNT)
		return RR_OK; /* refused with the others */
	spec->mailbox = 0;
	return comm->device->ops->serves(comm->device, (rr_dtype)spec->dtype, rr_collective_reduces(spec->collective) ? (rr_redop)spec->redop : RR_SUM);
}

static rr_status put_on_device(struct rr_plan *plan, struct rr_comm *comm, const rr_plan_spec *spec)
{
	rr_status status = RR_OK;

	plan->device = comm->device;
	plan->descriptor.device = (uint8_t)comm->device->ops->kind;
	if (spec->on_streams && !comm->lists)
		return rr_fail(RR_ERR_ARGUMENT, "on_streams: this communicator has no lists; rr_comm_use_lists() gives it some");
	if (spec->on_streams) {
		rr_plan_spec listed = *spec;
		if (comm->far)
			listed.slice_bytes = plan->slice_bytes; /* what links to other nodes take */
		status = comm->lists->ops->make(comm->lists, &listed, &plan->listed);
	}
	plan->descriptor.listed = plan->listed ? 1 : 0;
	plan->descriptor.hash = rr_descriptor_hash(&plan->descriptor);
	return status;
}

/* The driver is in hand. */
static rr_status make_bound(struct rr_comm *comm, rr_plan_spec *spec, struct rr_plan **out)
{
	rr_status status = spec->on_device ? check_device(comm, spec) : RR_OK;
	struct rr_plan *plan = NULL;

	if (status >= 0)
		status = rr_plan_make(comm->rank, comm->world, comm->shm.layout.slot_bytes, comm->edge_channels, spec, &plan);
	if (status < 0)
		return status;
	if (spec->on_device)
		status = put_on_device(plan, comm, spec);
	if (status >= 0)
		status = rr_stage_find(comm, plan);
	if (status >= 0)
		status = grow_scratch(comm, plan);
	if (status < 0) {
		rr_plan_unmake(plan);
		return status;
	}
	for (uint32_t i = 0; i < plan->peer_count; i++)
		plan->far = plan->far || !rr_shm_has(&comm->shm, plan->peers[i]);
	for (uint32_t i = 0; i < plan->link_total; i++)
		plan->rdma = plan->rdma || comm->engine.out[plan->links[i]]->kind == RR_LINK_RDMA;
	plan->descriptor_index = comm->descriptor_next++ % RR_DESCRIPTOR_COUNT;
	plan->comm = comm;
	rr_comm_retain(comm);
	*out = plan;
	return RR_OK;
}

rr_status rr_plan_create(rr_comm *comm, const rr_plan_spec *given, rr_plan **out)
{
	rr_plan_spec spec = *given;
	rr_status status = rr_comm_begin(comm);

	if (status < 0)
		return status;
	status = make_bound(comm, &spec, out);
	rr_drive_leave(comm);
	return status;
}

void rr_plan_free(rr_plan *plan)
{
	if (!plan || plan->process_mark != rr_forked_mark()) /* of a parent, which may have used it at the fork */
		return;
	rr_comm_release(plan->comm);
	rr_plan_unmake(plan);
}
