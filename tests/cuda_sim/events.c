/* events.c - events: recorded by number, so that a wait means the record that was the latest when it was called. */
#define _GNU_SOURCE
#include "cs.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define FLAGS_KNOWN (CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS)
#define RECHECK_NS  2000000 /* how soon a wait notices a fault */

struct event_op {
	struct cs_op op;
	struct cs_event_state *state;
	uint32_t record;
	char name[32];
};

static struct CUevent_st *events;
static uint64_t event_count;

/* Records count cyclically. */
static bool is_done(const struct cs_event_state *state, uint32_t record)
{
	return (int32_t)(atomic_load(&state->reached[record % CS_RECORDS_KEPT]) - record) >= 0;
}

void cs_event_complete(struct cs_event_state *state, uint32_t record)
{
	state->time_ns = cs_now_ns();
	atomic_store(&state->reached[record % CS_RECORDS_KEPT], record);
	atomic_fetch_add(&state->changes, 1);
	syscall(SYS_futex, &state->changes, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void cs_event_wait(struct cs_event_state *state, uint32_t record)
{
	const struct timespec recheck = { 0, RECHECK_NS };
	uint32_t seen = atomic_load(&state->changes);

	while (!is_done(state, record) && cs_fault_now() == CUDA_SUCCESS) {
		syscall(SYS_futex, &state->changes, FUTEX_WAIT, seen, &recheck, NULL, 0);
		seen = atomic_load(&state->changes);
	}
}

static void run_record(struct cs_op *op)
{
	struct event_op *record = (struct event_op *)op;

	cs_race_event("records", record->name, record->record);
	cs_event_complete(record->state, record->record);
}

static void run_wait(struct cs_op *op)
{
	struct event_op *wait = (struct event_op *)op;

	cs_event_wait(wait->state, wait->record);
	cs_race_event("awaits", wait->name, wait->record);
}

static const struct cs_op_kind record_kind = { "record", run_record };
static const struct cs_op_kind wait_kind = { "wait", run_wait };

/* NULL: no memory. */
static struct event_op *event_op(const struct cs_op_kind *kind, struct CUevent_st *event, uint32_t record)
{
	struct event_op *op = cs_op_new(kind, sizeof(*op));

	if (op) {
		op->state = event->state;
		op->record = record;
		strcpy(op->name, event->name);
	}
	return op;
}

struct CUevent_st *cs_event_of(CUevent handle)
{
	struct CUevent_st *event = events;

	while (event && event != handle)
		event = event->next;
	return event && !event->destroyed && !atomic_load(&event->state->destroyed) ? event : NULL;
}

struct CUevent_st *cs_event_new(unsigned int flags, int fd)
{
	struct CUevent_st *event = calloc(1, sizeof(*event));
	struct stat status;

	if (!event)
		goto close_fd;
	event->fd = -1;
	event->flags = flags;
	event->context = cs_current();
	event->state = &event->own;
	snprintf(event->name, sizeof(event->name), "l%d.%lu", getpid(), (unsigned long)++event_count);
	if (fd >= 0) {
		event->state = mmap(NULL, CS_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (event->state == MAP_FAILED || fstat(fd, &status))
			goto close_fd;
		event->fd = fd;
		event->inode = status.st_ino;
		snprintf(event->name, sizeof(event->name), "e%lu", (unsigned long)status.st_ino);
	}
	event->next = events;
	events = event;
	return event;
close_fd:
	if (fd >= 0)
		close(fd);
	free(event);
	return NULL;
}

CS_API(cuEventCreate, 2000)(CUevent *handle, unsigned int flags)
{
	int fd = -1;

	CS_ENTER(CS_NEED_CONTEXT);
	if (!handle || (flags & ~(unsigned int)FLAGS_KNOWN))
		return CUDA_ERROR_INVALID_VALUE;
	if (flags & CU_EVENT_INTERPROCESS) {
		if (!(flags & CU_EVENT_DISABLE_TIMING))
			return CUDA_ERROR_INVALID_VALUE;
		fd = memfd_create("cuda_sim_event", MFD_CLOEXEC);
		if (fd < 0 || ftruncate(fd, CS_PAGE_BYTES))
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	pthread_mutex_lock(&cs_lock);
	*handle = cs_event_new(flags, fd);
	pthread_mutex_unlock(&cs_lock);
	return *handle ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Operations that wait for the event or record it still run. The memory stays: they may look at it. */
CS_API(cuEventDestroy, 4000)(CUevent handle)
{
	struct CUevent_st *event;

	CS_ENTER(CS_NEED_CONTEXT);
	pthread_mutex_lock(&cs_lock);
	event = cs_event_of(handle);
	if (event) {
		event->destroyed = true;
		if (event->fd >= 0) {
			if (!event->imported)
				atomic_store(&event->state->destroyed, 1);
			close(event->fd);
		}
	}
	pthread_mutex_unlock(&cs_lock);
	return event ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult record(CUevent handle, CUstream stream_handle)
{
	struct CUevent_st *event;
	struct CUstream_st *stream;
	struct event_op *op = NULL;
	CUresult result = CUDA_ERROR_INVALID_HANDLE;

	pthread_mutex_lock(&cs_lock);
	event = cs_event_of(handle);
	stream = cs_stream_of(stream_handle);
	/* Stream and event are of one context; an event of another process has none. */
	if (!event || !stream || (event->context != stream->context && !event->imported))
		goto unlock;
	if (stream->capture) {
		result = cs_capture_record(stream, event);
		goto unlock;
	}
	event->captured = NULL;
	op = event_op(&record_kind, event, atomic_fetch_add(&event->state->recorded, 1) + 1);
	result = op ? cs_submit_locked(stream, &op->op) : CUDA_ERROR_OUT_OF_MEMORY;
unlock:
	pthread_mutex_unlock(&cs_lock);
	return result;
}

CS_API(cuEventRecord, 2000)(CUevent event, CUstream stream)
{
	CS_ENTER(CS_NEED_CONTEXT);
	return record(event, stream);
}

CS_API(cuEventRecordWithFlags, 11010)(CUevent event, CUstream stream, unsigned int flags)
{
	CS_ENTER(CS_NEED_CONTEXT);
	if (flags > CU_EVENT_RECORD_EXTERNAL)
		return CUDA_ERROR_INVALID_VALUE;
	if (flags)
		return CUDA_ERROR_NOT_SUPPORTED;
	return record(event, stream);
}

CS_API(cuStreamWaitEvent, 3020)(CUstream stream_handle, CUevent handle, unsigned int flags)
{
	struct CUevent_st *event;
	struct CUstream_st *stream;
	struct event_op *op;
	uint32_t recorded;
	CUresult result = CUDA_ERROR_INVALID_HANDLE;

	CS_ENTER(CS_NEED_CONTEXT);
	if (flags)
		return flags == CU_EVENT_WAIT_EXTERNAL ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&cs_lock);
	event = cs_event_of(handle);
	stream = cs_stream_of(stream_handle);
	if (!event || !stream)
		goto unlock;
	if (event->captured || stream->capture) {
		result = cs_capture_wait(stream, event);
		goto unlock;
	}
	result = CUDA_SUCCESS;
	recorded = atomic_load(&event->state->recorded);
	if (!recorded)
		goto unlock; /* never recorded: nothing to wait for, as documented */
	op = event_op(&wait_kind, event, recorded);
	result = op ? cs_submit_locked(stream, &op->op) : CUDA_ERROR_OUT_OF_MEMORY;
unlock:
	pthread_mutex_unlock(&cs_lock);
	return result;
}

/* The event of a handle and its latest record. */
static CUresult look(CUevent handle, struct CUevent_st **event, uint32_t *recorded)
{
	CUresult result = CUDA_SUCCESS;

	pthread_mutex_lock(&cs_lock);
	*event = cs_event_of(handle);
	if (!*event)
		result = CUDA_ERROR_INVALID_HANDLE;
	else if ((*event)->captured)
		result = CUDA_ERROR_CAPTURED_EVENT;
	else
		*recorded = atomic_load(&(*event)->state->recorded);
	pthread_mutex_unlock(&cs_lock);
	return result;
}

CS_API(cuEventQuery, 2000)(CUevent handle)
{
	struct CUevent_st *event;
	uint32_t recorded;
	CUresult result;

	CS_ENTER(CS_NEED_CONTEXT);
	result = cs_capture_forbids();
	if (result != CUDA_SUCCESS)
		return result;
	result = look(handle, &event, &recorded);
	if (result != CUDA_SUCCESS)
		return result;
	if (!is_done(event->state, recorded))
		return CUDA_ERROR_NOT_READY;
	cs_race_host_event("cuEventQuery", event->name, recorded);
	return cs_fault_now();
}

CS_API(cuEventSynchronize, 2000)(CUevent handle)
{
	struct CUevent_st *event;
	uint32_t recorded;
	CUresult result;

	CS_ENTER(CS_NEED_CONTEXT);
	result = look(handle, &event, &recorded);
	if (result != CUDA_SUCCESS)
		return result;
	cs_event_wait(event->state, recorded);
	cs_race_host_event("cuEventSynchronize", event->name, recorded);
	return cs_fault_now();
}

static CUresult elapsed(float *ms, CUevent first, CUevent last)
{
	struct CUevent_st *from, *to;
	uint32_t from_record, to_record;
	CUresult result;

	if (!ms)
		return CUDA_ERROR_INVALID_VALUE;
	result = look(first, &from, &from_record);
	if (result == CUDA_SUCCESS)
		result = look(last, &to, &to_record);
	if (result != CUDA_SUCCESS)
		return result;
	if (!from_record || !to_record || ((from->flags | to->flags) & CU_EVENT_DISABLE_TIMING))
		return CUDA_ERROR_INVALID_HANDLE;
	if (!is_done(from->state, from_record) || !is_done(to->state, to_record))
		return CUDA_ERROR_NOT_READY;
	*ms = (float)((double)(int64_t)(to->state->time_ns - from->state->time_ns) / 1e6);
	return CUDA_SUCCESS;
}

CS_API(cuEventElapsedTime, 2000)(float *ms, CUevent first, CUevent last)
{
	CS_ENTER(CS_NEED_CONTEXT);
	return elapsed(ms, first, last);
}

CS_API(cuEventElapsedTime, 12080)(float *ms, CUevent first, CUevent last)
{
	CS_ENTER(CS_NEED_CONTEXT);
	return elapsed(ms, first, last);
}
