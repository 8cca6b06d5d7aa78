/*
 * rdma.c - GPU memory as an adapter sees it: dma-buf descriptors, and writes that are visible only after a flush.
 *
 * The descriptor is the block's memfd, opened anew and positioned where the range begins: a simulated adapter maps
 * it from lseek(fd, 0, SEEK_CUR) on, and shares the memory with the device. An adapter that goes by addresses
 * (peer memory) uses cs_rdma_write and cs_rdma_read; where GPU_DIRECT_RDMA_WRITES_ORDERING is below OWNER such a
 * write stays unseen until cuFlushGPUDirectRDMAWrites, a flush on a stream, or an RDMA READ; or, with RDMA_LATE_US, until it
 * lands by itself after up to so long, by seed. RDMA_LATE=1: that is so whatever the attribute says.
 */
#define _GNU_SOURCE
#include "cs.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A write that is not seen yet. */
struct late_write {
	CUdeviceptr address;
	size_t bytes;
	uint64_t due_ns; /* UINT64_MAX: not by itself */
	struct late_write *next;
	char data[];
};

static struct late_write *late, **last = &late; /* under cs_lock */

/* Where a whole range is in this process; NULL: no such memory. Locked. */
static char *memory_at(CUdeviceptr address, size_t bytes)
{
	const struct cs_allocation *allocation = cs_allocation_find(address, bytes);

	return allocation ? allocation->block->host + (address - allocation->block->begin) : NULL;
}

/* The writes that are due by now, in their order. */
static void land(uint64_t now_ns)
{
	struct late_write **at = &late, *write;

	pthread_mutex_lock(&cs_lock);
	while ((write = *at)) {
		char *to = write->due_ns <= now_ns ? memory_at(write->address, write->bytes) : NULL;

		if (write->due_ns > now_ns) {
			at = &write->next;
			continue;
		}
		if (to)
			memcpy(to, write->data, write->bytes);
		*at = write->next;
		free(write);
	}
	last = at;
	pthread_mutex_unlock(&cs_lock);
}

void cs_rdma_flush(void)
{
	land(UINT64_MAX);
	cs_race_rdma("flush");
}

void cs_rdma_settle(void)
{
	if (__atomic_load_n(&late, __ATOMIC_RELAXED))
		land(cs_now_ns());
}

static bool is_late(int device)
{
	return cs_setting_number("RDMA_LATE", 0) ||
	       cs_attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, device) < CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER;
}

/* When a write is seen that nobody flushes. Locked. */
static uint64_t due_ns(void)
{
	static uint64_t random;
	uint64_t most = cs_setting_number("RDMA_LATE_US", 0);

	if (!most)
		return UINT64_MAX;
	random = (random ? random : cs_settings.seed) * 6364136223846793005u + 1442695040888963407u;
	return cs_now_ns() + (random >> 33) % most * 1000;
}

CS_EXPORT bool cs_rdma_write(CUdeviceptr address, const void *data, size_t bytes)
{
	const struct cs_allocation *allocation;
	struct late_write *write = NULL;
	char *to;

	pthread_mutex_lock(&cs_lock);
	allocation = cs_allocation_find(address, bytes);
	to = memory_at(address, bytes);
	if (allocation && !is_late(allocation->context->device)) {
		memcpy(to, data, bytes);
	} else if (allocation) {
		write = malloc(sizeof(*write) + bytes);
		if (!write)
			abort();
		*write = (struct late_write){ .address = address, .bytes = bytes, .due_ns = due_ns() };
		memcpy(write->data, data, bytes);
		*last = write;
		last = &write->next;
	}
	pthread_mutex_unlock(&cs_lock);
	if (allocation)
		cs_race_adapter(true, address, bytes, !write);
	return allocation;
}

CS_EXPORT bool cs_rdma_read(CUdeviceptr address, void *data, size_t bytes)
{
	char *from;

	land(UINT64_MAX);
	cs_race_adapter(false, address, bytes, true);
	pthread_mutex_lock(&cs_lock);
	from = memory_at(address, bytes);
	if (from)
		memcpy(data, from, bytes);
	pthread_mutex_unlock(&cs_lock);
	return from;
}

CS_EXPORT bool cs_rdma_holds(CUdeviceptr address, size_t bytes)
{
	bool holds;

	pthread_mutex_lock(&cs_lock);
	holds = memory_at(address, bytes);
	pthread_mutex_unlock(&cs_lock);
	return holds;
}

CS_EXPORT bool cs_rdma_of_descriptor(int fd, CUdeviceptr *address)
{
	const struct cs_block *block;
	struct stat info;
	off_t offset = lseek(fd, 0, SEEK_CUR);

	if (offset < 0 || fstat(fd, &info) < 0)
		return false;
	pthread_mutex_lock(&cs_lock);
	block = cs_block_of(info.st_ino);
	if (block)
		*address = block->begin + (CUdeviceptr)offset;
	pthread_mutex_unlock(&cs_lock);
	return block;
}

CS_API(cuFlushGPUDirectRDMAWrites, 11030)(CUflushGPUDirectRDMAWritesTarget target,
					  CUflushGPUDirectRDMAWritesScope scope)
{
	CS_ENTER(CS_NEED_CONTEXT);
	if (target != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX ||
	    (scope != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER && scope != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES))
		return CUDA_ERROR_INVALID_VALUE;
	if (!(cs_attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, cs_current()->device) &
	      CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST))
		return CUDA_ERROR_NOT_SUPPORTED;
	cs_rdma_flush();
	return CUDA_SUCCESS;
}

/* A descriptor of its own for the range; -1: it is not wholly in a block of ours. Locked. */
static int descriptor_of(CUdeviceptr address, size_t bytes)
{
	const struct cs_allocation *allocation = cs_allocation_find(address, 1);
	const struct cs_block *block = allocation ? allocation->block : NULL;
	char path[32];
	int fd;

	if (!block || block->imported || allocation->pool || bytes > block->begin + block->bytes - address)
		return -1;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", block->fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd >= 0)
		lseek(fd, address - block->begin, SEEK_SET);
	return fd;
}

CS_API(cuMemGetHandleForAddressRange, 11070)(void *handle, CUdeviceptr address, size_t bytes, CUmemRangeHandleType type,
					     unsigned long long flags)
{
	int fd;

	CS_ENTER(CS_NEED_CONTEXT);
	if (!handle || !bytes || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || address % CS_PAGE_BYTES ||
	    bytes % CS_PAGE_BYTES)
		return CUDA_ERROR_INVALID_VALUE;
	if (flags || !cs_attribute(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, cs_current()->device))
		return CUDA_ERROR_NOT_SUPPORTED;
	pthread_mutex_lock(&cs_lock);
	fd = descriptor_of(address, bytes);
	pthread_mutex_unlock(&cs_lock);
	if (fd < 0)
		return CUDA_ERROR_INVALID_VALUE;
	*(int *)handle = fd;
	return CUDA_SUCCESS;
}
