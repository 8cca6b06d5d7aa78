/*
 * cuda_lists.c - the lists of a communicator on CUDA streams; see stream_lists.h.
 *
 * All lists share two streams a channel, so each is behind the one before. The driver and the streams meet in a page of
 * mapped host memory, not in the GPU driver: a progress thread that called it could wait for a user's cuMemFree, which
 * waits for a list, which waits for the progress thread; and a query would end a user's stream capture.
 *
 *   go      the host stores tickets; each list waits until go has come to its own
 *   ended   the streams store tickets
 *   busy    of each captured list: 1 while it runs
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "clock.h"
#include "cuda_list.h"
#include "cuda_page.h"
#include "device_cuda.h"
#include "link_cuda_ipc.h"
#include "order.h"
#include "status.h"
#include "stream_lists.h"

#define GO 0u     /* words of the page: each in a cache line of its own, but for those of captured lists */
#define ENDED 16u
#define BUSY 32u
#define BUSY_COUNT (RR_CUDA_PAGE_WORDS - BUSY)
#define DRAIN_NS (3 * RR_NS_PER_S)
#define PAUSE_NS 1000000           /* between two releases of all waits */
#define LOOK_NS (20 * RR_NS_PER_MS) /* how often a list that runs is asked whether its GPU has failed */
#define SCRATCH_ALIGN (2ull << 20)

struct scratch {
	rr_cuda_ptr address;
	uint64_t bytes;
	struct scratch *smaller; /* lists that run, or were captured, may use them */
};

struct cuda_lists {
	struct rr_lists lists;
	struct rr_cuda_device *device;
	struct rr_cuda_room room;
	rr_cuda_block block;
	uint64_t *blocks, *flags;    /* [world] */
	int32_t *places;             /* [world] */
	_Atomic uint32_t *own_flags; /* NULL: in GPU memory */
	struct rr_cuda_streams streams;
	void *entered, *ended, *joined; /* events: of the caller's stream; of the last list; of a captured one */
	void *releaser;                 /* a stream; NULL: the host releases waits by stores */
	struct rr_cuda_page *page;
	struct scratch *scratch;
	uint64_t first_ticket, captured;
	uint64_t looked_ns;
	bool broken; /* the driver refuses: nothing runs any more */
	_Atomic uint32_t stop, stopped;
	bool releasing; /* by a thread */
};

struct cuda_list {
	struct rr_listed listed;
	struct rr_cuda_listed *list;
};

static struct cuda_lists *self(struct rr_lists *lists)
{
	return (struct cuda_lists *)lists;
}

static const struct rr_cuda *cuda_of(const struct cuda_lists *this)
{
	return this->device->cuda;
}

static rr_status enter(struct cuda_lists *this)
{
	return rr_cuda_enter(cuda_of(this), this->device->context);
}

/* Calls that a capture of another thread would forbid; gives what relax() is to be undone with. */
static int exchange_mode(const struct rr_cuda *cuda, int mode)
{
	if (cuda->cuThreadExchangeStreamCaptureMode)
		(void)cuda->cuThreadExchangeStreamCaptureMode(&mode);
	return mode;
}

static uint64_t tickets(const struct cuda_lists *this)
{
	return this->page->ticket;
}

static bool reached(const struct cuda_lists *this, uint64_t ticket)
{
	return (int32_t)(rr_observe32(&this->page->words[ENDED]) - (uint32_t)ticket) >= 0; /* the streams publish it */
}

/* ---- plans ---- */

static void list_free(struct rr_listed *listed)
{
	struct cuda_list *this = (struct cuda_list *)listed;

	rr_cuda_listed_free(this->list);
	free(listed->sent_bytes);
	free(listed->received_bytes);
	free(this);
}

static rr_status need_scratch(struct cuda_lists *this, uint64_t bytes)
{
	struct scratch *larger;
	rr_status status;

	if (bytes <= (this->scratch ? this->scratch->bytes : 0))
		return RR_OK;
	larger = calloc(1, sizeof(*larger));
	if (!larger)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for a note of scratch");
	if (this->scratch && bytes < 2 * this->scratch->bytes)
		bytes = 2 * this->scratch->bytes; /* so that all those kept are together no larger than the last */
	larger->bytes = (bytes + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
	larger->smaller = this->scratch;
	status = RR_CUDA(cuda_of(this), cuMemAlloc, &larger->address, larger->bytes);
	if (status < 0) {
		free(larger);
		return status;
	}
	this->scratch = larger;
	return RR_OK;
}

static void *kernel_of(struct cuda_lists *this, const rr_plan_spec *spec)
{
	bool reduces = spec->collective == RR_ALL_REDUCE || spec->collective == RR_REDUCE_SCATTER || spec->collective == RR_REDUCE;
	int32_t redop = !reduces || spec->redop == RR_AVG ? RR_SUM : spec->redop;
	void *kernel;

	pthread_mutex_lock(&this->device->lock);
	kernel = this->device->kernels[spec->dtype][redop];
	pthread_mutex_unlock(&this->device->lock);
	return kernel;
}

/* The context is current. */
static rr_status fill_list(struct cuda_lists *this, const rr_plan_spec *spec, struct cuda_list *list)
{
	size_t world = (size_t)this->room.world;
	rr_status status = rr_cuda_listed_make(&this->room, spec, kernel_of(this, spec), &list->list);

	if (status < 0)
		return status;
	list->listed.sent_bytes = calloc(world, sizeof(uint64_t));
	list->listed.received_bytes = calloc(world, sizeof(uint64_t));
	if (!list->listed.sent_bytes || !list->listed.received_bytes)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for figures of %zu ranks", world);
	list->listed.carrier = list->list->carrier;
	rr_cuda_listed_bytes(list->list, &this->room, list->listed.sent_bytes, list->listed.received_bytes);
	status = rr_cuda_streams_need(&this->streams, rr_enqueue_event_count(list->list->enqueue));
	return status == RR_OK ? need_scratch(this, list->list->plan->scratch_bytes) : status;
}

static rr_status lists_make(struct rr_lists *lists, const rr_plan_spec *spec, struct rr_listed **out)
{
	struct cuda_lists *this = self(lists);
	struct cuda_list *list = calloc(1, sizeof(*list));
	rr_status status;

	if (!list)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for a list");
	list->listed.free = list_free;
	status = enter(this);
	if (status == RR_OK) {
		status = fill_list(this, spec, list);
		rr_cuda_leave(cuda_of(this));
	}
	if (status == RR_OK)
		*out = &list->listed;
	else
		list_free(&list->listed);
	return status;
}

/* ---- emission ---- */

static rr_status write_word(struct cuda_lists *this, uint32_t word, uint64_t value)
{
	return RR_CUDA(cuda_of(this), cuStreamWriteValue32, this->streams.streams[0],
		       this->page->address + word * sizeof(uint32_t), (uint32_t)value, RR_CUDA_WRITE_VALUE_DEFAULT);
}

static rr_status begin(struct cuda_lists *this, const rr_list_streams *streams, struct rr_emission *emission, uint32_t busy)
{
	const struct rr_cuda *cuda = cuda_of(this);
	void *first = this->streams.streams[0];
	rr_status status = RR_CUDA(cuda, cuEventRecord, this->entered, streams->before);

	if (status == RR_OK)
		status = RR_CUDA(cuda, cuStreamWaitEvent, first, this->entered, 0);
	if (status < 0)
		return status;
	if (emission->captured)
		return write_word(this, busy, 1);
	emission->ticket = ++this->page->ticket;
	return RR_CUDA(cuda, cuStreamWaitValue32, first, this->page->address + GO * sizeof(uint32_t),
		       (uint32_t)emission->ticket, RR_CUDA_WAIT_VALUE_GEQ);
}

static rr_status end(struct cuda_lists *this, const rr_list_streams *streams, const struct rr_emission *emission,
		     uint32_t busy)
{
	const struct rr_cuda *cuda = cuda_of(this);
	void *event = emission->captured ? this->joined : this->ended;
	rr_status status = emission->captured ? write_word(this, busy, 0) : write_word(this, ENDED, emission->ticket);

	if (status == RR_OK)
		status = RR_CUDA(cuda, cuEventRecord, event, this->streams.streams[0]);
	for (uint32_t i = 0; i < streams->after_count && status == RR_OK; i++)
		status = RR_CUDA(cuda, cuStreamWaitEvent, streams->after[i], event, 0);
	this->streams.calls += 5 + streams->after_count; /* those of begin(), too */
	return status;
}

/* The context is current. */
static rr_status emit(struct cuda_lists *this, struct cuda_list *list, struct rr_buffer buffers[RR_BUFFER_COUNT],
		      const rr_list_streams *streams, struct rr_emission *out)
{
	const struct rr_cuda *cuda = cuda_of(this);
	uint32_t busy = BUSY + (uint32_t)(this->captured % BUSY_COUNT);
	int capturing = RR_CUDA_CAPTURE_NONE;
	rr_status status = RR_OK;

	if (cuda->cuStreamIsCapturing && streams->before)
		status = RR_CUDA(cuda, cuStreamIsCapturing, streams->before, &capturing);
	if (status < 0)
		return status;
	*out = (struct rr_emission){.captured = capturing != RR_CUDA_CAPTURE_NONE};
	if (out->captured && list->listed.carrier)
		return rr_fail(RR_ERR_ARGUMENT, "an operation between nodes cannot be captured: of a graph's launch the host knows nothing, and carries nothing");
	if (out->captured && !streams->after_count)
		return rr_fail(RR_ERR_ARGUMENT, "a captured operation must name the captured stream among those behind it");
	status = begin(this, streams, out, busy);
	if (status == RR_OK)
		status = rr_cuda_listed_emit(list->list, &this->streams, buffers);
	if (status == RR_OK)
		status = end(this, streams, out, busy);
	this->captured += out->captured ? 1 : 0;
	return status;
}

static rr_status lists_emit(struct rr_lists *lists, struct rr_listed *listed, const struct rr_buffer *input,
			    const struct rr_buffer *output, const rr_list_streams *streams, struct rr_emission *out)
{
	struct cuda_lists *this = self(lists);
	uint64_t scratch = this->scratch ? this->scratch->address : 0;
	struct rr_buffer buffers[RR_BUFFER_COUNT] = {*input, *output, {.zero = (char *)(uintptr_t)scratch}};
	rr_status status = enter(this);

	if (status < 0)
		return status;
	status = emit(this, (struct cuda_list *)listed, buffers, streams, out);
	rr_cuda_leave(cuda_of(this));
	return status;
}

static void lists_go(struct rr_lists *lists, const struct rr_emission *emission)
{
	rr_publish32(&self(lists)->page->words[GO], (uint32_t)emission->ticket); /* pairs with the list's first wait */
}

/* A kernel that faults stores no ticket. The context is current. */
static rr_status look(struct cuda_lists *this)
{
	const struct rr_cuda *cuda = cuda_of(this);
	int mode = exchange_mode(cuda, RR_CUDA_CAPTURE_MODE_RELAXED);
	rr_cuda_result result = cuda->cuEventQuery(this->ended);

	exchange_mode(cuda, mode);
	return result == RR_CUDA_ERROR_NOT_READY ? RR_OK : rr_cuda_check(cuda, "cuEventQuery", result);
}

static rr_status lists_ended(struct rr_lists *lists, const struct rr_emission *emission)
{
	struct cuda_lists *this = self(lists);
	uint64_t now_ns;
	rr_status status;

	if (reached(this, emission->ticket))
		return RR_OK;
	now_ns = rr_now_ns();
	if (now_ns - this->looked_ns < LOOK_NS)
		return RR_AGAIN;
	this->looked_ns = now_ns;
	status = enter(this);
	if (status == RR_OK) {
		status = look(this);
		rr_cuda_leave(cuda_of(this));
	}
	this->broken = this->broken || status < 0;
	return status < 0 ? status : RR_AGAIN;
}

static rr_status lists_order(struct rr_lists *lists, const struct rr_emission *emission, void *stream)
{
	struct cuda_lists *this = self(lists);
	rr_status status;

	if (emission->captured)
		return rr_fail(RR_ERR_ARGUMENT, "the operation was captured: streams are ordered behind its graph");
	status = enter(this);
	if (status < 0)
		return status;
	status = RR_CUDA(cuda_of(this), cuStreamWaitValue32, stream, this->page->address + ENDED * sizeof(uint32_t),
			 (uint32_t)emission->ticket, RR_CUDA_WAIT_VALUE_GEQ);
	rr_cuda_leave(cuda_of(this));
	return status;
}

/* ---- the end ---- */

static bool is_idle(const struct cuda_lists *this)
{
	uint64_t used = this->captured < BUSY_COUNT ? this->captured : BUSY_COUNT;

	if (this->broken)
		return true;
	for (uint32_t i = 0; i < used; i++)
		if (rr_observe32(&this->page->words[BUSY + i]))
			return false;
	return reached(this, tickets(this));
}

/* The context is current. */
static rr_cuda_result release_by_stream(const struct cuda_lists *this, uint64_t flags)
{
	const struct rr_cuda *cuda = cuda_of(this);
	rr_cuda_result result = cuda->cuStreamQuery(this->releaser);

	return result == RR_CUDA_SUCCESS ? cuda->cuMemsetD32Async(this->blocks[this->room.rank], 1, flags, this->releaser) : result;
}

/* All own flags = 1: each wait resets one, and the next comes after it. The context is current. */
static void release_waits(struct cuda_lists *this)
{
	uint64_t flags = 2 * rr_cuda_ipc_flag_count(&this->block);
	rr_cuda_result result;

	rr_cuda_carried_release(this->room.carried);
	if (this->own_flags)
		rr_cuda_ipc_store_flags(&this->block, this->own_flags, 1, 1);
	/* Whether the GPU has failed is asked in any case: then its streams store no tickets any more. */
	result = this->releaser ? release_by_stream(this, flags) : cuda_of(this)->cuEventQuery(this->ended);
	this->broken = this->broken || (result != RR_CUDA_SUCCESS && result != RR_CUDA_ERROR_NOT_READY);
	nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
}

/* Until all has ended; where lists were captured, until the end of these lists: a graph may be launched again. */
static void *release_thread(void *lists)
{
	struct cuda_lists *this = lists;

	if (enter(this) == RR_OK) {
		exchange_mode(cuda_of(this), RR_CUDA_CAPTURE_MODE_RELAXED);
		while (!this->broken && !(is_idle(this) && (!this->captured || rr_observe32(&this->stop))))
			release_waits(this);
		rr_cuda_leave(cuda_of(this));
	}
	rr_publish32(&this->stopped, 1); /* pairs with stop_releasing() */
	return NULL;
}

static void start_releasing(struct cuda_lists *this)
{
	pthread_attr_t attributes;
	pthread_t thread;

	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	this->releasing = pthread_create(&thread, &attributes, release_thread, this) == 0;
	pthread_attr_destroy(&attributes);
}

static bool lists_drain(struct rr_lists *lists)
{
	struct cuda_lists *this = self(lists);
	uint64_t until_ns = rr_now_ns() + DRAIN_NS;
	rr_error error = *rr_error_here(); /* the caller's, which is about to be raised */

	rr_publish32(&this->page->words[GO], (uint32_t)tickets(this));
	if (!this->releasing && enter(this) == RR_OK) {
		int mode = exchange_mode(cuda_of(this), RR_CUDA_CAPTURE_MODE_RELAXED);
		while (!is_idle(this) && rr_now_ns() < until_ns)
			release_waits(this);
		exchange_mode(cuda_of(this), mode);
		rr_cuda_leave(cuda_of(this));
		if (!this->broken && (this->captured || !is_idle(this)))
			start_releasing(this);
	}
	rr_error_set(&error);
	return is_idle(this);
}

static bool stop_releasing(struct cuda_lists *this)
{
	uint64_t until_ns = rr_now_ns() + DRAIN_NS;

	rr_publish32(&this->stop, 1);
	while (!rr_observe32(&this->stopped) && rr_now_ns() < until_ns)
		nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
	return rr_observe32(&this->stopped);
}

/* The context is current. */
static void destroy(struct cuda_lists *this)
{
	const struct rr_cuda *cuda = cuda_of(this);
	void *events[] = {this->entered, this->ended, this->joined};

	for (int i = 0; i < 3; i++)
		if (events[i])
			(void)cuda->cuEventDestroy(events[i]);
	if (this->releaser) {
		(void)cuda->cuStreamSynchronize(this->releaser); /* what it stores is in the caller's block */
		(void)cuda->cuStreamDestroy(this->releaser);
	}
	if (this->streams.one)
		(void)cuda->cuMemFree(this->streams.one);
	rr_cuda_streams_close(&this->streams);
	rr_cuda_carried_close(this->room.carried);
	while (this->scratch) {
		struct scratch *smaller = this->scratch->smaller;
		(void)cuda->cuMemFree(this->scratch->address);
		free(this->scratch);
		this->scratch = smaller;
	}
}

static const struct rr_lists_ops cuda_ops = {
	.make = lists_make,
	.emit = lists_emit,
	.go = lists_go,
	.ended = lists_ended,
	.order = lists_order,
	.drain = lists_drain,
};

/* The context is current. */
static rr_status open_streams(struct cuda_lists *this, const rr_lists_spec *spec)
{
	const struct rr_cuda *cuda = cuda_of(this);
	void **events[] = {&this->entered, &this->ended, &this->joined};
	rr_status status = rr_cuda_streams_open(&this->streams, cuda, 2 * this->block.channels, 2);

	for (int i = 0; i < 3 && status == RR_OK; i++)
		status = RR_CUDA(cuda, cuEventCreate, events[i], RR_CUDA_EVENT_DISABLE_TIMING);
	if (status == RR_OK && !this->own_flags && this->blocks[this->room.rank]) /* 0: it shares none */
		status = RR_CUDA(cuda, cuStreamCreate, &this->releaser, RR_CUDA_STREAM_NON_BLOCKING);
	if (status == RR_OK && spec->copied_flags) {
		status = RR_CUDA(cuda, cuMemAlloc, &this->streams.one, sizeof(uint32_t));
		if (status == RR_OK)
			status = RR_CUDA(cuda, cuMemsetD32Async, this->streams.one, 1, 1, this->streams.streams[0]);
		if (status == RR_OK)
			status = RR_CUDA(cuda, cuStreamSynchronize, this->streams.streams[0]);
	}
	this->streams.blocks_max = this->device->blocks_max;
	if (status == RR_OK)
		status = rr_cuda_page_take(cuda, this->device->context, &this->page);
	if (status == RR_OK)
		this->first_ticket = this->page->ticket;
	if (status == RR_OK)
		status = rr_cuda_carried_open(cuda, this->block.slot_bytes, this->block.slot_count, &this->room.carried);
	return status;
}

static rr_status check_spec(const rr_lists_spec *spec)
{
	rr_status status = rr_cuda_ipc_check(spec->block);

	if (status < 0)
		return status;
	if (!spec->device || spec->device->ops->kind != RR_DEVICE_CUDA)
		return rr_fail(RR_ERR_ARGUMENT, "device is none of rr_device_open_cuda()");
	if (spec->world < 1 || (!spec->places && (uint32_t)spec->world != spec->block->world) || spec->rank < 0 || spec->rank >= spec->world)
		return rr_fail(RR_ERR_ARGUMENT, "rank %d of %d ranks, with blocks for %u", spec->rank, spec->world, spec->block->world);
	for (int32_t r = 0; spec->places && r < spec->world; r++)
		if (spec->places[r] < -1 || spec->places[r] >= (int32_t)spec->block->world)
			return rr_fail(RR_ERR_ARGUMENT, "places[%d] is %d: accepted are -1 to %u", r, spec->places[r], spec->block->world - 1);
	if (!((struct rr_cuda_device *)spec->device)->cuda->cuStreamWaitValue32)
		return rr_fail(RR_ERR_UNSUPPORTED, "this driver has no memory operations on streams (cuStreamWaitValue32)");
	return rr_cuda_ipc_check_flags(spec->flags, spec->own_flags, spec->rank);
}

/* Places of all ranks, and the own flags as they are before the first list. */
static rr_status take_places(struct cuda_lists *this, const rr_lists_spec *spec)
{
	size_t bytes = (size_t)spec->world * sizeof(uint64_t);

	this->blocks = malloc(bytes);
	this->flags = calloc(1, bytes);
	this->places = malloc((size_t)spec->world * sizeof(int32_t));
	if (!this->blocks || !this->flags || !this->places)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for %d blocks", spec->world);
	memcpy(this->blocks, spec->blocks, bytes);
	if (spec->flags)
		memcpy(this->flags, spec->flags, bytes);
	for (int32_t r = 0; r < spec->world; r++)
		this->places[r] = spec->places ? spec->places[r] : r;
	this->own_flags = spec->own_flags;
	this->room = (struct rr_cuda_room){.rank = spec->rank, .world = spec->world, .block = &this->block, .blocks = this->blocks,
					   .flags = this->flags, .places = this->places};
	if (this->own_flags)
		rr_cuda_ipc_store_flags(spec->block, this->own_flags, 0, 1); /* ranks meet before a list begins */
	return RR_OK;
}

static void free_places(struct cuda_lists *this)
{
	free(this->blocks);
	free(this->flags);
	free(this->places);
	free(this);
}

rr_status rr_lists_open(const rr_lists_spec *spec, rr_lists **out)
{
	struct cuda_lists *this;
	rr_status status = check_spec(spec);

	if (status < 0)
		return status;
	this = calloc(1, sizeof(*this));
	if (!this)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for lists");
	this->lists.ops = &cuda_ops;
	this->device = (struct rr_cuda_device *)spec->device;
	this->block = *spec->block;
	status = take_places(this, spec);
	if (status == RR_OK)
		status = enter(this);
	if (status < 0)
		goto free_places;
	status = open_streams(this, spec);
	if (status < 0)
		destroy(this);
	rr_cuda_leave(cuda_of(this));
	if (status < 0)
		goto free_places;
	atomic_fetch_add_explicit(&this->device->device.users, 1, memory_order_acq_rel);
	*out = &this->lists;
	return RR_OK;

free_places:
	free_places(this);
	return status;
}

rr_status rr_lists_close(rr_lists *lists)
{
	struct cuda_lists *this = lists ? self(lists) : NULL;

	if (!this)
		return RR_OK;
	if (!is_idle(this))
		lists_drain(lists);
	if (this->releasing && !stop_releasing(this))
		return rr_fail(RR_ERR_TIMEOUT, "lists are still at work: what precedes them in the caller's stream does not end");
	if (!is_idle(this))
		return rr_fail(RR_ERR_TIMEOUT, "lists are still at work, and no thread could be started that releases their waits");
	if (enter(this) == RR_OK) {
		destroy(this);
		rr_cuda_leave(cuda_of(this));
	}
	if (this->broken)
		free(this->page); /* its words go with the context */
	else
		rr_cuda_page_give(this->page);
	rr_device_put(&this->device->device);
	free_places(this);
	return RR_OK;
}

rr_status rr_lists_facts_of(const rr_lists *lists, rr_lists_facts *out)
{
	const struct cuda_lists *this = (const struct cuda_lists *)lists;
	uint32_t left = (uint32_t)tickets(this) - rr_observe32(&this->page->words[ENDED]);

	*out = (rr_lists_facts){.calls = this->streams.calls,
				.emitted = tickets(this) - this->first_ticket,
				.captured = this->captured,
				.streams = this->streams.stream_count,
				.events = this->streams.event_count + 3};
	out->ended = out->emitted - left;
	for (const struct scratch *each = this->scratch; each; each = each->smaller)
		out->scratch_bytes += each->bytes;
	out->pinned_bytes = rr_cuda_carried_bytes(this->room.carried);
	return RR_OK;
}
