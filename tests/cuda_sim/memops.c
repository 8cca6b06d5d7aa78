/* memops.c - stream memory operations, v2: waits on, and stores of, words of memory that a device can map. */
#include "cs.h"

#include <string.h>

#define COUNT_MAX 255

struct batch {
	struct cs_op op;
	uint32_t count;
	CUstreamBatchMemOpParams items[];
};

static bool is_satisfied(unsigned int flags, uint32_t bytes, uint64_t seen, uint64_t wanted)
{
	switch (flags & 3) {
	case CU_STREAM_WAIT_VALUE_GEQ: /* cyclic */
		return bytes == 4 ? (int32_t)((uint32_t)seen - (uint32_t)wanted) >= 0 : (int64_t)(seen - wanted) >= 0;
	case CU_STREAM_WAIT_VALUE_EQ:
		return seen == wanted;
	case CU_STREAM_WAIT_VALUE_AND:
		return seen & wanted;
	default: /* CU_STREAM_WAIT_VALUE_NOR */
		return bytes == 4 ? ~((uint32_t)seen | (uint32_t)wanted) != 0 : ~(seen | wanted) != 0;
	}
}

static void wait_for(CUdeviceptr address, uint32_t bytes, uint64_t wanted, unsigned int flags)
{
	void *word = cs_translate(address, bytes, false);
	uint64_t seen;

	if (!word)
		return;
	for (unsigned int turn = 0;; turn++) {
		seen = bytes == 4 ? atomic_load((_Atomic uint32_t *)word) : atomic_load((_Atomic uint64_t *)word);
		if (is_satisfied(flags, bytes, seen, wanted))
			break;
		if (!cs_pause(turn))
			return;
	}
	cs_race_poll(address, bytes, seen, wanted, flags);
	if (flags & CU_STREAM_WAIT_VALUE_FLUSH)
		cs_rdma_flush();
}

/* All that the stream wrote before is visible when the store is: the stores are sequentially consistent. */
static void store(CUdeviceptr address, uint32_t bytes, uint64_t value)
{
	void *word = cs_translate(address, bytes, true);

	if (!word)
		return;
	cs_race_set(address, bytes, value);
	if (bytes == 4)
		atomic_store((_Atomic uint32_t *)word, (uint32_t)value);
	else
		atomic_store((_Atomic uint64_t *)word, value);
}

static void run_batch(struct cs_op *op)
{
	struct batch *batch = (struct batch *)op;

	for (uint32_t i = 0; i < batch->count && cs_fault_now() == CUDA_SUCCESS; i++) {
		const CUstreamBatchMemOpParams *item = &batch->items[i];

		switch (item->operation) {
		case CU_STREAM_MEM_OP_WAIT_VALUE_32:
			wait_for(item->waitValue.address, 4, item->waitValue.value, item->waitValue.flags);
			break;
		case CU_STREAM_MEM_OP_WAIT_VALUE_64:
			wait_for(item->waitValue.address, 8, item->waitValue.value64, item->waitValue.flags);
			break;
		case CU_STREAM_MEM_OP_WRITE_VALUE_32:
			store(item->writeValue.address, 4, item->writeValue.value);
			break;
		case CU_STREAM_MEM_OP_WRITE_VALUE_64:
			store(item->writeValue.address, 8, item->writeValue.value64);
			break;
		case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
			cs_rdma_flush();
			break;
		default: /* a barrier: every store here is visible at once */
			break;
		}
	}
}

static const struct cs_op_kind batch_kind = { "memop", run_batch };

/* An aligned word that the device can map. */
static bool is_word(CUdeviceptr address, uint32_t bytes)
{
	bool found;

	pthread_mutex_lock(&cs_lock);
	found = address % bytes == 0 && (cs_allocation_find(address, bytes) || cs_host_find(address, bytes));
	pthread_mutex_unlock(&cs_lock);
	return found;
}

static bool has(CUdevice_attribute attribute)
{
	return cs_attribute(attribute, cs_current()->device);
}

static CUresult check_wait(const CUstreamBatchMemOpParams *item, uint32_t bytes)
{
	unsigned int flags = item->waitValue.flags;

	if (!is_word(item->waitValue.address, bytes) || (flags & ~(3u | CU_STREAM_WAIT_VALUE_FLUSH)))
		return CUDA_ERROR_INVALID_VALUE;
	if (bytes == 8 && !has(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS))
		return CUDA_ERROR_NOT_SUPPORTED;
	if ((flags & 3) == CU_STREAM_WAIT_VALUE_NOR && !has(CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR))
		return CUDA_ERROR_NOT_SUPPORTED;
	if ((flags & CU_STREAM_WAIT_VALUE_FLUSH) && !has(CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES))
		return CUDA_ERROR_NOT_SUPPORTED;
	return CUDA_SUCCESS;
}

static CUresult check_write(const CUstreamBatchMemOpParams *item, uint32_t bytes)
{
	if (!is_word(item->writeValue.address, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	if (item->writeValue.flags == CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)
		return CUDA_ERROR_NOT_SUPPORTED; /* only the first version of these calls has it */
	if (item->writeValue.flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (bytes == 8 && !has(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS))
		return CUDA_ERROR_NOT_SUPPORTED;
	return CUDA_SUCCESS;
}

static CUresult check(const CUstreamBatchMemOpParams *item)
{
	switch (item->operation) {
	case CU_STREAM_MEM_OP_WAIT_VALUE_32:
		return check_wait(item, 4);
	case CU_STREAM_MEM_OP_WAIT_VALUE_64:
		return check_wait(item, 8);
	case CU_STREAM_MEM_OP_WRITE_VALUE_32:
		return check_write(item, 4);
	case CU_STREAM_MEM_OP_WRITE_VALUE_64:
		return check_write(item, 8);
	case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
		if (!has(CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES))
			return CUDA_ERROR_NOT_SUPPORTED;
		return item->flushRemoteWrites.flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	case CU_STREAM_MEM_OP_BARRIER:
		return item->memoryBarrier.flags > 1 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

static CUresult submit(CUstream stream, const CUstreamBatchMemOpParams *items, uint32_t count)
{
	struct batch *batch;

	for (uint32_t i = 0; i < count; i++) {
		CUresult result = check(&items[i]);

		if (result != CUDA_SUCCESS)
			return result;
	}
	batch = cs_op_new(&batch_kind, sizeof(*batch) + count * sizeof(*items));
	if (!batch)
		return CUDA_ERROR_OUT_OF_MEMORY;
	batch->count = count;
	memcpy(batch->items, items, count * sizeof(*items));
	return cs_submit(stream, batch);
}

static CUresult submit_wait(CUstream stream, CUstreamBatchMemOpType type, CUdeviceptr address, uint64_t value,
			    unsigned int flags)
{
	CUstreamBatchMemOpParams item = { .waitValue = { .operation = type, .address = address, .flags = flags } };

	item.waitValue.value64 = value;
	return submit(stream, &item, 1);
}

static CUresult submit_write(CUstream stream, CUstreamBatchMemOpType type, CUdeviceptr address, uint64_t value,
			     unsigned int flags)
{
	CUstreamBatchMemOpParams item = { .writeValue = { .operation = type, .address = address, .flags = flags } };

	item.writeValue.value64 = value;
	return submit(stream, &item, 1);
}

CS_API(cuStreamWaitValue32, 11070)(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags)
{
	CS_ENTER(CS_NEED_CONTEXT);
	return submit_wait(stream, CU_STREAM_MEM_OP_WAIT_VALUE_32, address, value, flags);
}

CS_API(cuStreamWaitValue64, 11070)(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags)
{
	CS_ENTER(CS_NEED_CONTEXT);
	return submit_wait(stream, CU_STREAM_MEM_OP_WAIT_VALUE_64, address, value, flags);
}

CS_API(cuStreamWriteValue32, 11070)(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags)
{
	CS_ENTER(CS_NEED_CONTEXT);
	return submit_write(stream, CU_STREAM_MEM_OP_WRITE_VALUE_32, address, value, flags);
}

CS_API(cuStreamWriteValue64, 11070)(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags)
{
	CS_ENTER(CS_NEED_CONTEXT);
	return submit_write(stream, CU_STREAM_MEM_OP_WRITE_VALUE_64, address, value, flags);
}

CS_API(cuStreamBatchMemOp, 11070)(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *items,
				  unsigned int flags)
{
	CS_ENTER(CS_NEED_CONTEXT);
	if (!items || !count || count > COUNT_MAX || flags)
		return CUDA_ERROR_INVALID_VALUE;
	return submit(stream, items, count);
}
