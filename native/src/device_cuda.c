/*
 * device_cuda.c - passes on a GPU: kernels and copies on one stream, an event behind each.
 *
 * Slices come from slots and go to slots: host memory of the links, pinned when first met, which kernels read and
 * write over the bus. A pass is one launch: all destinations = op(all sources), in one sweep. With more sources than a launch
 * takes (cuda_kernel_abi.h) the sum goes on from a partial one in GPU memory, float32 for 16-bit floats, so the bits are those of
 * one pass; with more destinations the first is copied to the others.
 *
 * An error of the driver is kept, and nothing is started after it: the context may be lost.
 */
#include "device_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "cuda_kernel_abi.h"
#include "order.h"
#include "status.h"

#define BLOCKS_MAX_DEFAULT 256u
#define BYTES_A_THREAD 16u /* of one load */
#define SETTLE_NS (3 * RR_NS_PER_S)
#define NAP_NS 100000u
#define PARTIAL_ALIGN (2ull << 20) /* an allocation's step */

/* A pass whose addresses are the GPU's. */
struct pass {
	const struct rr_combine *combine;
	bool narrow; /* of 16-bit floats */
	rr_cuda_ptr src[RR_COMBINE_SOURCES_MAX + 1];
	rr_cuda_ptr dst[RR_COMBINE_TARGETS_MAX];
};

static struct rr_cuda_device *self(struct rr_device *device)
{
	return (struct rr_cuda_device *)device;
}

/* Keep the thread's error as the device's; the first stays. */
static rr_status keep(struct rr_cuda_device *this, rr_status status)
{
	if (status == RR_ERR_DEVICE && !this->failed) {
		char message[sizeof(this->failure.message)];

		snprintf(message, sizeof(message), "on GPU %d: %.900s", this->ordinal, rr_error_here()->message);
		memcpy(rr_error_here()->message, message, sizeof(message));
		this->failure = *rr_error_here();
		this->failed = true;
	}
	return status;
}

/* To end or free something: after an error, too, which need not be one of the context. */
static rr_status enter_anyway(struct rr_cuda_device *this)
{
	pthread_mutex_lock(&this->lock);
	rr_status status = rr_cuda_enter(this->cuda, this->context);
	if (status < 0)
		pthread_mutex_unlock(&this->lock);
	return status;
}

static rr_status enter(struct rr_cuda_device *this)
{
	rr_status status = enter_anyway(this);

	if (status >= 0 && this->failed) {
		status = rr_error_set(&this->failure);
		rr_cuda_leave(this->cuda);
		pthread_mutex_unlock(&this->lock);
	}
	return status;
}

static rr_status leave(struct rr_cuda_device *this, rr_status status)
{
	status = keep(this, status);
	rr_cuda_leave(this->cuda);
	pthread_mutex_unlock(&this->lock);
	return status;
}

/* ---- launches ---- */

static rr_status launch(struct rr_cuda_device *this, const struct pass *pass, struct rr_cuda_combine *parameter)
{
	uint32_t redop = pass->combine->redop == RR_AVG ? RR_SUM : pass->combine->redop;
	void *kernel = this->kernels[pass->combine->dtype][redop];
	uint64_t bytes = parameter->count * rr_dtype_bytes((rr_dtype)pass->combine->dtype);
	uint64_t blocks = bytes / ((uint64_t)RR_CUDA_BLOCK_THREADS * BYTES_A_THREAD) + 1;
	void *parameters[] = {parameter};

	if (!kernel)
		return rr_fail(RR_ERR_ARGUMENT, "the device has no kernel rr_%s_%s", rr_redop_name((rr_redop)redop),
			       rr_dtype_name((rr_dtype)pass->combine->dtype));
	this->facts.launches++;
	return RR_CUDA(this->cuda, cuLaunchKernel, kernel, blocks < this->blocks_max ? (unsigned int)blocks : this->blocks_max,
		       1, 1, RR_CUDA_BLOCK_THREADS, 1, 1, 0, this->stream, parameters, NULL);
}

static rr_status need_partial(struct rr_cuda_device *this, uint64_t bytes)
{
	rr_cuda_ptr larger = 0;
	rr_status status;

	if (bytes <= this->partial_bytes)
		return RR_OK;
	bytes = (bytes + PARTIAL_ALIGN - 1) / PARTIAL_ALIGN * PARTIAL_ALIGN;
	status = RR_CUDA(this->cuda, cuMemAlloc, &larger, bytes);
	if (status < 0)
		return status;
	if (this->partial) /* the driver frees it when all that uses it has run */
		status = RR_CUDA(this->cuda, cuMemFree, this->partial);
	this->partial = larger;
	this->facts.scratch_bytes += bytes - this->partial_bytes;
	this->partial_bytes = bytes;
	return status;
}

/* The first sources into the partial sum until so few are left that one launch takes them; *taken of them are in it. */
static rr_status add_up(struct rr_cuda_device *this, const struct pass *pass, uint32_t *taken)
{
	const struct rr_combine *combine = pass->combine;
	uint64_t element = pass->narrow ? sizeof(float) : rr_dtype_bytes((rr_dtype)combine->dtype);
	rr_status status = RR_OK;

	*taken = 0;
	if (combine->src_count > RR_CUDA_SOURCES_MAX)
		status = need_partial(this, combine->count * element);
	while (status >= 0 && combine->src_count - *taken > RR_CUDA_SOURCES_MAX - (*taken ? 1 : 0)) {
		uint32_t begun = *taken ? 1 : 0, more = RR_CUDA_SOURCES_MAX - begun;
		struct rr_cuda_combine parameter = {.count = combine->count, .factor = 1.0, .src_count = RR_CUDA_SOURCES_MAX,
						    .dst_count = 1, .flags = RR_CUDA_WIDE};
		parameter.src[0] = this->partial;
		parameter.dst[0] = this->partial;
		memcpy(parameter.src + begun, pass->src + *taken, more * sizeof(*pass->src));
		parameter.wide_sources =
			((uint32_t)(combine->wide_sources >> *taken) & ((1u << more) - 1)) << begun | begun;
		status = launch(this, pass, &parameter);
		*taken += more;
	}
	return status;
}

static rr_status run_kernels(struct rr_cuda_device *this, const struct pass *pass)
{
	const struct rr_combine *combine = pass->combine;
	uint32_t wide = combine->wide ? RR_CUDA_WIDE : 0, taken;
	rr_status status = add_up(this, pass, &taken);
	uint32_t begun = taken ? 1 : 0, left = combine->src_count - taken;

	for (uint32_t d = 0; status >= 0 && d < combine->dst_count; d += RR_CUDA_TARGETS_MAX) {
		uint32_t targets = combine->dst_count - d;
		struct rr_cuda_combine parameter = {.count = combine->count, .factor = combine->factor};

		targets = targets < RR_CUDA_TARGETS_MAX ? targets : RR_CUDA_TARGETS_MAX;
		memcpy(parameter.dst, pass->dst + d, targets * sizeof(*pass->dst));
		parameter.dst_count = targets;
		if (d == 0) {
			parameter.src[0] = this->partial;
			memcpy(parameter.src + begun, pass->src + taken, left * sizeof(*pass->src));
			parameter.src_count = begun + left;
			parameter.wide_sources = ((uint32_t)(combine->wide_sources >> taken) & ((1u << left) - 1)) << begun | begun;
			parameter.flags = wide | (combine->post ? RR_CUDA_POST : 0);
		} else { /* sources may have been overwritten: the others get a copy */
			parameter.src[0] = pass->dst[0];
			parameter.src_count = 1;
			parameter.wide_sources = wide ? 1 : 0;
			parameter.flags = wide;
		}
		status = launch(this, pass, &parameter);
	}
	return status;
}

static bool is_copy(const struct rr_combine *combine)
{
	return combine->src_count == 1 && !combine->wide && !(combine->wide_sources & 1) &&
	       !(combine->post && rr_dtype_is_float((rr_dtype)combine->dtype));
}

static rr_status run(struct rr_cuda_device *this, const struct pass *pass)
{
	const struct rr_combine *combine = pass->combine;
	uint64_t bytes = combine->count * rr_dtype_bytes((rr_dtype)combine->dtype);

	if (!is_copy(combine) || combine->dst_count != 1)
		return run_kernels(this, pass);
	if (pass->dst[0] == pass->src[0])
		return RR_OK;
	this->facts.copies++;
	this->facts.copied_bytes += bytes;
	return RR_CUDA(this->cuda, cuMemcpyAsync, pass->dst[0], pass->src[0], bytes, this->stream);
}

/* ---- the device ---- */

static rr_status translate(struct rr_cuda_device *this, struct pass *pass)
{
	const struct rr_combine *combine = pass->combine;
	rr_status status = RR_OK;

	for (uint32_t s = 0; status >= 0 && s < combine->src_count; s++)
		status = rr_cuda_pin_address(this, combine->src[s], &pass->src[s]);
	for (uint32_t d = 0; status >= 0 && d < combine->dst_count; d++)
		status = rr_cuda_pin_address(this, combine->dst[d], &pass->dst[d]);
	return status;
}

static rr_status cuda_combine(struct rr_device *device, rr_combine_fn fn, const struct rr_combine *combine,
			      rr_token *token)
{
	struct rr_cuda_device *this = self(device);
	struct pass pass;
	rr_status status;

	(void)fn; /* the CPU's */
	if (!combine->count || !combine->dst_count)
		return RR_OK;
	if (combine->src_count > RR_COMBINE_SOURCES_MAX + 1 || combine->dst_count > RR_COMBINE_TARGETS_MAX)
		return rr_fail(RR_ERR_UNSUPPORTED, "a pass of %u sources and %u destinations: at most %u and %u are served",
			       combine->src_count, combine->dst_count, RR_COMBINE_SOURCES_MAX + 1, RR_COMBINE_TARGETS_MAX);
	pass.combine = combine;
	pass.narrow = combine->dtype == RR_FLOAT16 || combine->dtype == RR_BFLOAT16;
	status = enter(this);
	if (status < 0)
		return status;
	status = translate(this, &pass);
	if (status >= 0)
		status = run(this, &pass);
	if (status >= 0)
		status = RR_CUDA(this->cuda, cuEventRecord, this->events[(this->issued + 1) % RR_CUDA_EVENTS], this->stream);
	if (status >= 0) {
		this->facts.events++;
		*token = ++this->issued;
	}
	return leave(this, status);
}

static rr_status cuda_ready(struct rr_device *device, rr_token token)
{
	struct rr_cuda_device *this = self(device);
	rr_status status;

	if (token <= rr_own64(&this->ended)) /* its results were seen to be there by whoever noted this, under the lock */
		return RR_OK;
	status = enter(this);
	if (status < 0)
		return status;
	/* Its event may be a later pass's by now: that ends later, which is soon enough. */
	uint64_t latest = this->issued - (this->issued - token) % RR_CUDA_EVENTS;
	rr_cuda_result result = this->cuda->cuEventQuery(this->events[token % RR_CUDA_EVENTS]);
	this->facts.queries++;
	if (result == RR_CUDA_ERROR_NOT_READY)
		return leave(this, RR_AGAIN);
	status = rr_cuda_check(this->cuda, "cuEventQuery", result);
	if (status >= 0 && latest > rr_own64(&this->ended))
		rr_publish64(&this->ended, latest); /* pairs with the look above */
	return leave(this, status);
}

static rr_status cuda_serves(struct rr_device *device, rr_dtype dtype, rr_redop redop)
{
	struct rr_cuda_device *this = self(device);

	redop = redop == RR_AVG ? RR_SUM : redop;
	pthread_mutex_lock(&this->lock);
	bool there = this->kernels[dtype][redop] != NULL;
	pthread_mutex_unlock(&this->lock);
	if (there)
		return RR_OK;
	rr_fail(RR_ERR_ARGUMENT, "GPU %d has no kernel rr_%s_%s", this->ordinal, rr_redop_name(redop), rr_dtype_name(dtype));
	strcpy(rr_error_here()->hint, "give it by rr_device_set_kernel() before the plan is made");
	return RR_ERR_ARGUMENT;
}

static rr_status cuda_alloc(struct rr_device *device, uint64_t bytes, void **out)
{
	struct rr_cuda_device *this = self(device);
	rr_cuda_ptr address = 0;
	rr_status status = enter(this);

	if (status < 0)
		return status;
	status = RR_CUDA(this->cuda, cuMemAlloc, &address, bytes);
	if (status < 0) { /* the GPU is full, not broken */
		status = rr_fail(RR_ERR_NO_MEMORY, "no %llu bytes of GPU %d's memory for partial sums", (unsigned long long)bytes,
				 this->ordinal);
		return leave(this, status);
	}
	this->facts.scratch_bytes += bytes;
	*out = (void *)(uintptr_t)address;
	return leave(this, RR_OK);
}

static void cuda_free(struct rr_device *device, void *address)
{
	struct rr_cuda_device *this = self(device);

	if (enter_anyway(this) < 0)
		return; /* the driver is gone, and its memory with it */
	leave(this, RR_CUDA(this->cuda, cuMemFree, (rr_cuda_ptr)(uintptr_t)address));
}

static bool cuda_settle(struct rr_device *device)
{
	struct rr_cuda_device *this = self(device);
	const struct timespec nap = {.tv_nsec = NAP_NS};
	uint64_t until_ns = rr_now_ns() + SETTLE_NS;
	rr_error error = *rr_error_here(); /* the caller's, which is about to be raised */
	rr_cuda_result result = RR_CUDA_SUCCESS;

	do {
		if (enter_anyway(this) < 0)
			break;
		result = this->cuda->cuStreamQuery(this->stream);
		leave(this, RR_OK);
		if (result != RR_CUDA_ERROR_NOT_READY)
			break;
		nanosleep(&nap, NULL);
	} while (rr_now_ns() < until_ns);
	rr_error_set(&error);
	return result != RR_CUDA_ERROR_NOT_READY;
}

static rr_status cuda_after(struct rr_device *device, void *stream)
{
	struct rr_cuda_device *this = self(device);
	rr_status status = enter(this);

	if (status < 0)
		return status;
	status = RR_CUDA(this->cuda, cuEventRecord, this->after, stream);
	if (status >= 0)
		status = RR_CUDA(this->cuda, cuStreamWaitEvent, this->stream, this->after, 0);
	return leave(this, status);
}

static rr_status cuda_set_kernel(struct rr_device *device, rr_dtype dtype, rr_redop redop, void *function)
{
	struct rr_cuda_device *this = self(device);

	pthread_mutex_lock(&this->lock);
	this->kernels[dtype][redop == RR_AVG ? RR_SUM : redop] = function;
	pthread_mutex_unlock(&this->lock);
	return RR_OK;
}

static void cuda_facts(struct rr_device *device, rr_device_facts *out)
{
	struct rr_cuda_device *this = self(device);

	pthread_mutex_lock(&this->lock);
	*out = this->facts;
	pthread_mutex_unlock(&this->lock);
}

/* What the driver still holds; an error means that the context is gone, and all of it with it. */
static void destroy(struct rr_cuda_device *this)
{
	struct rr_cuda *cuda = this->cuda;

	if (this->stream)
		cuda->cuStreamSynchronize(this->stream);
	rr_cuda_unpin_all(this);
	if (this->partial)
		cuda->cuMemFree(this->partial);
	for (uint32_t i = 0; i < RR_CUDA_EVENTS; i++)
		if (this->events[i])
			cuda->cuEventDestroy(this->events[i]);
	if (this->after)
		cuda->cuEventDestroy(this->after);
	if (this->stream)
		cuda->cuStreamDestroy(this->stream);
}

static void cuda_close(struct rr_device *device)
{
	struct rr_cuda_device *this = self(device);

	rr_pin_unwatch(&this->watch);
	rr_cuda_gdr_close(this);
	if (rr_cuda_enter(this->cuda, this->context) == RR_OK) {
		destroy(this);
		rr_cuda_leave(this->cuda);
	}
	free(this->pinned);
	rr_cuda_put(this->cuda);
	pthread_mutex_destroy(&this->lock);
	free(this);
}

static const struct rr_device_ops cuda_ops = {
	.name = "cuda",
	.kind = RR_DEVICE_CUDA,
	.combine = cuda_combine,
	.ready = cuda_ready,
	.serves = cuda_serves,
	.alloc = cuda_alloc,
	.free = cuda_free,
	.settle = cuda_settle,
	.after = cuda_after,
	.set_kernel = cuda_set_kernel,
	.facts = cuda_facts,
	.region = rr_cuda_region,
	.mark = rr_cuda_mark,
	.close = cuda_close,
};

static rr_status create(struct rr_cuda_device *this)
{
	rr_status status = RR_CUDA(this->cuda, cuStreamCreate, &this->stream, RR_CUDA_STREAM_NON_BLOCKING);

	for (uint32_t i = 0; status >= 0 && i < RR_CUDA_EVENTS; i++)
		status = RR_CUDA(this->cuda, cuEventCreate, &this->events[i], RR_CUDA_EVENT_DISABLE_TIMING);
	if (status >= 0)
		status = RR_CUDA(this->cuda, cuEventCreate, &this->after, RR_CUDA_EVENT_DISABLE_TIMING);
	rr_cuda_gdr_open(this);
	return status;
}

rr_status rr_device_open_cuda(const rr_cuda_spec *spec, rr_device **out)
{
	struct rr_cuda_device *this;
	rr_status status;

	if (!spec->cuda || !spec->context)
		return rr_fail(RR_ERR_ARGUMENT, "%s is NULL: a CUDA device needs the driver's table and a context",
			       spec->cuda ? "context" : "cuda");
	this = calloc(1, sizeof(*this));
	if (!this)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for a device");
	this->device.ops = &cuda_ops;
	rr_note32(&this->device.users, 1);
	this->cuda = spec->cuda;
	this->context = spec->context;
	this->ordinal = spec->ordinal;
	this->blocks_max = spec->blocks_max ? spec->blocks_max : BLOCKS_MAX_DEFAULT;
	this->watch.gone = rr_cuda_pin_gone;
	pthread_mutex_init(&this->lock, NULL);
	status = rr_cuda_enter(this->cuda, this->context);
	if (status < 0)
		goto free_device;
	status = create(this);
	if (status < 0)
		destroy(this);
	rr_cuda_leave(this->cuda);
	if (status < 0)
		goto free_device;
	rr_cuda_hold(this->cuda);
	rr_pin_watch(&this->watch);
	*out = &this->device;
	return RR_OK;

free_device:
	pthread_mutex_destroy(&this->lock);
	free(this);
	return status;
}
