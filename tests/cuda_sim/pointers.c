/* pointers.c - what the driver tells of an address. */
#include "cs.h"

#include <string.h>

/* What an address is: memory of a device, pinned host memory, or neither. Locked. */
struct meaning {
	struct cs_allocation *allocation;
	struct cs_host_range *range;
};

static struct meaning meaning_of(CUdeviceptr address)
{
	struct meaning meaning = { cs_allocation_find(address, 1), NULL };

	if (!meaning.allocation)
		meaning.range = cs_host_find(address, 1);
	return meaning;
}

bool cs_ipc_capable(const struct cs_allocation *allocation)
{
	return !allocation->pool && !allocation->block->imported && !cs_settings.mig;
}

static CUresult put_bool(void *value, bool truth)
{
	*(unsigned char *)value = truth; /* the header documents a bool for these */
	return CUDA_SUCCESS;
}

static CUresult put_u64(void *value, uint64_t number)
{
	memcpy(value, &number, sizeof(number));
	return CUDA_SUCCESS;
}

static CUresult put_int(void *value, int number)
{
	memcpy(value, &number, sizeof(number));
	return CUDA_SUCCESS;
}

static CUresult get(void *value, CUpointer_attribute attribute, CUdeviceptr address, struct meaning m)
{
	struct CUctx_st *context = m.allocation ? m.allocation->context : m.range->context;

	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		memcpy(value, &context, sizeof(context));
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		return put_int(value, m.allocation ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST);
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		return put_u64(value, address);
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		return m.range ? put_u64(value, address) : CUDA_ERROR_INVALID_VALUE;
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		return put_bool(value, m.allocation && m.allocation->sync_memops);
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		return put_u64(value, m.allocation ? m.allocation->id : m.range->id);
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		return put_bool(value, false);
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		return put_int(value, m.allocation && m.allocation->block->device >= 0 ? m.allocation->block->device :
											 context->device);
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		return put_bool(value, m.allocation && cs_ipc_capable(m.allocation));
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		return put_u64(value, m.allocation ? m.allocation->begin : m.range->begin);
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		return put_u64(value, m.allocation ? m.allocation->bytes : m.range->bytes);
	case CU_POINTER_ATTRIBUTE_MAPPED:
		return put_bool(value, true);
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		return put_u64(value, 0);
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
		return put_bool(value, m.allocation && !m.allocation->block->imported &&
					       cs_attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, context->device));
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		return put_u64(value, 0);
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

CS_API(cuPointerGetAttribute, 4000)(void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
	struct meaning meaning;
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	CS_ENTER(CS_NEED_CONTEXT);
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&cs_lock);
	meaning = meaning_of(address);
	if (meaning.allocation || meaning.range)
		result = get(value, attribute, address, meaning);
	pthread_mutex_unlock(&cs_lock);
	return result;
}

/* Unlike the call for one attribute, this one succeeds for ordinary host memory: values that say nothing. */
static void get_nothing(void *value, CUpointer_attribute attribute)
{
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		put_int(value, -2);
		break;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		put_int(value, 0);
		break;
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
	case CU_POINTER_ATTRIBUTE_MAPPED:
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
		put_bool(value, false);
		break;
	default:
		put_u64(value, 0);
	}
}

CS_API(cuPointerGetAttributes, 7000)(unsigned int count, CUpointer_attribute *attributes, void **values,
				     CUdeviceptr address)
{
	struct meaning meaning;

	CS_ENTER(CS_NEED_CONTEXT);
	if (!count || !attributes || !values)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&cs_lock);
	meaning = meaning_of(address);
	for (unsigned int i = 0; i < count; i++)
		if ((!meaning.allocation && !meaning.range) ||
		    get(values[i], attributes[i], address, meaning) != CUDA_SUCCESS)
			get_nothing(values[i], attributes[i]);
	pthread_mutex_unlock(&cs_lock);
	return CUDA_SUCCESS;
}

CS_API(cuPointerSetAttribute, 6000)(const void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
	struct cs_allocation *allocation;
	CUresult result = CUDA_SUCCESS;

	CS_ENTER(CS_NEED_CONTEXT);
	if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&cs_lock);
	allocation = cs_allocation_find(address, 1);
	if (!allocation || allocation->block->imported)
		result = CUDA_ERROR_INVALID_VALUE;
	else if (allocation->pool)
		result = CUDA_ERROR_NOT_SUPPORTED;
	else
		allocation->sync_memops = *(const unsigned char *)value;
	pthread_mutex_unlock(&cs_lock);
	return result;
}
