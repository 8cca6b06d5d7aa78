/* streams.c - streams: each with a thread of its own, or all of a process on one; the rules of the legacy stream. */
#define _GNU_SOURCE
#include "cs.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#define NAP_US_MAX 200

struct cs_queue {
	pthread_mutex_t lock;
	pthread_cond_t work, done;
	struct cs_op *head, *tail;
	bool closing;
	uint64_t random;
};

struct await {
	struct cs_op op;
	struct CUstream_st *stream;
	uint64_t number;
};

static struct CUstream_st *streams;
static uint32_t stream_count;
static struct cs_queue *shared_queue;
static _Thread_local bool in_host_function;
static _Thread_local struct CUstream_st *per_thread[CS_DEVICES_MAX];

uint64_t cs_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void nap_us(uint64_t us)
{
	struct timespec time = { us / 1000000, (long)(us % 1000000) * 1000 };

	nanosleep(&time, NULL);
}

bool cs_pause(unsigned int turn)
{
	if (turn < 16)
		sched_yield();
	else
		nap_us(turn - 15 < NAP_US_MAX ? turn - 15 : NAP_US_MAX);
	return cs_fault_now() == CUDA_SUCCESS;
}

bool cs_in_host_function(void)
{
	return in_host_function;
}

void cs_set_in_host_function(bool inside)
{
	in_host_function = inside;
}

/* xorshift64*: the delays of one stream depend on the seed, its number and its device alone. */
static uint64_t next_random(struct cs_queue *queue)
{
	queue->random ^= queue->random >> 12;
	queue->random ^= queue->random << 25;
	queue->random ^= queue->random >> 27;
	return queue->random * 2685821657736338717ull >> 33;
}

static void run(struct cs_queue *queue, struct cs_op *op)
{
	uint64_t random = cs_settings.delay_us ? next_random(queue) : 1;

	cs_running = op->stream->context;
	if (random % 4 == 0)
		nap_us(random / 4 % cs_settings.delay_us);
	if (cs_fault_now() == CUDA_SUCCESS) {
		cs_race_begin(op);
		cs_rdma_settle();
		op->kind->run(op);
		cs_race_end(op);
	}
}

static void *serve(void *argument)
{
	struct cs_queue *queue = argument;
	struct cs_op *op;

	prctl(PR_SET_TIMERSLACK, 1);
	prctl(PR_SET_NAME, "cuda_sim");
	pthread_mutex_lock(&queue->lock);
	while (true) {
		while (!queue->head && !queue->closing)
			pthread_cond_wait(&queue->work, &queue->lock);
		op = queue->head;
		if (!op)
			break;
		queue->head = op->next;
		pthread_mutex_unlock(&queue->lock);
		run(queue, op);
		pthread_mutex_lock(&queue->lock);
		op->stream->completed = op->number;
		pthread_cond_broadcast(&queue->done);
		free(op);
	}
	pthread_mutex_unlock(&queue->lock);
	return NULL; /* the queue stays: somebody may be about to look at it */
}

static struct cs_queue *queue_new(uint64_t mix)
{
	struct cs_queue *queue = calloc(1, sizeof(*queue));
	pthread_t thread;

	if (!queue)
		return NULL;
	pthread_mutex_init(&queue->lock, NULL);
	pthread_cond_init(&queue->work, NULL);
	pthread_cond_init(&queue->done, NULL);
	queue->random = (cs_settings.seed * 1000003 + mix) * 0x9e3779b97f4a7c15ull | 1;
	if (pthread_create(&thread, NULL, serve, queue)) {
		free(queue);
		return NULL;
	}
	pthread_detach(thread);
	return queue;
}

struct CUstream_st *cs_stream_new(struct CUctx_st *context, unsigned int flags, int priority)
{
	struct CUstream_st *stream = calloc(1, sizeof(*stream));
	uint64_t mix = (uint64_t)cs_settings.physical[context->device] * 4096 + stream_count + 1;

	if (!stream)
		return NULL;
	if (cs_settings.one_queue && !shared_queue)
		shared_queue = queue_new(0);
	stream->queue = cs_settings.one_queue ? shared_queue : queue_new(mix);
	if (!stream->queue) {
		free(stream);
		return NULL;
	}
	stream->context = context;
	stream->flags = flags;
	stream->priority = priority;
	stream->number = ++stream_count;
	stream->next = streams;
	streams = stream;
	return stream;
}

struct CUstream_st *cs_stream_of(CUstream handle)
{
	struct CUctx_st *context = cs_current();

	if (!handle || handle == CU_STREAM_LEGACY) {
		if (!context->legacy)
			context->legacy = cs_stream_new(context, 0, 0);
		return context->legacy;
	}
	if (handle == CU_STREAM_PER_THREAD) {
		struct CUstream_st **own = &per_thread[context->device];

		if (!*own || (*own)->destroyed)
			*own = cs_stream_new(context, 0, 0);
		return *own;
	}
	for (struct CUstream_st *stream = streams; stream; stream = stream->next)
		if (stream == handle)
			return stream->destroyed || stream->context != context ? NULL : stream;
	return NULL;
}

void *cs_op_new(const struct cs_op_kind *kind, size_t bytes)
{
	struct cs_op *op = calloc(1, bytes);

	if (op) {
		op->kind = kind;
		op->bytes = bytes;
	}
	return op;
}

void cs_push(struct CUstream_st *stream, struct cs_op *op)
{
	struct cs_queue *queue = stream->queue;

	op->stream = stream;
	op->number = ++stream->submitted;
	op->next = NULL;
	pthread_mutex_lock(&queue->lock);
	if (queue->head)
		queue->tail->next = op;
	else
		queue->head = op;
	queue->tail = op;
	pthread_cond_signal(&queue->work);
	pthread_mutex_unlock(&queue->lock);
}

void cs_stream_wait(struct CUstream_st *stream, uint64_t number)
{
	struct cs_queue *queue = stream->queue;

	pthread_mutex_lock(&queue->lock);
	while (stream->completed < number)
		pthread_cond_wait(&queue->done, &queue->lock);
	pthread_mutex_unlock(&queue->lock);
}

static void run_await(struct cs_op *op)
{
	struct await *await = (struct await *)op;

	/* On one queue, what comes before is done already. */
	if (await->stream->queue != op->stream->queue)
		cs_stream_wait(await->stream, await->number);
	cs_race_after(await->stream->number, await->number);
}

static const struct cs_op_kind await_kind = { "await", run_await };

bool cs_await(struct CUstream_st *waiter, struct CUstream_st *stream, uint64_t number)
{
	struct await *await;

	if (stream->completed >= number && !cs_race_on())
		return true;
	await = cs_op_new(&await_kind, sizeof(*await));
	if (!await)
		return false;
	await->stream = stream;
	await->number = number;
	cs_push(waiter, &await->op);
	return true;
}

/* Work on the legacy stream comes after all earlier work of blocking streams, and theirs after its. */
bool cs_order_by_legacy(struct CUstream_st *stream)
{
	struct CUctx_st *context = stream->context;
	bool enough = true;

	if (stream->flags & CU_STREAM_NON_BLOCKING)
		return true;
	if (stream != context->legacy)
		return !context->legacy || cs_await(stream, context->legacy, context->legacy->submitted);
	for (struct CUstream_st *s = streams; s; s = s->next)
		if (s != stream && s->context == context && !s->destroyed && !(s->flags & CU_STREAM_NON_BLOCKING))
			enough = cs_await(stream, s, s->submitted) && enough;
	return enough;
}

CUresult cs_submit_locked(struct CUstream_st *stream, struct cs_op *op)
{
	CUresult result;

	if (stream->capture)
		return cs_capture_add(stream, op);
	result = stream == stream->context->legacy ? cs_capture_forbids_legacy(stream->context) : CUDA_SUCCESS;
	if (result != CUDA_SUCCESS) {
		free(op);
		return result;
	}
	if (!cs_order_by_legacy(stream)) {
		free(op);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	cs_race_step(&op->thread, &op->step);
	cs_push(stream, op);
	return CUDA_SUCCESS;
}

/* As cs_submit; `number` is the operation's, 0 in a capture. */
static CUresult submit(CUstream handle, struct cs_op *op, struct CUstream_st **stream, uint64_t *number)
{
	CUresult result = CUDA_ERROR_INVALID_HANDLE;

	if (!op)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&cs_lock);
	*stream = cs_stream_of(handle);
	if (*stream) {
		result = cs_submit_locked(*stream, op);
		*number = (*stream)->capture ? 0 : (*stream)->submitted;
	}
	pthread_mutex_unlock(&cs_lock);
	if (!*stream)
		free(op);
	return result;
}

CUresult cs_submit(CUstream handle, void *op)
{
	struct CUstream_st *stream = NULL;
	uint64_t number;

	return submit(handle, op, &stream, &number);
}

CUresult cs_submit_and_wait(CUstream handle, void *op)
{
	struct CUstream_st *stream = NULL;
	uint64_t number = 0;
	CUresult result = submit(handle, op, &stream, &number);

	if (result != CUDA_SUCCESS)
		return result;
	cs_stream_wait(stream, number);
	cs_race_host_stream("cuMemcpy", stream->number, number);
	return cs_fault_now();
}

CUresult cs_stream_finish(CUstream handle)
{
	struct CUstream_st *stream;
	uint64_t number = 0;

	pthread_mutex_lock(&cs_lock);
	stream = cs_stream_of(handle);
	if (stream)
		number = stream->submitted;
	pthread_mutex_unlock(&cs_lock);
	if (!stream)
		return CUDA_ERROR_INVALID_HANDLE;
	cs_stream_wait(stream, number);
	cs_race_host_stream("cuMemcpy", stream->number, number);
	return cs_fault_now();
}

void cs_drain(struct CUctx_st *context)
{
	for (struct CUstream_st *stream = streams; stream; stream = stream->next) {
		uint64_t number;

		if (stream->context != context)
			continue;
		pthread_mutex_lock(&cs_lock);
		number = stream->submitted;
		pthread_mutex_unlock(&cs_lock);
		cs_stream_wait(stream, number);
		cs_race_host_stream("cuCtxSynchronize", stream->number, number);
	}
}

void cs_stream_destroy(struct CUstream_st *stream)
{
	stream->destroyed = true;
	if (stream->queue == shared_queue)
		return;
	pthread_mutex_lock(&stream->queue->lock);
	stream->queue->closing = true;
	pthread_cond_signal(&stream->queue->work);
	pthread_mutex_unlock(&stream->queue->lock);
}

void cs_streams_end(struct CUctx_st *context)
{
	pthread_mutex_lock(&cs_lock);
	for (struct CUstream_st *stream = streams; stream; stream = stream->next)
		if (stream->context == context && !stream->destroyed)
			cs_stream_destroy(stream);
	context->legacy = NULL;
	pthread_mutex_unlock(&cs_lock);
}
