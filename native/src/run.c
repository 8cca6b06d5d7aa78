/* run.c - runs of plans: blocking, bound, and asynchronous. Check, enqueue, drive. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "comm.h"
#include "order.h"
#include "status.h"

#define TINY_YIELDS 16u /* then the message waits as an operation in the queue */
#define RETURN_NS (50 * RR_NS_PER_MS) /* an interpreter wants to look at its signals */

static rr_status check_buffers(const struct rr_plan *plan, const void *input, const void *output)
{
	if (plan->uses[RR_INPUT] && !input && plan->input_end > plan->input_begin)
		return rr_fail(RR_ERR_ARGUMENT, "input is NULL: this rank gives %llu bytes to %s",
			       (unsigned long long)(plan->input_end - plan->input_begin),
			       rr_collective_name(plan->descriptor.collective));
	if (plan->uses[RR_OUTPUT] && !output && plan->output_end > plan->output_begin)
		return rr_fail(RR_ERR_ARGUMENT, "output is NULL: this rank gets %llu bytes of %s",
			       (unsigned long long)(plan->output_end - plan->output_begin),
			       rr_collective_name(plan->descriptor.collective));
	return RR_OK;
}

static rr_status check_executor(const struct rr_plan *plan, bool on_streams)
{
	if ((plan->listed != NULL) == on_streams)
		return RR_OK;
	return rr_fail(RR_ERR_ARGUMENT, on_streams ? "the plan is none with on_streams: rr_plan_start() starts it"
						   : "the plan is a list on streams: rr_plan_start_on() starts it");
}

/*
 * Lays pieces of memory out in the vector's coordinates. Pieces are cut where the part of the vector that they hold is:
 * in all_to_all the output is a chunk from every rank. Empty ones are left out; there is room for all.
 */
static void place_extents(struct rr_buffer *buffer, const struct rr_plan *plan, bool scattered, uint64_t begin,
			  const rr_extent *from, uint32_t count, rr_extent *extents, uint64_t *starts)
{
	uint32_t kept = 0, world = plan->rows->world;
	uint32_t part = 0, chunk = plan->rows->rank;
	uint64_t left_of_part = scattered ? rr_plan_chunk_bytes(plan, chunk) : UINT64_MAX;

	begin = scattered ? plan->chunk_offsets[chunk] : begin;
	for (uint32_t i = 0; i < count; i++) {
		for (uint64_t done = 0; done < from[i].bytes; kept++) {
			while (!left_of_part && ++part < world) {
				chunk += world;
				begin = plan->chunk_offsets[chunk];
				left_of_part = rr_plan_chunk_bytes(plan, chunk);
			}
			uint64_t bytes = from[i].bytes - done < left_of_part ? from[i].bytes - done : left_of_part;
			extents[kept] = (rr_extent){.address = (char *)from[i].address + done, .bytes = bytes};
			starts[kept] = begin;
			done += bytes;
			begin += bytes;
			left_of_part -= bytes;
		}
	}
	*buffer = (struct rr_buffer){.extents = extents, .starts = starts, .count = kept};
}

static void set_work(struct rr_work *work, struct rr_plan *plan, const void *input, void *output, uint64_t timeout_ns)
{
	struct rr_comm *comm = plan->comm;

	work->comm = comm;
	work->world = comm->world;
	work->plan = plan;
	work->input_address = input;
	work->output_address = output;
	work->input = (struct rr_buffer){.zero = (char *)((uintptr_t)input - plan->input_begin)};
	work->output = (struct rr_buffer){.zero = (char *)((uintptr_t)output - plan->output_begin)};
	work->started_ns = rr_now_ns();
	work->deadline_ns = work->started_ns + (timeout_ns ? timeout_ns : comm->options.timeout_ns);
}

/* A tiny message whose peers answer while we spin: no clock, no queue. RR_AGAIN: they did not. */
static rr_status run_tiny(struct rr_comm *comm, struct rr_plan *plan, const struct rr_buffer *input,
			  const struct rr_buffer *output)
{
	struct rr_page *page = comm->shm.page;
	struct rr_descriptor *told = &page->descriptors[plan->descriptor_index];
	uint64_t begin_ns = comm->engine.trace ? rr_now_ns() : 0;
	uint32_t pauses = rr_spin_pauses(&comm->spin), spin = 0;
	rr_status status = RR_AGAIN;

	if (told->hash != plan->descriptor.hash)
		*told = plan->descriptor;
	comm->op++;
	rr_publish64(&page->entries[comm->op % RR_ENTRY_COUNT], rr_entry(comm->op, plan->descriptor_index));
	rr_mailbox_post(&comm->mailbox, plan, input);
	for (; spin <= pauses + TINY_YIELDS; spin++) {
		status = rr_mailbox_poll(&comm->mailbox, plan, output);
		if (status != RR_AGAIN)
			break;
		if (spin < pauses) {
			rr_pause();
			continue;
		}
		rr_mailbox_ring(&comm->mailbox);
		sched_yield();
	}
	rr_mailbox_ring(&comm->mailbox);
	if (pauses && spin)
		rr_spin_ended(&comm->spin, spin <= pauses);
	if (status != RR_OK)
		return RR_AGAIN; /* also a mismatch: the queue's way tells it */
	rr_publish64(&page->op_done, comm->op);
	comm->mailbox_sent_bytes += plan->vector_bytes;
	comm->mailbox_sent_slices++;
	comm->last_mailbox = true;
	comm->last_mailbox_bytes = plan->vector_bytes;
	comm->stats = (rr_run_stats){.op = comm->op, .steps = 1,
				     .sent_bytes = plan->vector_bytes * (uint64_t)(comm->world - 1),
				     .received_bytes = plan->vector_bytes * (uint64_t)(comm->world - 1)};
	rr_trace_operation(comm->engine.trace, comm->op, plan->descriptor.collective, plan->vector_bytes, begin_ns, false);
	return RR_OK;
}

/* What run_tiny() began goes on as an operation like any other. */
static void continue_tiny(struct rr_comm *comm, struct rr_work *work)
{
	comm->op--;
	rr_operation_enqueue(comm, work);
	rr_note32(&work->state, RR_WORK_RUNNING);
}

/*
 * A blocking call, the driver in hand. lists: of several pieces, in place of input and output; what it holds becomes the
 * call's.
 */
static rr_status run_held(struct rr_comm *comm, struct rr_plan *plan, const void *input, void *output, struct rr_work *lists,
			  uint64_t timeout_ns)
{
	struct rr_work *work = &comm->call;

	if (rr_own32(&work->state) != RR_WORK_DONE && work->comm)
		return rr_fail(RR_ERR_ARGUMENT, "a call is in flight on this communicator: one thread at a time may use it (in C: rr_comm_resume() first)");
	const struct rr_buffer from = lists && lists->input.extents ? lists->input
								    : (struct rr_buffer){.zero = (char *)(uintptr_t)input};
	const struct rr_buffer to = lists && lists->output.extents ? lists->output : (struct rr_buffer){.zero = output};
	if (work->extents || lists) { /* those of the call before; not looked at in calls of one piece each */
		rr_run_forget_lists(work);
		work->extents = lists ? lists->extents : NULL;
		work->starts = lists ? lists->starts : NULL;
		if (lists)
			lists->extents = NULL, lists->starts = NULL;
	}
	bool tiny = plan->mailbox && !comm->first;
	if (tiny && run_tiny(comm, plan, &from, &to) == RR_OK)
		return RR_OK;
	set_work(work, plan, input, output, timeout_ns);
	if (from.extents)
		work->input = from;
	if (to.extents)
		work->output = to;
	if (!lists && plan->scattered) {
		const rr_extent whole = {.address = output, .bytes = plan->output_end};
		place_extents(&work->output, plan, true, 0, &whole, 1, plan->extents, plan->starts);
	}
	if (tiny) {
		continue_tiny(comm, work);
	} else {
		rr_status status = rr_keep_reserve(comm, work);
		if (status < 0) {
			rr_note32(&work->state, RR_WORK_DONE); /* no call is in flight */
			return status;
		}
		rr_operation_enqueue(comm, work);
	}
	return rr_drive_held(comm, work, work->started_ns + RETURN_NS);
}

static rr_status run(struct rr_plan *plan, const void *input, void *output, struct rr_work *lists, uint64_t timeout_ns)
{
	struct rr_comm *comm = plan->comm;
	rr_status status = check_executor(plan, false);

	if (status >= 0)
		status = rr_comm_begin(comm);
	if (status < 0)
		return status;
	status = run_held(comm, plan, input, output, lists, timeout_ns);
	rr_drive_leave(comm);
	return status;
}

rr_status rr_plan_run(rr_plan *plan, const void *input, void *output, uint64_t timeout_ns)
{
	rr_status status = check_buffers(plan, input, output);

	return status < 0 ? status : run(plan, input, output, NULL, timeout_ns);
}

rr_status rr_plan_run_here(rr_plan *plan, void *buffer)
{
	rr_status status = check_buffers(plan, buffer, buffer);

	return status < 0 ? status : run(plan, buffer, buffer, NULL, 0);
}

rr_status rr_comm_resume(rr_comm *comm)
{
	rr_status status = rr_comm_here(comm);

	if (status < 0)
		return status;
	if (!comm->call.comm)
		return rr_fail(RR_ERR_ARGUMENT, "no blocking call is in flight");
	return rr_drive(comm, &comm->call, rr_now_ns() + RETURN_NS);
}

rr_status rr_plan_bind(rr_plan *plan, const void *input, void *output)
{
	rr_status status = check_buffers(plan, input, output);

	if (status < 0)
		return status;
	plan->bound_input = input;
	plan->bound_output = output;
	plan->bound = true;
	return RR_OK;
}

rr_status rr_plan_call(rr_plan *plan)
{
	if (!plan->bound)
		return rr_fail(RR_ERR_ARGUMENT, "the plan has no buffers: call rr_plan_bind() first");
	return run(plan, plan->bound_input, plan->bound_output, NULL, 0);
}

/* ---- asynchronous ---- */

static rr_status sum_extents(const rr_extent *extents, uint32_t count, uint32_t element_bytes, uint64_t need,
			     const char *name)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < count; i++) {
		if (extents[i].bytes % element_bytes || (extents[i].bytes && !extents[i].address))
			return rr_fail(RR_ERR_ARGUMENT, "%s extent %u: %llu bytes at %p", name, i,
				       (unsigned long long)extents[i].bytes, extents[i].address);
		bytes += extents[i].bytes;
	}
	if (bytes != need)
		return rr_fail(RR_ERR_ARGUMENT, "%s extents hold %llu bytes, this rank's part has %llu", name,
			       (unsigned long long)bytes, (unsigned long long)need);
	return RR_OK;
}

static rr_status set_extents(struct rr_work *work, struct rr_plan *plan, const rr_extent *input, uint32_t input_count,
			     const rr_extent *output, uint32_t output_count)
{
	uint32_t output_room = output_count + (plan->scattered ? plan->rows->world : 0);
	size_t count = (size_t)input_count + output_room;

	work->extents = calloc(count + 1, sizeof(*work->extents));
	work->starts = calloc(count + 1, sizeof(*work->starts));
	if (!work->extents || !work->starts)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for %zu extents", count);
	if (input_count > 1)
		place_extents(&work->input, plan, false, plan->input_begin, input, input_count, work->extents, work->starts);
	if (output_count > 1 || plan->scattered)
		place_extents(&work->output, plan, plan->scattered, plan->output_begin, output, output_count,
			      work->extents + input_count, work->starts + input_count);
	return RR_OK;
}

void rr_run_forget_lists(struct rr_work *work)
{
	free(work->extents);
	free(work->starts);
	work->extents = NULL;
	work->starts = NULL;
}

struct rr_work *rr_work_make(struct rr_comm *comm)
{
	struct rr_work *work = calloc(1, sizeof(*work));

	if (work)
		work->link_stats = calloc((size_t)comm->world, sizeof(*work->link_stats));
	if (!work || !work->link_stats) {
		free(work);
		rr_fail(RR_ERR_NO_MEMORY, "no memory for a work");
		return NULL;
	}
	work->comm = comm;
	work->world = comm->world;
	rr_comm_retain(comm);
	return work;
}

void rr_work_unmake(struct rr_work *work)
{
	rr_comm_release(work->comm);
	free(work->link_stats);
	rr_run_forget_lists(work);
	free(work);
}

static rr_status check_lists(const struct rr_plan *plan, const rr_extent *input, uint32_t input_count,
			     const rr_extent *output, uint32_t output_count)
{
	rr_status status = RR_OK;

	if (plan->uses[RR_INPUT])
		status = sum_extents(input, input_count, plan->element_bytes, plan->input_end - plan->input_begin, "input");
	if (status >= 0 && plan->uses[RR_OUTPUT])
		status = sum_extents(output, output_count, plan->element_bytes, plan->output_end - plan->output_begin, "output");
	return status;
}

rr_status rr_plan_run_lists(rr_plan *plan, const rr_extent *input, uint32_t input_count, const rr_extent *output,
			    uint32_t output_count, uint64_t timeout_ns)
{
	struct rr_work lists = {0};
	rr_status status = check_lists(plan, input, input_count, output, output_count);

	if (status < 0)
		return status;
	status = set_extents(&lists, plan, input, input_count, output, output_count);
	if (status >= 0)
		status = run(plan, input_count ? input[0].address : NULL, output_count ? output[0].address : NULL, &lists,
			     timeout_ns);
	rr_run_forget_lists(&lists); /* which the call did not take */
	return status;
}

/* Its list into streams. Half a list there would be waited for by all that come: the communicator is lost then. */
static rr_status emit(struct rr_comm *comm, struct rr_work *work, const rr_list_streams *streams)
{
	struct rr_lists *lists = comm->lists;
	rr_status status = lists->ops->emit(lists, work->plan->listed, &work->input, &work->output, streams, &work->emission);

	if (status < 0 && work->emission.ticket)
		rr_watch_fail(comm, rr_error_here());
	return status;
}

/* The driver is in hand. streams: of a plan with a list. */
static rr_status start_held(struct rr_comm *comm, struct rr_work *work, const rr_list_streams *streams)
{
	rr_status status = rr_keep_reserve(comm, work);
	bool moved = false;

	if (status >= 0 && streams)
		status = emit(comm, work, streams);
	if (status < 0)
		return status;
	rr_operation_enqueue(comm, work);
	rr_operation_progress(comm, &moved); /* what can be done at once; the peers learn that we are here */
	return RR_OK;
}

static rr_status start(rr_plan *plan, const rr_extent *input, uint32_t input_count, const rr_extent *output,
		       uint32_t output_count, const rr_list_streams *streams, uint64_t timeout_ns, rr_work **out)
{
	struct rr_comm *comm = plan->comm;
	rr_status status = check_lists(plan, input, input_count, output, output_count);
	struct rr_work *work;

	if (status < 0)
		return status;
	work = rr_work_make(comm);
	if (!work)
		return RR_ERR_NO_MEMORY;
	set_work(work, plan, input_count ? input[0].address : NULL, output_count ? output[0].address : NULL, timeout_ns);
	if (input_count > 1 || output_count > 1 || plan->scattered)
		status = set_extents(work, plan, input, input_count, output, output_count);
	if (status >= 0)
		status = rr_comm_begin(comm);
	if (status < 0)
		goto unmake;
	status = start_held(comm, work, streams);
	rr_drive_leave(comm);
	if (status < 0)
		goto unmake;
	if (rr_own32(&comm->unfinished) && rr_drive_hand_over(comm) < 0)
		rr_comm_abort(comm, "no progress thread"); /* the work is done then, with this error */
	*out = work;
	return RR_OK;

unmake:
	rr_work_unmake(work);
	return status;
}

rr_status rr_plan_start(rr_plan *plan, const rr_extent *input, uint32_t input_count, const rr_extent *output,
			uint32_t output_count, uint64_t timeout_ns, rr_work **out)
{
	rr_status status = check_executor(plan, false);

	return status < 0 ? status : start(plan, input, input_count, output, output_count, NULL, timeout_ns, out);
}

rr_status rr_plan_start_on(rr_plan *plan, const rr_extent *input, uint32_t input_count, const rr_extent *output,
			   uint32_t output_count, const rr_list_streams *streams, uint64_t timeout_ns, rr_work **out)
{
	rr_status status = check_executor(plan, true);

	return status < 0 ? status : start(plan, input, input_count, output, output_count, streams, timeout_ns, out);
}

rr_status rr_work_wait(rr_work *work, uint64_t wait_ns)
{
	if (rr_observe32(&work->state) == RR_WORK_DONE)
		return work->status < 0 ? rr_error_set(&work->error) : RR_OK;
	rr_status status = rr_comm_here(work->comm);
	if (status < 0)
		return status;
	if (wait_ns == 0)
		return RR_AGAIN;
	return rr_drive(work->comm, work, rr_now_ns() + (wait_ns < RETURN_NS ? wait_ns : RETURN_NS));
}

rr_status rr_work_stats(const rr_work *work, rr_run_stats *out)
{
	if (rr_observe32(&work->state) != RR_WORK_DONE)
		return RR_AGAIN;
	*out = work->stats;
	return RR_OK;
}

rr_status rr_work_free(rr_work *work)
{
	if (rr_observe32(&work->state) != RR_WORK_DONE)
		return RR_AGAIN;
	rr_work_unmake(work);
	return RR_OK;
}
