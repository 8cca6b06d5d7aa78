/* cuda_stream.c - the enqueue executor's operations as driver calls; see cuda_stream.h. */
#include "cuda_stream.h"

#include <stdlib.h>
#include <string.h>

#include "cuda_kernel_abi.h"
#include "status.h"

#define ACCESS_BYTES 16u /* of a thread of a kernel at a time */

static struct rr_cuda_streams *self(struct rr_stream_device *device)
{
	return (struct rr_cuda_streams *)device;
}

static rr_cuda_ptr address_of(const void *pointer)
{
	return (rr_cuda_ptr)(uintptr_t)pointer;
}

static rr_status cuda_wait_flags(struct rr_stream_device *device, uint32_t stream, uint32_t *const *flags, uint32_t count)
{
	struct rr_cuda_streams *this = self(device);
	union rr_cuda_mem_op ops[2 * RR_COMBINE_SOURCES_MAX];

	if (count > RR_COMBINE_SOURCES_MAX)
		return rr_fail(RR_ERR_UNSUPPORTED, "a wait for %u flags; accepted are %u", count, RR_COMBINE_SOURCES_MAX);
	memset(ops, 0, 2 * count * sizeof(*ops));
	for (uint32_t i = 0; i < count; i++) {
		ops[i].word.kind = RR_CUDA_MEM_OP_WAIT_32;
		ops[i].word.address = address_of(flags[i]);
		ops[i].word.value = 1;
		ops[i].word.flags = RR_CUDA_WAIT_VALUE_EQ;
		ops[count + i].word.kind = RR_CUDA_MEM_OP_WRITE_32;
		ops[count + i].word.address = address_of(flags[i]);
		ops[count + i].word.flags = RR_CUDA_WRITE_VALUE_DEFAULT;
	}
	this->calls++;
	return RR_CUDA(this->cuda, cuStreamBatchMemOp, this->streams[stream], 2 * count, ops, 0);
}

static rr_status cuda_set_flag(struct rr_stream_device *device, uint32_t stream, uint32_t *flag)
{
	struct rr_cuda_streams *this = self(device);

	this->calls++;
	if (this->one)
		return RR_CUDA(this->cuda, cuMemcpyAsync, address_of(flag), this->one, sizeof(*flag), this->streams[stream]);
	return RR_CUDA(this->cuda, cuStreamWriteValue32, this->streams[stream], address_of(flag), 1, RR_CUDA_WRITE_VALUE_DEFAULT);
}

static rr_status cuda_copy(struct rr_stream_device *device, uint32_t stream, void *to, const void *from, uint64_t bytes)
{
	struct rr_cuda_streams *this = self(device);

	this->calls++;
	return RR_CUDA(this->cuda, cuMemcpyAsync, address_of(to), address_of(from), bytes, this->streams[stream]);
}

static rr_status cuda_combine(struct rr_stream_device *device, uint32_t stream, rr_combine_fn pass,
			      const struct rr_combine *combine)
{
	struct rr_cuda_streams *this = self(device);
	uint64_t per_block = (uint64_t)RR_CUDA_BLOCK_THREADS * ACCESS_BYTES;
	uint64_t blocks = (combine->count * this->element_bytes + per_block - 1) / per_block;
	struct rr_cuda_combine parameter = {.count = combine->count, .factor = combine->factor, .src_count = combine->src_count,
					    .dst_count = combine->dst_count, .wide_sources = (uint32_t)combine->wide_sources};
	void *parameters[] = {&parameter};

	(void)pass; /* the CPU's */
	if (!this->kernel || combine->src_count > RR_CUDA_SOURCES_MAX || combine->dst_count > RR_CUDA_TARGETS_MAX)
		return rr_fail(RR_ERR_UNSUPPORTED, "a pass over %u vectors: accepted are %u, and a kernel is needed",
			       combine->src_count, RR_CUDA_SOURCES_MAX);
	if (!combine->count)
		return RR_OK;
	parameter.flags = (combine->post ? RR_CUDA_POST : 0) | (combine->wide ? RR_CUDA_WIDE : 0);
	for (uint32_t i = 0; i < combine->src_count; i++)
		parameter.src[i] = address_of(combine->src[i]);
	for (uint32_t i = 0; i < combine->dst_count; i++)
		parameter.dst[i] = address_of(combine->dst[i]);
	blocks = blocks < this->blocks_max ? blocks : this->blocks_max;
	this->calls++;
	return RR_CUDA(this->cuda, cuLaunchKernel, this->kernel, (unsigned)blocks, 1, 1, RR_CUDA_BLOCK_THREADS, 1, 1, 0,
		       this->streams[stream], parameters, NULL);
}

static rr_status cuda_record(struct rr_stream_device *device, uint32_t stream, uint32_t event)
{
	struct rr_cuda_streams *this = self(device);

	this->calls++;
	return RR_CUDA(this->cuda, cuEventRecord, this->events[event], this->streams[stream]);
}

static rr_status cuda_wait_event(struct rr_stream_device *device, uint32_t stream, uint32_t event)
{
	struct rr_cuda_streams *this = self(device);

	this->calls++;
	return RR_CUDA(this->cuda, cuStreamWaitEvent, this->streams[stream], this->events[event], 0);
}

static const struct rr_stream_device_ops cuda_ops = {
	.name = "cuda",
	.wait_flags = cuda_wait_flags,
	.set_flag = cuda_set_flag,
	.copy = cuda_copy,
	.combine = cuda_combine,
	.record = cuda_record,
	.wait_event = cuda_wait_event,
};

void rr_cuda_streams_close(struct rr_cuda_streams *this)
{
	for (uint32_t i = 0; this->events && i < this->event_count; i++)
		if (this->events[i])
			(void)this->cuda->cuEventDestroy(this->events[i]);
	for (uint32_t i = 0; this->streams && i < this->stream_count; i++)
		if (this->streams[i])
			(void)this->cuda->cuStreamDestroy(this->streams[i]);
	free(this->events);
	free(this->streams);
	this->events = NULL;
	this->streams = NULL;
}

rr_status rr_cuda_streams_open(struct rr_cuda_streams *this, const struct rr_cuda *cuda, uint32_t stream_count,
			       uint32_t event_count)
{
	rr_status status = RR_OK;

	*this = (struct rr_cuda_streams){.device = {&cuda_ops}, .cuda = cuda, .stream_count = stream_count,
					 .event_count = event_count};
	if (!cuda->cuStreamBatchMemOp || !cuda->cuStreamWriteValue32)
		return rr_fail(RR_ERR_UNSUPPORTED, "this driver has no memory operations on streams (cuStreamBatchMemOp)");
	this->streams = calloc(stream_count, sizeof(*this->streams));
	this->events = calloc(event_count, sizeof(*this->events));
	if (!this->streams || !this->events)
		status = rr_fail(RR_ERR_NO_MEMORY, "no memory for %u streams and %u events", stream_count, event_count);
	for (uint32_t i = 0; i < stream_count && status == RR_OK; i++)
		status = RR_CUDA(cuda, cuStreamCreate, &this->streams[i], RR_CUDA_STREAM_NON_BLOCKING);
	for (uint32_t i = 0; i < event_count && status == RR_OK; i++)
		status = RR_CUDA(cuda, cuEventCreate, &this->events[i], RR_CUDA_EVENT_DISABLE_TIMING);
	if (status < 0)
		rr_cuda_streams_close(this);
	return status;
}

rr_status rr_cuda_streams_need(struct rr_cuda_streams *this, uint32_t event_count)
{
	rr_status status = RR_OK;
	void **more;

	if (event_count <= this->event_count)
		return RR_OK;
	more = realloc(this->events, event_count * sizeof(*more));
	if (!more)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for %u events", event_count);
	this->events = more;
	while (this->event_count < event_count && status == RR_OK) {
		status = RR_CUDA(this->cuda, cuEventCreate, &more[this->event_count], RR_CUDA_EVENT_DISABLE_TIMING);
		this->event_count += status == RR_OK ? 1 : 0;
	}
	return status;
}
