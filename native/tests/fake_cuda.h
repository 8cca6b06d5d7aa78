/*
 * fake_cuda.h - a table of CUDA functions for one test: asynchronous on purpose, and strict.
 *
 * What is put on a stream runs later, when somebody asks (an event, a stream), a seeded number of steps at a time.
 * GPU memory has addresses that the host cannot use; pinned host memory has others than the host's. A call without a
 * current context, an address of neither kind, or a range registered twice ends the test.
 */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_api.h"
#include "cuda_kernel_abi.h"
#include "reduce.h"
#include "reduce_ops_scalar.h"

#define FAKE_GPU 0x1000000000000000ull  /* added to where GPU memory really lies */
#define FAKE_HOST 0x2000000000000000ull /* and to pinned host memory */
#define FAKE_STEPS 8192u
#define FAKE_RANGES 64u

struct fake_kernel {
	rr_dtype dtype;
	rr_redop redop;
};

struct fake_event {
	uint64_t recorded; /* the step behind which it is; 0: never */
};

enum fake_kind { FAKE_COPY, FAKE_KERNEL, FAKE_NOTHING };

struct fake_step {
	enum fake_kind kind;
	const struct fake_kernel *kernel;
	struct rr_cuda_combine combine;
	rr_cuda_ptr to, from;
	uint64_t bytes;
};

struct fake_range {
	char *address;
	uint64_t bytes;
};

static struct {
	uint32_t random;
	int depth; /* contexts pushed */
	struct fake_step steps[FAKE_STEPS];
	uint64_t issued, done;
	struct fake_range gpu[FAKE_RANGES], pinned[FAKE_RANGES];
	uint32_t gpu_count, pinned_count;
	uint64_t registered, unregistered, calls[3]; /* of copies, launches, queries */
	const char *fail; /* the call that fails, once `fail_in` more of them were made */
	uint64_t fail_in;
	bool lazy; /* nothing runs by itself */
} fake;

static void fake_die(const char *why)
{
	fprintf(stderr, "FAILED: the fake driver: %s\n", why);
	exit(1);
}

static uint32_t fake_random(uint32_t below)
{
	fake.random = fake.random * 1664525u + 1013904223u;
	return (fake.random >> 8) % below;
}

/* Of every call but those that tell of errors. */
static int fake_called(const char *name)
{
	if (fake.depth != 1)
		fake_die(name);
	if (fake.fail && strcmp(fake.fail, name) == 0 && fake.fail_in-- == 0)
		return 700;
	return 0;
}

/* Where an address of the GPU's lies, all of `bytes` of it. */
static char *fake_real(rr_cuda_ptr address, uint64_t bytes)
{
	bool gpu = address >= FAKE_GPU && address < FAKE_HOST;
	const struct fake_range *ranges = gpu ? fake.gpu : fake.pinned;
	uint32_t count = gpu ? fake.gpu_count : fake.pinned_count;
	char *real = (char *)(uintptr_t)(address - (gpu ? FAKE_GPU : FAKE_HOST));

	for (uint32_t i = 0; i < count; i++)
		if (real >= ranges[i].address && real + bytes <= ranges[i].address + ranges[i].bytes)
			return real;
	fake_die("an address that is neither in GPU memory nor in pinned memory");
	return NULL;
}

static float fake_widen(const struct rr_cuda_combine *c, rr_dtype dtype, uint32_t s, uint64_t at)
{
	bool wide = c->wide_sources >> s & 1;
	const char *from = fake_real(c->src[s], c->count * (wide ? 4 : 2));

	if (wide)
		return ((const float *)(const void *)from)[at];
	uint16_t bits = ((const uint16_t *)(const void *)from)[at];
	return dtype == RR_FLOAT16 ? rr_half_to_float(bits) : rr_bfloat_to_float(bits);
}

/* 16-bit floats: in float32, rounded once. min and max as reduce.h has them. */
static void fake_run_narrow(const struct fake_kernel *kernel, const struct rr_cuda_combine *c)
{
	bool wide = c->flags & RR_CUDA_WIDE;

	for (uint64_t i = 0; i < c->count; i++) {
		float sum = fake_widen(c, kernel->dtype, 0, i);
		for (uint32_t s = 1; s < c->src_count; s++) {
			float next = fake_widen(c, kernel->dtype, s, i);
			if (kernel->redop == RR_SUM)
				sum += next;
			else if (kernel->redop == RR_PROD)
				sum *= next;
			else if (kernel->redop == RR_MIN)
				sum = next < sum ? next : sum;
			else
				sum = next > sum ? next : sum;
		}
		if (c->flags & RR_CUDA_POST)
			sum *= (float)c->factor;
		for (uint32_t d = 0; d < c->dst_count; d++) {
			char *to = fake_real(c->dst[d], c->count * (wide ? 4 : 2));
			if (wide)
				((float *)(void *)to)[i] = sum;
			else
				((uint16_t *)(void *)to)[i] = kernel->dtype == RR_FLOAT16 ? rr_float_to_half(sum) : rr_float_to_bfloat(sum);
		}
	}
}

static void fake_run_kernel(const struct fake_kernel *kernel, const struct rr_cuda_combine *c)
{
	uint64_t bytes = c->count * rr_dtype_bytes(kernel->dtype);
	const void *src[RR_CUDA_SOURCES_MAX];
	void *dst[RR_CUDA_TARGETS_MAX];

	if (kernel->dtype == RR_FLOAT16 || kernel->dtype == RR_BFLOAT16) {
		fake_run_narrow(kernel, c);
		return;
	}
	for (uint32_t s = 0; s < c->src_count; s++)
		src[s] = fake_real(c->src[s], bytes);
	for (uint32_t d = 0; d < c->dst_count; d++)
		dst[d] = fake_real(c->dst[d], bytes);
	struct rr_combine pass = {.dst = dst, .dst_count = c->dst_count, .src = src, .src_count = c->src_count,
				  .count = c->count, .post = c->flags & RR_CUDA_POST, .factor = c->factor};
	rr_combine_lookup(kernel->dtype, kernel->redop, RR_SIMD_SCALAR)(&pass);
}

static void fake_run(uint64_t count)
{
	for (; count && fake.done < fake.issued; count--) {
		struct fake_step *step = &fake.steps[fake.done++ % FAKE_STEPS];
		if (step->kind == FAKE_COPY)
			memcpy(fake_real(step->to, step->bytes), fake_real(step->from, step->bytes), step->bytes);
		else if (step->kind == FAKE_KERNEL)
			fake_run_kernel(step->kernel, &step->combine);
	}
}

static struct fake_step *fake_step(void)
{
	if (fake.issued - fake.done == FAKE_STEPS)
		fake_run(FAKE_STEPS / 2);
	return &fake.steps[fake.issued++ % FAKE_STEPS];
}

/* ---- the calls ---- */

static int fake_error_name(int error, const char **name)
{
	*name = error == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_UNKNOWN";
	return 0;
}

static int fake_push(void *context)
{
	if (!context || fake.depth)
		fake_die("cuCtxPushCurrent");
	fake.depth++;
	return 0;
}

static int fake_pop(void **context)
{
	if (fake.depth-- != 1)
		fake_die("cuCtxPopCurrent");
	*context = NULL;
	return 0;
}

static int fake_stream_create(void **stream, unsigned int flags)
{
	if (flags != RR_CUDA_STREAM_NON_BLOCKING)
		fake_die("a stream that waits for the legacy stream");
	*stream = &fake;
	return fake_called("cuStreamCreate");
}

static int fake_stream_destroy(void *stream)
{
	(void)stream;
	return fake_called("cuStreamDestroy");
}

static int fake_stream_query(void *stream)
{
	(void)stream;
	if (!fake.lazy)
		fake_run(1 + fake_random(4));
	return fake_called("cuStreamQuery") ? 700 : fake.done < fake.issued ? RR_CUDA_ERROR_NOT_READY : 0;
}

static int fake_stream_synchronize(void *stream)
{
	(void)stream;
	fake_run(UINT64_MAX);
	return fake_called("cuStreamSynchronize");
}

static int fake_wait_event(void *stream, void *event, unsigned int flags)
{
	(void)stream;
	(void)flags;
	fake_step()->kind = FAKE_NOTHING;
	return event ? fake_called("cuStreamWaitEvent") : 1;
}

static int fake_event_create(void **event, unsigned int flags)
{
	*event = calloc(1, sizeof(struct fake_event));
	return flags == RR_CUDA_EVENT_DISABLE_TIMING ? fake_called("cuEventCreate") : 1;
}

static int fake_event_destroy(void *event)
{
	free(event);
	return fake_called("cuEventDestroy");
}

static int fake_event_record(void *event, void *stream)
{
	(void)stream;
	((struct fake_event *)event)->recorded = fake.issued;
	return fake_called("cuEventRecord");
}

static int fake_event_query(void *event)
{
	fake.calls[2]++;
	if (!fake.lazy)
		fake_run(fake_random(3));
	if (fake_called("cuEventQuery"))
		return 700;
	return fake.done < ((struct fake_event *)event)->recorded ? RR_CUDA_ERROR_NOT_READY : 0;
}

static int fake_launch(void *function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
		       unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, void *stream,
		       void **parameters, void **extra)
{
	fake.calls[1]++;
	if (!grid_x || grid_y != 1 || grid_z != 1 || block_x > RR_CUDA_BLOCK_THREADS || block_y != 1 || block_z != 1 || shared_bytes ||
	    !stream || extra)
		fake_die("cuLaunchKernel");
	if (fake_called("cuLaunchKernel"))
		return 700;
	struct fake_step *step = fake_step();
	step->kind = FAKE_KERNEL;
	step->kernel = function;
	memcpy(&step->combine, parameters[0], sizeof(step->combine));
	return 0;
}

static int fake_copy(rr_cuda_ptr to, rr_cuda_ptr from, size_t bytes, void *stream)
{
	(void)stream;
	fake.calls[0]++;
	if (fake_called("cuMemcpyAsync"))
		return 700;
	struct fake_step *step = fake_step();
	*step = (struct fake_step){.kind = FAKE_COPY, .to = to, .from = from, .bytes = bytes};
	return 0;
}

static int fake_alloc(rr_cuda_ptr *out, size_t bytes)
{
	if (fake_called("cuMemAlloc") || fake.gpu_count == FAKE_RANGES)
		return 2;
	char *memory = malloc(bytes);
	fake.gpu[fake.gpu_count++] = (struct fake_range){memory, bytes};
	*out = (rr_cuda_ptr)(uintptr_t)memory + FAKE_GPU;
	return 0;
}

static int fake_forget(struct fake_range *ranges, uint32_t *count, const char *address)
{
	for (uint32_t i = 0; i < *count; i++) {
		if (ranges[i].address != address)
			continue;
		ranges[i] = ranges[--*count];
		return 0;
	}
	return 1;
}

static int fake_free(rr_cuda_ptr address)
{
	char *memory = (char *)(uintptr_t)(address - FAKE_GPU);

	fake_run(UINT64_MAX);
	if (fake_forget(fake.gpu, &fake.gpu_count, memory))
		fake_die("cuMemFree of what is not allocated");
	free(memory);
	return fake_called("cuMemFree");
}

static int fake_register(void *address, size_t bytes, unsigned int flags)
{
	if (flags != (RR_CUDA_HOST_PORTABLE | RR_CUDA_HOST_MAPPED) || (uintptr_t)address % 4096 || bytes % 4096)
		fake_die("cuMemHostRegister");
	for (uint32_t i = 0; i < fake.pinned_count; i++)
		if (fake.pinned[i].address == (char *)address)
			fake_die("a range is registered twice");
	if (fake_called("cuMemHostRegister"))
		return 700;
	fake.registered++;
	fake.pinned[fake.pinned_count++] = (struct fake_range){address, bytes};
	return 0;
}

static int fake_unregister(void *address)
{
	fake.unregistered++;
	if (fake_forget(fake.pinned, &fake.pinned_count, address))
		fake_die("cuMemHostUnregister of what is not registered");
	return fake_called("cuMemHostUnregister");
}

static int fake_device_pointer(rr_cuda_ptr *out, void *address, unsigned int flags)
{
	*out = (rr_cuda_ptr)(uintptr_t)address + FAKE_HOST;
	return flags ? 1 : fake_called("cuMemHostGetDevicePointer");
}

static int fake_unused(void)
{
	fake_die("a call that the device has no use for");
	return 1;
}

/* The address of a function by the driver's name for it. */
static void *fake_address(const char *name)
{
	static const struct {
		const char *name;
		void *address;
	} known[] = {
		{"cuGetErrorName", fake_error_name}, {"cuGetErrorString", fake_error_name}, {"cuCtxPushCurrent", fake_push},
		{"cuCtxPopCurrent", fake_pop}, {"cuStreamCreate", fake_stream_create}, {"cuStreamDestroy", fake_stream_destroy},
		{"cuStreamQuery", fake_stream_query}, {"cuStreamSynchronize", fake_stream_synchronize},
		{"cuStreamWaitEvent", fake_wait_event}, {"cuEventCreate", fake_event_create},
		{"cuEventDestroy", fake_event_destroy}, {"cuEventRecord", fake_event_record}, {"cuEventQuery", fake_event_query},
		{"cuLaunchKernel", fake_launch}, {"cuMemcpyAsync", fake_copy}, {"cuMemAlloc", fake_alloc}, {"cuMemFree", fake_free},
		{"cuMemHostRegister", fake_register}, {"cuMemHostUnregister", fake_unregister},
		{"cuMemHostGetDevicePointer", fake_device_pointer}, {"cuCtxGetDevice", NULL}, /* NICs reach none of its memory */
	};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (strcmp(known[i].name, name) == 0)
			return known[i].address;
	return fake_unused;
}

#endif
