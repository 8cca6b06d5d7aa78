/* pool.c - memory in stream order, from each device's one pool: memory that legacy IPC cannot share. */
#include "cs.h"

/* What CUmemoryPool points to. */
struct CUmemPoolHandle_st {
	int device;
};

struct free_op {
	struct cs_op op;
	CUdeviceptr address;
};

static struct CUmemPoolHandle_st pools[CS_DEVICES_MAX];

static void run_free(struct cs_op *op)
{
	struct free_op *free_op = (struct free_op *)op;

	if (cs_release(free_op->address) != CUDA_SUCCESS)
		cs_fault(CUDA_ERROR_ILLEGAL_ADDRESS, "cuMemFreeAsync(0x%llx): it was freed before", free_op->address);
}

static const struct cs_op_kind free_kind = { "free", run_free };

static CUresult pool_of(CUmemoryPool *pool, CUdevice device)
{
	if (!pool)
		return CUDA_ERROR_INVALID_VALUE;
	if (!cs_device_exists(device))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!cs_attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, device))
		return CUDA_ERROR_NOT_SUPPORTED;
	pools[device].device = device;
	*pool = &pools[device];
	return CUDA_SUCCESS;
}

CS_API(cuDeviceGetDefaultMemPool, 11020)(CUmemoryPool *pool, CUdevice device)
{
	CS_ENTER(CS_NEED_INIT);
	return pool_of(pool, device);
}

CS_API(cuDeviceGetMemPool, 11020)(CUmemoryPool *pool, CUdevice device)
{
	CS_ENTER(CS_NEED_INIT);
	return pool_of(pool, device);
}

/* The address is valid at once; work on it is in order on this stream, or is ordered after it. */
static CUresult allocate(CUdeviceptr *address, size_t bytes, int device, CUstream handle)
{
	CUresult result = CUDA_SUCCESS;
	struct CUstream_st *stream;

	if (!cs_attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, device))
		return CUDA_ERROR_NOT_SUPPORTED;
	pthread_mutex_lock(&cs_lock);
	stream = cs_stream_of(handle);
	if (!stream)
		result = CUDA_ERROR_INVALID_HANDLE;
	else if (stream->capture)
		result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; /* allocation nodes are not simulated */
	pthread_mutex_unlock(&cs_lock);
	return result == CUDA_SUCCESS ? cs_allocate(device, bytes, true, address) : result;
}

CS_API(cuMemAllocAsync, 11020)(CUdeviceptr *address, size_t bytes, CUstream stream)
{
	CS_ENTER(CS_NEED_CONTEXT);
	return allocate(address, bytes, cs_current()->device, stream);
}

CS_API(cuMemAllocFromPoolAsync, 11020)(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	CS_ENTER(CS_NEED_CONTEXT);
	if (pool < pools || pool >= pools + CS_DEVICES_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	return allocate(address, bytes, pool->device, stream);
}

CS_API(cuMemFreeAsync, 11020)(CUdeviceptr address, CUstream stream)
{
	struct cs_allocation *allocation;
	struct free_op *op;
	bool valid;

	CS_ENTER(CS_NEED_CONTEXT);
	if (!address)
		return CUDA_SUCCESS;
	pthread_mutex_lock(&cs_lock);
	allocation = cs_allocation_find(address, 1);
	valid = allocation && allocation->begin == address && !allocation->block->imported;
	pthread_mutex_unlock(&cs_lock);
	if (!valid)
		return CUDA_ERROR_INVALID_VALUE;
	op = cs_op_new(&free_kind, sizeof(*op));
	if (!op)
		return CUDA_ERROR_OUT_OF_MEMORY;
	op->address = address;
	return cs_submit(stream, op);
}
