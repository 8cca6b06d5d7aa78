/*
 * copies.c - copies and fills.
 *
 * Pageable host memory as a source is staged while the call runs; as a destination it makes the call wait. Pinned
 * memory is read and written when the operation runs, which may be much later: whoever changes it too soon sees it.
 */
#define _GNU_SOURCE
#include "cs.h"

#include <sched.h>
#include <string.h>

#define PIECE_BYTES ((size_t)65536)

enum place { PLACE_DEVICE, PLACE_PINNED, PLACE_PAGEABLE, PLACE_NONE };

struct copy {
	struct cs_op op;
	CUdeviceptr to, from;
	enum place to_place, from_place; /* PLACE_NONE as a source: what is to be copied follows the struct */
	size_t bytes;
};

struct fill {
	struct cs_op op;
	CUdeviceptr to;
	uint32_t value, width; /* of one element, in bytes */
	size_t count;
};

/* Where a range lies as a whole; PLACE_NONE: it runs over an end, or is no memory. */
static enum place place_of(CUdeviceptr address, size_t bytes)
{
	enum place place;

	pthread_mutex_lock(&cs_lock);
	if (cs_in_arena(address))
		place = cs_allocation_find(address, bytes) ? PLACE_DEVICE : PLACE_NONE;
	else if (cs_host_find(address, 1))
		place = cs_host_find(address, bytes) ? PLACE_PINNED : PLACE_NONE;
	else
		place = PLACE_PAGEABLE;
	pthread_mutex_unlock(&cs_lock);
	return place;
}

static void *end_of(enum place place, CUdeviceptr address, size_t bytes, bool writes)
{
	/* A copy engine reaches all devices; access to peers is asked for by kernels only. */
	return place == PLACE_PAGEABLE ? (void *)address : cs_translate_any(address, bytes, writes);
}

/* One word is stored at once, as a device does: flags are set by such copies. */
static void copy_bytes(char *to, const char *from, size_t bytes)
{
	if (bytes == 4 && !(((uintptr_t)to | (uintptr_t)from) & 3)) {
		atomic_store((_Atomic uint32_t *)to, atomic_load((const _Atomic uint32_t *)from));
		return;
	}
	for (size_t done = 0; done < bytes; done += PIECE_BYTES) {
		size_t piece = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;

		memmove(to + done, from + done, piece);
		if (cs_settings.delay_us)
			sched_yield(); /* so that a half is seen by whoever does not wait */
	}
	atomic_thread_fence(memory_order_seq_cst);
}

static void run_copy(struct cs_op *op)
{
	struct copy *copy = (struct copy *)op;
	const char *from = copy->from_place == PLACE_NONE ?
				   (const char *)(copy + 1) :
				   end_of(copy->from_place, copy->from, copy->bytes, false);
	char *to = from ? end_of(copy->to_place, copy->to, copy->bytes, true) : NULL;

	if (to)
		copy_bytes(to, from, copy->bytes);
}

static void run_fill(struct cs_op *op)
{
	struct fill *fill = (struct fill *)op;
	size_t bytes = fill->count * fill->width;
	char *to = cs_translate(fill->to, bytes, true);

	if (!to)
		return;
	cs_race_fill(fill->value, fill->width);
	if (fill->width == 1)
		memset(to, (int)fill->value, bytes);
	for (size_t i = 0; fill->width > 1 && i < fill->count; i++)
		memcpy(to + i * fill->width, &fill->value, fill->width); /* little-endian */
}

static const struct cs_op_kind copy_kind = { "copy", run_copy };
static const struct cs_op_kind fill_kind = { "fill", run_fill };

static bool syncs_always(CUdeviceptr address)
{
	struct cs_allocation *allocation;
	bool syncs;

	pthread_mutex_lock(&cs_lock);
	allocation = cs_allocation_find(address, 1);
	syncs = allocation && allocation->sync_memops;
	pthread_mutex_unlock(&cs_lock);
	return syncs;
}

struct request {
	CUdeviceptr to, from;
	size_t bytes;
	CUstream stream;
	bool synchronous;
	bool to_device, from_device; /* by the name of the call: pageable memory is refused there */
};

static CUresult submit(const struct request *request)
{
	enum place to = place_of(request->to, request->bytes), from = place_of(request->from, request->bytes);
	bool capturing = cs_stream_captures(request->stream), staged = from == PLACE_PAGEABLE && !capturing;
	struct copy *copy;
	bool waits;
	CUresult result;

	if (to == PLACE_NONE || from == PLACE_NONE || (request->to_device && to == PLACE_PAGEABLE) ||
	    (request->from_device && from == PLACE_PAGEABLE))
		return CUDA_ERROR_INVALID_VALUE;
	/* A synchronous call: what the stream has is done before pageable memory is looked at. */
	if (request->synchronous && from == PLACE_PAGEABLE) {
		result = cs_stream_finish(request->stream);
		if (result != CUDA_SUCCESS)
			return result;
	}
	copy = cs_op_new(&copy_kind, sizeof(*copy) + (staged ? request->bytes : 0));
	if (!copy)
		return CUDA_ERROR_OUT_OF_MEMORY;
	copy->to = request->to;
	copy->from = request->from;
	copy->to_place = to;
	copy->from_place = staged ? PLACE_NONE : from;
	copy->bytes = request->bytes;
	if (staged)
		memcpy(copy + 1, (const void *)request->from, request->bytes);
	waits = to == PLACE_PAGEABLE;
	if (request->synchronous)
		waits = to != PLACE_DEVICE || from == PLACE_PINNED || syncs_always(request->to) ||
			syncs_always(request->from);
	return waits && !capturing ? cs_submit_and_wait(request->stream, copy) : cs_submit(request->stream, copy);
}

static CUresult copy_any(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream, bool synchronous)
{
	struct request request = { to, from, bytes, stream, synchronous, false, false };

	return bytes ? submit(&request) : CUDA_SUCCESS;
}

static CUresult to_device(CUdeviceptr to, const void *from, size_t bytes, CUstream stream, bool synchronous)
{
	struct request request = { to, (CUdeviceptr)from, bytes, stream, synchronous, true, false };

	return bytes ? submit(&request) : CUDA_SUCCESS;
}

static CUresult to_host(void *to, CUdeviceptr from, size_t bytes, CUstream stream, bool synchronous)
{
	struct request request = { (CUdeviceptr)to, from, bytes, stream, synchronous, false, true };

	return bytes ? submit(&request) : CUDA_SUCCESS;
}

static CUresult inside(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream, bool synchronous)
{
	struct request request = { to, from, bytes, stream, synchronous, true, true };

	return bytes ? submit(&request) : CUDA_SUCCESS;
}

CS_API(cuMemcpy, 4000)(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	CS_ENTER(CS_NEED_CONTEXT);
	return copy_any(to, from, bytes, NULL, true);
}

CS_API(cuMemcpyAsync, 4000)(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	CS_ENTER(CS_NEED_CONTEXT);
	return copy_any(to, from, bytes, stream, false);
}

CS_API(cuMemcpyHtoD, 3020)(CUdeviceptr to, const void *from, size_t bytes)
{
	CS_ENTER(CS_NEED_CONTEXT);
	return to_device(to, from, bytes, NULL, true);
}

CS_API(cuMemcpyHtoDAsync, 3020)(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
	CS_ENTER(CS_NEED_CONTEXT);
	return to_device(to, from, bytes, stream, false);
}

CS_API(cuMemcpyDtoH, 3020)(void *to, CUdeviceptr from, size_t bytes)
{
	CS_ENTER(CS_NEED_CONTEXT);
	return to_host(to, from, bytes, NULL, true);
}

CS_API(cuMemcpyDtoHAsync, 3020)(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	CS_ENTER(CS_NEED_CONTEXT);
	return to_host(to, from, bytes, stream, false);
}

CS_API(cuMemcpyDtoD, 3020)(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	CS_ENTER(CS_NEED_CONTEXT);
	return inside(to, from, bytes, NULL, true); /* the host does not wait: the driver documents so */
}

CS_API(cuMemcpyDtoDAsync, 3020)(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	CS_ENTER(CS_NEED_CONTEXT);
	return inside(to, from, bytes, stream, false);
}

CS_API(cuMemcpyPeer, 4000)(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes)
{
	CS_ENTER(CS_NEED_CONTEXT);
	if (!cs_context_lives(to_context) || !cs_context_lives(from_context))
		return CUDA_ERROR_INVALID_CONTEXT;
	return inside(to, from, bytes, NULL, true);
}

CS_API(cuMemcpyPeerAsync, 4000)(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
				size_t bytes, CUstream stream)
{
	CS_ENTER(CS_NEED_CONTEXT);
	if (!cs_context_lives(to_context) || !cs_context_lives(from_context))
		return CUDA_ERROR_INVALID_CONTEXT;
	return inside(to, from, bytes, stream, false);
}

static CUresult fill(CUdeviceptr to, uint32_t value, uint32_t width, size_t count, CUstream stream)
{
	struct fill *fill;
	enum place place;

	if (!count)
		return CUDA_SUCCESS;
	place = count <= SIZE_MAX / width ? place_of(to, count * width) : PLACE_NONE;
	if (to % width || (place != PLACE_DEVICE && place != PLACE_PINNED))
		return CUDA_ERROR_INVALID_VALUE;
	fill = cs_op_new(&fill_kind, sizeof(*fill));
	if (!fill)
		return CUDA_ERROR_OUT_OF_MEMORY;
	fill->to = to;
	fill->value = value;
	fill->width = width;
	fill->count = count;
	return cs_submit(stream, fill);
}

CS_API(cuMemsetD8, 3020)(CUdeviceptr to, unsigned char value, size_t count)
{
	CS_ENTER(CS_NEED_CONTEXT);
	return fill(to, value, 1, count, NULL);
}

CS_API(cuMemsetD32, 3020)(CUdeviceptr to, unsigned int value, size_t count)
{
	CS_ENTER(CS_NEED_CONTEXT);
	return fill(to, value, 4, count, NULL);
}

CS_API(cuMemsetD8Async, 3020)(CUdeviceptr to, unsigned char value, size_t count, CUstream stream)
{
	CS_ENTER(CS_NEED_CONTEXT);
	return fill(to, value, 1, count, stream);
}

CS_API(cuMemsetD32Async, 3020)(CUdeviceptr to, unsigned int value, size_t count, CUstream stream)
{
	CS_ENTER(CS_NEED_CONTEXT);
	return fill(to, value, 4, count, stream);
}
