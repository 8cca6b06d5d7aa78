/* operation.c - the operations of a communicator, one after another in call order. */
#include "comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "memory.h"
#include "order.h"
#include "stage.h"
#include "status.h"

/*
 * Ordinary memory up to so many bytes is copied by us, through slots or staged; what is larger is read by the kernel
 * (CMA). The kernel's copy is slower than ours (it pins every page), but beyond the caches fewer copies count for
 * more; with two ranks never. Measured; docs/BENCHMARKS.md.
 */
#define COPIED_BYTES_MAX (4ull << 20)
/* Among so many ranks, input is staged: it saves them a meeting, which costs more than what pipelining gains. */

static bool by_kernel(const struct rr_comm *comm, uint64_t bytes)
{
	return comm->shm.count > 2 && bytes > COPIED_BYTES_MAX;
}

static bool is_staged(const struct rr_comm *comm, const struct rr_plan *plan, const struct rr_place *place)
{
	return comm->shm.count >= RR_STAGED_RANKS_MIN && place->reach == RR_REACH_NONE &&
	       plan->input_end - plan->input_begin <= COPIED_BYTES_MAX;
}

void rr_operation_enqueue(struct rr_comm *comm, struct rr_work *work)
{
	work->next = NULL;
	work->status = RR_AGAIN;
	work->op = ++comm->op;
	rr_note32(&work->state, RR_WORK_QUEUED);
	if (comm->last)
		comm->last->next = work;
	else
		comm->first = work;
	comm->last = work;
	atomic_fetch_add_explicit(&comm->unfinished, 1, memory_order_seq_cst);
}

rr_status rr_operation_place(struct rr_comm *comm, const void *address, uint64_t bytes, uint64_t begin,
			     struct rr_place *out)
{
	struct rr_region region;

	*out = (struct rr_place){0};
	if (!address || !bytes)
		return RR_OK;
	if (rr_memory_find(address, bytes, &region)) {
		rr_status status = rr_shm_announce(&comm->shm, &region);
		if (status != RR_OK)
			return status;
		out->base = (uint64_t)((const char *)address - region.address) - begin;
		out->region = region.id;
		out->reach = RR_REACH_REGION;
	} else if (by_kernel(comm, bytes)) {
		out->base = (uint64_t)(uintptr_t)address - begin;
		out->reach = RR_REACH_CMA;
	}
	return RR_OK;
}

/* Input's and output's places, from the plan's cache while addresses and regions are the same. */
static rr_status find_places(struct rr_comm *comm, struct rr_work *work, struct rr_place *places)
{
	struct rr_plan *plan = work->plan;
	uint64_t generation = rr_memory_generation();
	const void *addresses[2] = {work->input.zero || !work->input.count ? work->input_address : NULL,
				    work->output.zero || !work->output.count ? work->output_address : NULL};
	uint64_t begins[2] = {plan->input_begin, plan->output_begin};
	uint64_t ends[2] = {plan->input_end, plan->output_end};

	memset(places, 0, RR_BUFFER_COUNT * sizeof(*places));
	if (plan->paired) /* the engine tells none */
		return RR_OK;
	for (int b = 0; b < 2; b++) {
		if ((b == 0 ? &work->input : &work->output)->extents) {
			/* Several pieces: through slots, or staged. Nothing to keep. */
			plan->place_address[b] = &plan->place;
			continue;
		}
		if (plan->place_generation != generation || plan->place_address[b] != addresses[b]) {
			rr_status status = rr_operation_place(comm, addresses[b], ends[b] - begins[b], begins[b], &plan->place[b]);
			if (status != RR_OK) {
				plan->place_generation = 0;
				return status;
			}
			plan->place_address[b] = addresses[b];
		}
		places[b] = plan->place[b];
	}
	plan->place_generation = generation;
	if (is_staged(comm, plan, &places[RR_INPUT])) {
		rr_status status = rr_stage_input(comm, work, &places[RR_INPUT]);
		if (status != RR_OK)
			return status;
	}
	if (plan->scratch_bytes)
		return rr_operation_place(comm, comm->scratch, comm->scratch_bytes, 0, &places[RR_SCRATCH]);
	return RR_OK;
}

/* The allocation around a piece, known to links from here on; *out NONE: they reach it through slots alone. */
static rr_status device_place(struct rr_device *device, const void *address, uint64_t bytes, uint64_t begin, struct rr_place *out)
{
	struct rr_gdr_region region = {0};
	rr_status status = address ? device->ops->region(device, address, bytes, &region) : RR_OK;

	if (status == RR_OK && region.id)
		*out = (struct rr_place){.base = (uint64_t)(uintptr_t)address - region.begin - begin, .region = region.id,
					 .reach = RR_REACH_DEVICE};
	return status;
}

/* Where NICs may reach vectors in a device's memory: looked up anew each time, for what was freed is not ours to know. */
static rr_status find_device_places(struct rr_comm *comm, const struct rr_work *work, struct rr_place *places)
{
	const struct rr_plan *plan = work->plan;
	struct rr_device *device = plan->device;
	const void *addresses[2] = {work->input_address, work->output_address};
	uint64_t begins[2] = {plan->input_begin, plan->output_begin};
	uint64_t ends[2] = {plan->input_end, plan->output_end};
	struct rr_place seen;
	rr_status status = RR_OK;

	for (int b = 0; b < 2 && status == RR_OK; b++) {
		const struct rr_buffer *buffer = b == 0 ? &work->input : &work->output;
		for (uint32_t i = 0; buffer->extents && i < buffer->count && status == RR_OK; i++) /* pieces: only read in place */
			status = device_place(device, buffer->extents[i].address, buffer->extents[i].bytes, 0, &seen);
		if (!buffer->extents && status == RR_OK)
			status = device_place(device, addresses[b], ends[b] - begins[b], begins[b], &places[b]);
	}
	if (status == RR_OK && plan->scratch_bytes)
		status = device_place(device, comm->device_scratch, comm->device_scratch_bytes, 0, &places[RR_SCRATCH]);
	return status;
}

static void enter(struct rr_comm *comm, struct rr_work *work)
{
	struct rr_page *page = comm->shm.page;
	struct rr_plan *plan = work->plan;
	struct rr_descriptor *told = &page->descriptors[plan->descriptor_index];

	if (told->hash != plan->descriptor.hash) /* a later plan took our place in the table */
		*told = plan->descriptor;
	rr_publish64(&page->entries[work->op % RR_ENTRY_COUNT], rr_entry(work->op, plan->descriptor_index));
}

static rr_status start(struct rr_comm *comm, struct rr_work *work)
{
	struct rr_plan *plan = work->plan;
	struct rr_buffer buffers[RR_BUFFER_COUNT] = {work->input, work->output};
	struct rr_place places[RR_BUFFER_COUNT];
	rr_status status;

	work->started_ns = work->started_ns ? work->started_ns : rr_now_ns();
	if (plan->mailbox) {
		enter(comm, work);
		rr_mailbox_post(&comm->mailbox, plan, &work->input);
		rr_mailbox_ring(&comm->mailbox);
		rr_note32(&work->state, RR_WORK_RUNNING);
		return RR_OK;
	}
	rr_keep_take(comm, work);
	if (plan->device) {
		memset(places, 0, sizeof(places));
		status = plan->rdma && !plan->listed ? find_device_places(comm, work, places) : RR_OK; /* of a list NICs see slots alone */
		if (status != RR_OK)
			return status;
		buffers[RR_SCRATCH] = (struct rr_buffer){.zero = comm->device_scratch};
	} else {
		status = find_places(comm, work, places);
		if (status != RR_OK)
			return status;
		buffers[RR_SCRATCH] = (struct rr_buffer){.zero = comm->scratch}; /* it may have moved */
	}
	comm->engine.device = plan->device ? plan->device : &rr_device_cpu;
	comm->engine.lists = comm->lists;
	comm->engine.emission = work->emission;
	status = rr_engine_start(&comm->engine, plan, work->op, buffers, places);
	if (status == RR_OK && plan->device && plan->rdma && !plan->listed)
		status = rr_engine_behind_device(&comm->engine);
	if (status != RR_OK)
		return status;
	enter(comm, work);
	for (uint32_t i = 0; i < plan->peer_count; i++) {
		int32_t peer = plan->peers[i];
		rr_link_stats moved = rr_comm_moved(comm, peer);
		comm->sent_before[peer] = moved.sent_bytes;
		comm->received_before[peer] = moved.received_bytes;
	}
	rr_note32(&work->state, RR_WORK_RUNNING);
	return RR_OK;
}

/* What its streams have moved past the links of the host. */
static void count_list(struct rr_comm *comm, const struct rr_plan *plan)
{
	for (uint32_t i = 0; i < plan->peer_count; i++) {
		int32_t peer = plan->peers[i];
		comm->engine.out[peer]->bytes += plan->listed->sent_bytes[peer];
		comm->engine.in[peer]->bytes += plan->listed->received_bytes[peer];
	}
}

static void count_engine(struct rr_comm *comm, const struct rr_plan *plan, rr_run_stats *stats)
{
	for (uint32_t i = 0; i < plan->peer_count; i++) {
		int32_t peer = plan->peers[i];
		rr_link_stats *link = &comm->link_stats[peer];
		rr_link_stats moved = rr_comm_moved(comm, peer);
		link->sent_bytes = moved.sent_bytes - comm->sent_before[peer];
		link->received_bytes = moved.received_bytes - comm->received_before[peer];
		stats->sent_bytes += link->sent_bytes;
		stats->received_bytes += link->received_bytes;
	}
	stats->steps = plan->rows->step_count;
}

static void finish(struct rr_comm *comm, struct rr_work *work)
{
	struct rr_plan *plan = work->plan;
	struct rr_page *page = comm->shm.page;
	rr_run_stats stats = {.op = work->op, .elapsed_ns = rr_now_ns() - work->started_ns};

	if (plan->mailbox) {
		stats.steps = 1;
		stats.sent_bytes = plan->vector_bytes * (uint64_t)(comm->world - 1);
		stats.received_bytes = stats.sent_bytes;
		comm->last_mailbox = true;
		comm->last_mailbox_bytes = plan->vector_bytes;
		comm->mailbox_sent_bytes += plan->vector_bytes;
		comm->mailbox_sent_slices++;
	} else {
		memset(comm->link_stats, 0, (size_t)comm->world * sizeof(*comm->link_stats));
		comm->last_mailbox = false;
		if (plan->listed && !work->emission.captured)
			count_list(comm, plan);
		count_engine(comm, plan, &stats);
	}
	comm->stats = stats;
	rr_trace_operation(comm->engine.trace, work->op, plan->descriptor.collective, plan->vector_bytes, work->started_ns,
			   false);
	rr_publish64(&page->op_done, work->op);
	if (comm->judged)
		rr_judge_moves(comm);
	comm->kept_of = NULL;
	comm->first = work->next;
	if (!comm->first)
		comm->last = NULL;
	work->stats = stats;
	for (int32_t r = 0; work->link_stats && r < comm->world; r++)
		work->link_stats[r] = rr_comm_link_stats(comm, r);
	work->status = RR_OK;
	atomic_fetch_sub_explicit(&comm->unfinished, 1, memory_order_relaxed);
	rr_publish32(&work->state, RR_WORK_DONE); /* pairs with rr_work_wait() */
}

/* Counts that differ by pair are known to the two ends alone: found with their first slice, when both were in. */
static void tell_row_mismatch(struct rr_comm *comm, rr_error *error)
{
	char found[sizeof(error->message)];
	int32_t peer = comm->engine.waiting_peer;

	memcpy(found, error->message, sizeof(found));
	rr_fail(RR_ERR_MISMATCH, "ranks disagree in op %llu: rank %d, %s", (unsigned long long)comm->first->op, comm->rank, found);
	error->peer = peer;
	error->row = comm->engine.waiting_row;
	snprintf(error->hint, sizeof(error->hint), "what rank a gives as its count for rank b, b must give as its count from a");
}

/* An error of the operation in flight: add where, and end everything. */
static void lose(struct rr_comm *comm, struct rr_work *work, rr_status status)
{
	rr_error *error = rr_error_here();
	int32_t peer = error->peer;

	if (status == RR_ERR_MISMATCH && !work->plan->mailbox && comm->engine.phase != RR_OPENING) {
		tell_row_mismatch(comm, error);
	} else if (status == RR_ERR_MISMATCH) {
		peer = work->plan->mailbox ? comm->mailbox.mismatch : comm->engine.waiting_peer;
		rr_watch_mismatch(comm, peer, work->op);
	} else if (!work->plan->mailbox) {
		error->peer = peer >= 0 ? peer : comm->engine.waiting_peer;
		error->row = comm->engine.waiting_row;
	}
	error->op = (int64_t)work->op;
	rr_watch_fail(comm, error);
}

rr_status rr_operation_progress(struct rr_comm *comm, bool *moved)
{
	if (comm->messages) {
		rr_status status = rr_message_progress(comm, moved);
		if (status < 0)
			return status;
	}
	for (struct rr_work *work = comm->first; work; work = comm->first) {
		rr_status status = RR_OK;

		if (rr_own32(&work->state) == RR_WORK_QUEUED) {
			status = start(comm, work);
			*moved = *moved || status == RR_OK;
		}
		if (status == RR_OK)
			status = work->plan->mailbox ? rr_mailbox_poll(&comm->mailbox, work->plan, &work->output)
						     : rr_engine_progress(&comm->engine, moved);
		if (status == RR_AGAIN)
			return RR_AGAIN;
		if (status < 0) {
			lose(comm, work, status);
			return status;
		}
		/* A rank that was lost inside let its list run on with what it had: it said so before. */
		if (work->plan->listed) {
			rr_watch_look(comm);
			if (comm->failed)
				return rr_error_set(&comm->failure);
		}
		finish(comm, work);
		*moved = true;
	}
	return RR_OK;
}
