/* device_cuda_gdr.c - what a CUDA device does for NICs that reach its memory; see gdr.h and device_cuda.h. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "device_cuda.h"
#include "status.h"

static struct rr_cuda_device *device_of(struct rr_gdr_owner *owner)
{
	return (struct rr_cuda_device *)(void *)((char *)owner - offsetof(struct rr_cuda_device, gdr));
}

/* An error of the driver is the caller's here; the device itself has lost nothing. */
static rr_status enter(struct rr_cuda_device *this)
{
	pthread_mutex_lock(&this->lock);
	rr_status status = this->failed ? rr_error_set(&this->failure) : rr_cuda_enter(this->cuda, this->context);
	if (status < 0)
		pthread_mutex_unlock(&this->lock);
	return status;
}

static void leave(struct rr_cuda_device *this)
{
	rr_cuda_leave(this->cuda);
	pthread_mutex_unlock(&this->lock);
}

/* ---- for links ---- */

static rr_status dma_buf(struct rr_gdr_owner *owner, uint64_t begin, uint64_t bytes, int *fd)
{
	struct rr_cuda_device *this = device_of(owner);
	rr_status status;
	int handle = -1;

	if (!this->cuda->cuMemGetHandleForAddressRange)
		return rr_fail(RR_ERR_UNSUPPORTED, "the driver has no cuMemGetHandleForAddressRange (CUDA 11.7)");
	if (!this->dma_buf)
		return rr_fail(RR_ERR_UNSUPPORTED, "GPU %d's driver has none (open kernel modules, Linux 5.12)", this->ordinal);
	status = enter(this);
	if (status < 0)
		return status;
	status = RR_CUDA(this->cuda, cuMemGetHandleForAddressRange, &handle, begin, bytes, RR_CUDA_HANDLE_DMA_BUF_FD, 0);
	leave(this);
	if (status >= 0)
		*fd = handle;
	return status;
}

static rr_status flush(struct rr_gdr_owner *owner)
{
	struct rr_cuda_device *this = device_of(owner);
	rr_status status = enter(this);

	if (status < 0)
		return status;
	status = RR_CUDA(this->cuda, cuFlushGPUDirectRDMAWrites, RR_CUDA_FLUSH_TARGET_CONTEXT, RR_CUDA_FLUSH_TO_OWNER);
	leave(this);
	return status;
}

static const struct rr_gdr_owner_ops owner_ops = {.dma_buf = dma_buf, .flush = flush};

/* ---- for the communicator ---- */

static int attribute(struct rr_cuda_device *this, int which, int device)
{
	int value = 0;

	if (this->cuda->cuDeviceGetAttribute(&value, which, device) != RR_CUDA_SUCCESS)
		return 0; /* an older driver, which knows nothing of it */
	return value;
}

void rr_cuda_gdr_open(struct rr_cuda_device *this)
{
	struct rr_cuda *cuda = this->cuda;
	int device = 0;

	this->gdr.ops = &owner_ops;
	this->gdr_there = cuda->cuMemGetAddressRange && cuda->cuPointerGetAttribute && cuda->cuDeviceGetAttribute &&
			  cuda->cuCtxGetDevice && cuda->cuCtxGetDevice(&device) == RR_CUDA_SUCCESS;
	if (!this->gdr_there)
		return;
	this->dma_buf = attribute(this, RR_CUDA_DMA_BUF_SUPPORTED, device) != 0;
	this->gdr.flush = rr_gdr_flush_choose(attribute(this, RR_CUDA_RDMA_ORDERING, device),
					      attribute(this, RR_CUDA_RDMA_FLUSH_OPTIONS, device),
					      cuda->cuFlushGPUDirectRDMAWrites != NULL);
}

void rr_cuda_gdr_close(struct rr_cuda_device *this)
{
	rr_gdr_sweep(&this->gdr, NULL);
}

/* Under the device's lock, with the context current. */
static bool lives(struct rr_gdr_owner *owner, const struct rr_gdr_region *region)
{
	unsigned long long now = 0;

	return device_of(owner)->cuda->cuPointerGetAttribute(&now, RR_CUDA_BUFFER_ID, region->begin) == RR_CUDA_SUCCESS &&
	       now == region->allocation;
}

/* Likewise. The allocation around an address, met for the first time. */
static rr_status note(struct rr_cuda_device *this, rr_cuda_ptr address, uint64_t allocation, struct rr_gdr_region *out)
{
	struct rr_cuda *cuda = this->cuda;
	unsigned int capable = 0, on = 1;
	rr_cuda_ptr begin = 0;
	size_t bytes = 0;
	rr_status status = RR_CUDA(cuda, cuMemGetAddressRange, &begin, &bytes, address);

	if (status < 0)
		return status;
	*out = (struct rr_gdr_region){.allocation = allocation, .begin = begin, .bytes = bytes, .owner = &this->gdr};
	rr_cuda_result result = cuda->cuPointerGetAttribute(&capable, RR_CUDA_RDMA_CAPABLE, address);
	if (result != RR_CUDA_SUCCESS || !capable)
		snprintf(out->refusal, sizeof(out->refusal),
			 "GPU %d's driver says that this memory is not capable of GPUDirect RDMA (its model, or how it was allocated)",
			 this->ordinal);
	else if (cuda->cuPointerSetAttribute) /* copies that promise to be synchronous are so beside a NIC, too; a refusal changes nothing */
		(void)cuda->cuPointerSetAttribute(&on, RR_CUDA_SYNC_MEMOPS, begin);
	rr_gdr_sweep(&this->gdr, lives);
	return rr_gdr_note(out);
}

rr_status rr_cuda_region(struct rr_device *device, const void *address, uint64_t bytes, struct rr_gdr_region *out)
{
	struct rr_cuda_device *this = (struct rr_cuda_device *)device;
	rr_cuda_ptr at = (rr_cuda_ptr)(uintptr_t)address;
	unsigned long long allocation = 0;
	rr_status status;

	out->id = 0;
	if (!this->gdr_there || !bytes)
		return RR_OK;
	status = enter(this);
	if (status < 0)
		return status;
	if (this->cuda->cuPointerGetAttribute(&allocation, RR_CUDA_BUFFER_ID, at) == RR_CUDA_SUCCESS &&
	    !rr_gdr_known(&this->gdr, allocation, out) && note(this, at, allocation, out) < 0)
		out->id = 0; /* memory of a kind that the driver does not tell of: through slots */
	leave(this);
	if (out->id && (at - out->begin > out->bytes || bytes > out->bytes - (at - out->begin)))
		out->id = 0; /* it spans several allocations */
	return RR_OK;
}

rr_status rr_cuda_mark(struct rr_device *device, rr_token *token)
{
	struct rr_cuda_device *this = (struct rr_cuda_device *)device;
	rr_status status = enter(this);

	if (status < 0)
		return status;
	status = RR_CUDA(this->cuda, cuEventRecord, this->events[(this->issued + 1) % RR_CUDA_EVENTS], this->stream);
	if (status >= 0) {
		this->facts.events++;
		*token = ++this->issued;
	}
	leave(this);
	return status;
}
