/* api_cuda_list.c - plans as lists on CUDA streams: made, emitted, aborted. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "clock.h"
#include "cuda_list.h"
#include "link_cuda_ipc.h"
#include "status.h"

#define BLOCKS_MAX_DEFAULT 256u
#define ABORT_PAUSE_NS 1000000 /* between two releases of all waits */

struct rr_cuda_list {
	const struct rr_cuda *cuda;
	void *context;
	rr_cuda_block block;
	rr_cuda_ptr own_block;
	_Atomic uint32_t *own_flags; /* NULL: in GPU memory */
	struct rr_cuda_listed *listed;
	struct rr_cuda_streams streams;
	void *entered, *ended; /* events of the caller's stream, and of the list's end */
	rr_cuda_ptr one;
	uint64_t emitted;
	bool captured; /* the last one: ended tells nothing */
};

rr_status rr_cuda_block_reset(rr_cuda *cuda, void *context, const rr_cuda_block *block, uint64_t address)
{
	uint64_t flags = 0;
	void *stream = NULL;
	rr_status status = rr_cuda_ipc_check(block);

	if (status == RR_OK)
		status = rr_cuda_enter(cuda, context);
	if (status < 0)
		return status;
	flags = rr_cuda_ipc_flag_count(block);
	status = RR_CUDA(cuda, cuStreamCreate, &stream, RR_CUDA_STREAM_NON_BLOCKING);
	if (status == RR_OK)
		status = RR_CUDA(cuda, cuMemsetD32Async, address, 0, flags, stream);
	if (status == RR_OK)
		status = RR_CUDA(cuda, cuMemsetD32Async, address + flags * sizeof(uint32_t), 1, flags, stream);
	if (status == RR_OK)
		status = RR_CUDA(cuda, cuStreamSynchronize, stream);
	if (stream)
		(void)cuda->cuStreamDestroy(stream);
	rr_cuda_leave(cuda);
	return status;
}

/* ---- made ---- */

static rr_status open_device(struct rr_cuda_list *list, const rr_cuda_list_spec *spec)
{
	const struct rr_cuda *cuda = list->cuda;
	rr_status status = rr_cuda_streams_open(&list->streams, cuda, rr_enqueue_stream_count(list->listed->enqueue),
						rr_enqueue_event_count(list->listed->enqueue));

	if (status == RR_OK)
		status = RR_CUDA(cuda, cuEventCreate, &list->entered, RR_CUDA_EVENT_DISABLE_TIMING);
	if (status == RR_OK)
		status = RR_CUDA(cuda, cuEventCreate, &list->ended, RR_CUDA_EVENT_DISABLE_TIMING);
	if (status == RR_OK && spec->copied_flags) {
		status = RR_CUDA(cuda, cuMemAlloc, &list->one, sizeof(uint32_t));
		if (status == RR_OK)
			status = RR_CUDA(cuda, cuMemsetD32Async, list->one, 1, 1, list->streams.streams[0]);
		if (status == RR_OK)
			status = RR_CUDA(cuda, cuStreamSynchronize, list->streams.streams[0]);
	}
	list->streams.one = list->one;
	list->streams.blocks_max = spec->blocks_max ? spec->blocks_max : BLOCKS_MAX_DEFAULT;
	return status;
}

static void free_parts(struct rr_cuda_list *list)
{
	if (list->entered)
		(void)list->cuda->cuEventDestroy(list->entered);
	if (list->ended)
		(void)list->cuda->cuEventDestroy(list->ended);
	if (list->one)
		(void)list->cuda->cuMemFree(list->one);
	rr_cuda_streams_close(&list->streams);
	rr_cuda_listed_free(list->listed);
	free(list);
}

static rr_status check_spec(const rr_cuda_list_spec *spec)
{
	rr_status status = rr_cuda_ipc_check(spec->block);

	if (status < 0)
		return status;
	if (spec->world < 1 || (uint32_t)spec->world != spec->block->world || spec->rank < 0 || spec->rank >= spec->world)
		return rr_fail(RR_ERR_ARGUMENT, "rank %d of %d ranks, with blocks for %u", spec->rank, spec->world,
			       spec->block->world);
	return rr_cuda_ipc_check_flags(spec->flags, spec->own_flags, spec->rank);
}

rr_status rr_cuda_list_create(const rr_cuda_list_spec *spec, rr_cuda_list **out)
{
	rr_status status = check_spec(spec);
	struct rr_cuda_list *list;

	if (status == RR_OK)
		status = rr_cuda_enter(spec->cuda, spec->context);
	if (status < 0)
		return status;
	list = calloc(1, sizeof(*list));
	if (!list) {
		status = rr_fail(RR_ERR_NO_MEMORY, "no memory for a list");
		goto leave_context;
	}
	list->cuda = spec->cuda;
	list->context = spec->context;
	list->block = *spec->block;
	list->own_block = spec->blocks[spec->rank];
	list->own_flags = spec->own_flags;
	const struct rr_cuda_room room = {.rank = spec->rank, .world = spec->world, .block = spec->block, .blocks = spec->blocks,
					  .flags = spec->flags};
	status = rr_cuda_listed_make(&room, spec->plan, spec->kernel, &list->listed);
	if (status == RR_OK)
		status = open_device(list, spec);
	if (status < 0)
		free_parts(list);
	else
		*out = list;

leave_context:
	rr_cuda_leave(spec->cuda);
	return status;
}

rr_status rr_cuda_list_facts_of(const rr_cuda_list *list, rr_cuda_list_facts *out)
{
	*out = (rr_cuda_list_facts){.scratch_bytes = list->listed->plan->scratch_bytes,
				    .items = list->listed->enqueue->item_count,
				    .events = list->streams.event_count,
				    .streams = list->streams.stream_count,
				    .calls = list->streams.calls,
				    .emitted = list->emitted};
	return RR_OK;
}

/* ---- emitted ---- */

static rr_status check_addresses(const struct rr_plan *plan, uint64_t input, uint64_t output, uint64_t scratch)
{
	const uint64_t given[RR_BUFFER_COUNT] = {input, output, scratch};
	static const char *const names[RR_BUFFER_COUNT] = {"input", "output", "scratch"};
	const uint64_t bytes[RR_BUFFER_COUNT] = {plan->input_end - plan->input_begin, plan->output_end - plan->output_begin,
						 plan->scratch_bytes};

	for (int b = 0; b < RR_BUFFER_COUNT; b++)
		if (plan->uses[b] && bytes[b] && (!given[b] || given[b] % plan->element_bytes))
			return rr_fail(RR_ERR_ARGUMENT, "%s is at %#llx: this rank needs %llu bytes there, aligned to %u", names[b],
				       (unsigned long long)given[b], (unsigned long long)bytes[b], plan->element_bytes);
	if (plan->scattered)
		return rr_fail(RR_ERR_UNSUPPORTED, "all_to_all has its output in pieces; lists take one piece");
	return RR_OK;
}

static rr_status emit(struct rr_cuda_list *list, struct rr_buffer buffers[RR_BUFFER_COUNT], void *stream)
{
	const struct rr_cuda *cuda = list->cuda;
	void *first = list->streams.streams[0];
	int capturing = RR_CUDA_CAPTURE_NONE;
	rr_status status = RR_OK;

	if (cuda->cuStreamIsCapturing)
		status = RR_CUDA(cuda, cuStreamIsCapturing, stream, &capturing);
	if (status == RR_OK)
		status = RR_CUDA(cuda, cuEventRecord, list->entered, stream);
	if (status == RR_OK)
		status = RR_CUDA(cuda, cuStreamWaitEvent, first, list->entered, 0);
	if (status == RR_OK)
		status = rr_cuda_listed_emit(list->listed, &list->streams, buffers);
	if (status == RR_OK)
		status = RR_CUDA(cuda, cuEventRecord, list->ended, first);
	if (status == RR_OK)
		status = RR_CUDA(cuda, cuStreamWaitEvent, stream, list->ended, 0);
	list->streams.calls += 4;
	list->captured = capturing != RR_CUDA_CAPTURE_NONE;
	list->emitted++;
	return status;
}

rr_status rr_cuda_list_emit(rr_cuda_list *list, uint64_t input, uint64_t output, uint64_t scratch, void *stream)
{
	const struct rr_plan *plan = list->listed->plan;
	struct rr_buffer buffers[RR_BUFFER_COUNT] = {{.zero = (char *)(uintptr_t)(input - plan->input_begin)},
						     {.zero = (char *)(uintptr_t)(output - plan->output_begin)},
						     {.zero = (char *)(uintptr_t)scratch}};
	rr_status status = check_addresses(plan, input, output, scratch);

	if (status == RR_OK)
		status = rr_cuda_enter(list->cuda, list->context);
	if (status < 0)
		return status;
	status = emit(list, buffers, stream);
	rr_cuda_leave(list->cuda);
	return status;
}

/* The context is current. */
static rr_status ended(const struct rr_cuda_list *list)
{
	rr_cuda_result result = list->emitted && !list->captured ? list->cuda->cuEventQuery(list->ended) : RR_CUDA_SUCCESS;

	return result == RR_CUDA_ERROR_NOT_READY ? RR_AGAIN : rr_cuda_check(list->cuda, "cuEventQuery", result);
}

rr_status rr_cuda_list_ended(rr_cuda_list *list)
{
	rr_status status = rr_cuda_enter(list->cuda, list->context);

	if (status < 0)
		return status;
	status = ended(list);
	rr_cuda_leave(list->cuda);
	return status;
}

/* All flags of the own block = 1; not before the last such store of the stream is done. The context is current. */
static rr_status release(struct rr_cuda_list *list, void *stream)
{
	const struct rr_cuda *cuda = list->cuda;
	rr_cuda_result result;

	if (list->own_flags) {
		rr_cuda_ipc_store_flags(&list->block, list->own_flags, 1, 1);
		return RR_OK;
	}
	result = cuda->cuStreamQuery(stream);
	if (result == RR_CUDA_ERROR_NOT_READY)
		return RR_OK;
	if (result != RR_CUDA_SUCCESS)
		return rr_cuda_check(cuda, "cuStreamQuery", result);
	return RR_CUDA(cuda, cuMemsetD32Async, list->own_block, 1, 2 * rr_cuda_ipc_flag_count(&list->block), stream);
}

/* Again and again: each wait resets its flag, and the next one comes after it. */
static rr_status release_waits(struct rr_cuda_list *list, void *stream, uint64_t until_ns)
{
	rr_status status = ended(list);

	while (status == RR_AGAIN) {
		if (rr_now_ns() > until_ns)
			return rr_fail(RR_ERR_TIMEOUT, "the list's streams did not drain: what precedes it in the caller's stream "
						       "hangs%s", list->own_flags ? "" : ", or one hardware queue serves all streams: "
						       "then give flags in host memory");
		status = release(list, stream);
		nanosleep(&(struct timespec){.tv_nsec = ABORT_PAUSE_NS}, NULL);
		if (status == RR_OK)
			status = ended(list);
	}
	return status;
}

rr_status rr_cuda_list_abort(rr_cuda_list *list, uint64_t timeout_ns)
{
	void *stream = NULL;
	rr_status status = rr_cuda_enter(list->cuda, list->context);

	if (status < 0)
		return status;
	if (!list->own_flags)
		status = RR_CUDA(list->cuda, cuStreamCreate, &stream, RR_CUDA_STREAM_NON_BLOCKING);
	if (status == RR_OK)
		status = release_waits(list, stream, rr_now_ns() + timeout_ns);
	if (stream && status == RR_OK)
		status = RR_CUDA(list->cuda, cuStreamSynchronize, stream); /* its last store is behind no wait any more */
	if (stream)
		(void)list->cuda->cuStreamDestroy(stream);
	rr_cuda_leave(list->cuda);
	return status;
}

rr_status rr_cuda_list_free(rr_cuda_list *list)
{
	const struct rr_cuda *cuda = list ? list->cuda : NULL;
	rr_status status;

	if (!list)
		return RR_OK;
	status = rr_cuda_enter(cuda, list->context);
	if (status < 0)
		return status;
	status = ended(list);
	if (status == RR_AGAIN)
		status = rr_fail(RR_ERR_ARGUMENT, "the list is at work: wait for it, or call rr_cuda_list_abort()");
	else
		free_parts(list); /* an error of the driver: nothing runs any more */
	rr_cuda_leave(cuda);
	return status;
}
