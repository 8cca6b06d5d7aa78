/* keep.c - inputs that their operation overwrites: a copy while it runs, put back if it fails (rr_options.restore). */
#include <stdlib.h>
#include <string.h>

#include "comm.h"
#include "status.h"

/* The pieces that a buffer of a work has; `one` is room for a buffer of one piece. */
static uint32_t pieces_of(const struct rr_buffer *buffer, const void *address, uint64_t bytes, rr_extent *one,
			  const rr_extent **out)
{
	*one = (rr_extent){.address = (void *)(uintptr_t)address, .bytes = bytes};
	*out = buffer->extents ? buffer->extents : one;
	return buffer->extents ? buffer->count : 1;
}

static bool overlap(const rr_extent *a, const rr_extent *b)
{
	uintptr_t a_begin = (uintptr_t)a->address, b_begin = (uintptr_t)b->address;

	return a->bytes && b->bytes && a_begin < b_begin + b->bytes && b_begin < a_begin + a->bytes;
}

/* Does the work write where its input lies? A tiny message does so only once it cannot fail any more. */
static bool is_overwritten(const struct rr_work *work, const rr_extent *input, uint32_t input_count)
{
	const struct rr_plan *plan = work->plan;
	const rr_extent *output;
	rr_extent one;
	uint32_t output_count = pieces_of(&work->output, work->output_address, plan->output_end - plan->output_begin, &one,
					  &output);

	if (plan->mailbox || plan->device || !plan->uses[RR_INPUT] || !plan->uses[RR_OUTPUT])
		return false;
	for (uint32_t i = 0; i < input_count; i++)
		for (uint32_t j = 0; j < output_count; j++)
			if (overlap(&input[i], &output[j]))
				return true;
	return false;
}

static uint32_t input_of(const struct rr_work *work, rr_extent *one, const rr_extent **out)
{
	return pieces_of(&work->input, work->input_address, work->plan->input_end - work->plan->input_begin, one, out);
}

rr_status rr_keep_reserve(struct rr_comm *comm, const struct rr_work *work)
{
	uint64_t bytes = work->plan->input_end - work->plan->input_begin;
	const rr_extent *input;
	rr_extent one;
	char *room;
	uint32_t count = input_of(work, &one, &input);

	if (!comm->options.restore || bytes <= comm->kept_room || !is_overwritten(work, input, count))
		return RR_OK;
	room = realloc(comm->kept, bytes); /* it may hold what an operation in flight needs */
	if (!room) {
		rr_fail(RR_ERR_NO_MEMORY, "no memory for a copy of the %llu bytes that restore=True keeps of an input",
			(unsigned long long)bytes);
		strcpy(rr_error_here()->hint, "pass out=, which leaves the input alone, or make the communicator without restore=");
		return RR_ERR_NO_MEMORY;
	}
	comm->kept = room;
	comm->kept_room = bytes;
	return RR_OK;
}

void rr_keep_take(struct rr_comm *comm, const struct rr_work *work)
{
	const rr_extent *input;
	rr_extent one;
	uint32_t count = input_of(work, &one, &input);
	char *to = comm->kept;

	if (comm->kept_of == work || !comm->options.restore || !is_overwritten(work, input, count))
		return;
	for (uint32_t i = 0; i < count; to += input[i].bytes, i++)
		memcpy(to, input[i].address, input[i].bytes);
	comm->kept_of = work;
}

void rr_keep_put_back(struct rr_comm *comm)
{
	const struct rr_work *work = comm->kept_of;
	const rr_extent *input;
	rr_extent one;
	const char *from = comm->kept;

	if (!work)
		return;
	uint32_t count = input_of(work, &one, &input);
	for (uint32_t i = 0; i < count; from += input[i].bytes, i++)
		memcpy(input[i].address, from, input[i].bytes);
	comm->kept_of = NULL;
}
