/* memory.c - device memory: blocks of 2 MiB in memfds, allocations in them, and their translation. */
#define _GNU_SOURCE
#include "cs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define POISON 0xA5 /* fresh memory holds this, so that reading it before writing shows */

static CUdeviceptr arena;
static struct cs_block *blocks;           /* by address */
static struct cs_allocation *allocations; /* in no order */
static uint64_t last_id;
static size_t used_bytes[CS_DEVICES_MAX];

static size_t round_up(size_t bytes, size_t step)
{
	return (bytes + step - 1) / step * step;
}

CUresult cs_memory_begin(void)
{
	void *space = mmap(NULL, CS_ARENA_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (space == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	arena = round_up((CUdeviceptr)space, CS_BLOCK_BYTES);
	return CUDA_SUCCESS;
}

bool cs_in_arena(CUdeviceptr address)
{
	return arena && address >= arena && address < arena + CS_ARENA_BYTES - CS_BLOCK_BYTES;
}

struct cs_allocation *cs_allocation_find(CUdeviceptr address, size_t bytes)
{
	for (struct cs_allocation *a = allocations; a; a = a->next)
		if (address >= a->begin && address - a->begin < a->bytes && bytes <= a->bytes - (address - a->begin))
			return a;
	return NULL;
}

struct cs_allocation *cs_allocations(void)
{
	return allocations;
}

void cs_allocation_insert(struct cs_allocation *allocation)
{
	allocation->id = ++last_id;
	allocation->next = allocations;
	allocations = allocation;
}

void cs_allocation_remove(struct cs_allocation *allocation)
{
	struct cs_allocation **link = &allocations;

	while (*link != allocation)
		link = &(*link)->next;
	*link = allocation->next;
	free(allocation);
}

/* Blocks stand apart by 2 MiB at least, so that running over an end faults. Where a gap fits, addresses come again. */
static struct cs_block **place_for(size_t bytes, CUdeviceptr *begin)
{
	struct cs_block **link = &blocks;

	*begin = arena + CS_BLOCK_BYTES;
	while (*link && (*link)->begin < *begin + bytes + CS_BLOCK_BYTES) {
		*begin = (*link)->begin + (*link)->bytes + CS_BLOCK_BYTES;
		link = &(*link)->next;
	}
	return link;
}

struct cs_block *cs_block_map(int fd, size_t bytes, int device, bool imported)
{
	struct cs_block *block = calloc(1, sizeof(*block));
	struct cs_block **link;
	struct stat status;

	if (!block || fstat(fd, &status))
		goto close_fd;
	block->host = mmap(NULL, bytes + CS_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (block->host == MAP_FAILED)
		goto close_fd;
	link = place_for(bytes, &block->begin);
	if (!cs_in_arena(block->begin + bytes))
		goto unmap;
	block->bytes = bytes;
	block->fd = fd;
	block->inode = status.st_ino;
	block->device = device;
	block->imported = imported;
	block->shared = (struct cs_shared *)(block->host + bytes);
	block->next = *link;
	*link = block;
	return block;
unmap:
	munmap(block->host, bytes + CS_PAGE_BYTES);
close_fd:
	free(block);
	close(fd);
	return NULL;
}

void cs_block_unmap(struct cs_block *block)
{
	struct cs_block **link = &blocks;

	while (*link != block)
		link = &(*link)->next;
	*link = block->next;
	if (!block->imported)
		used_bytes[block->device] -= block->bytes;
	munmap(block->host, block->bytes + CS_PAGE_BYTES);
	close(block->fd);
	free(block);
}

struct cs_block *cs_block_of(uint64_t inode)
{
	struct cs_block *block = blocks;

	while (block && block->inode != inode)
		block = block->next;
	return block;
}

static struct cs_block *block_new(int device, size_t bytes)
{
	struct cs_block *block;
	int fd;

	if (used_bytes[device] + bytes > cs_settings.memory_bytes)
		return NULL;
	fd = memfd_create("cuda_sim", MFD_CLOEXEC);
	if (fd < 0)
		return NULL;
	if (ftruncate(fd, bytes + CS_PAGE_BYTES)) {
		close(fd);
		return NULL;
	}
	block = cs_block_map(fd, bytes, device, false);
	if (block)
		used_bytes[device] += bytes;
	return block;
}

/* The first free place of a block for a small allocation; 0: none. Steps are few: at most 4096 in a block. */
static CUdeviceptr place_in(const struct cs_block *block, size_t bytes)
{
	CUdeviceptr begin = block->begin;
	bool moved = true;

	while (moved) {
		moved = false;
		for (const struct cs_allocation *a = allocations; a; a = a->next) {
			if (a->block != block || a->begin + a->bytes <= begin || a->begin >= begin + bytes)
				continue;
			begin = round_up(a->begin + a->bytes, CS_STEP_BYTES);
			moved = true;
		}
	}
	return begin + bytes <= block->begin + block->bytes ? begin : 0;
}

/* A place for an allocation: in a block that small ones share, or in a block of its own. Locked. */
static struct cs_block *place_new(int device, size_t bytes, bool pool, CUdeviceptr *begin)
{
	struct cs_block *block;

	for (const struct cs_allocation *a = allocations; bytes < CS_BLOCK_BYTES && a; a = a->next) {
		if (a->block->device != device || a->block->imported || a->pool != pool || a->bytes >= CS_BLOCK_BYTES)
			continue;
		*begin = place_in(a->block, bytes);
		if (*begin)
			return a->block;
	}
	block = block_new(device, round_up(bytes, CS_BLOCK_BYTES));
	if (block)
		*begin = block->begin;
	return block;
}

CUresult cs_allocate(int device, size_t bytes, bool pool, CUdeviceptr *address)
{
	struct cs_allocation *allocation;
	CUdeviceptr begin;

	if (!address || !bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (bytes > cs_settings.memory_bytes)
		return CUDA_ERROR_OUT_OF_MEMORY;
	allocation = calloc(1, sizeof(*allocation));
	if (!allocation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&cs_lock);
	allocation->block = place_new(device, bytes, pool, &begin);
	if (!allocation->block) {
		pthread_mutex_unlock(&cs_lock);
		free(allocation);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	allocation->begin = begin;
	allocation->bytes = bytes;
	allocation->pool = pool;
	allocation->context = cs_primary(device);
	cs_allocation_insert(allocation);
	memset(allocation->block->host + (begin - allocation->block->begin), POISON, bytes);
	pthread_mutex_unlock(&cs_lock);
	cs_race_host_memory("cuMemAlloc", begin, bytes);
	*address = begin;
	return CUDA_SUCCESS;
}

static bool block_is_used(const struct cs_block *block)
{
	for (const struct cs_allocation *a = allocations; a; a = a->next)
		if (a->block == block)
			return true;
	return false;
}

void cs_allocation_end(struct cs_allocation *allocation)
{
	struct cs_block *block = allocation->block;

	cs_allocation_remove(allocation);
	if (!block_is_used(block))
		cs_block_unmap(block);
}

CUresult cs_release(CUdeviceptr address)
{
	struct cs_allocation *allocation;
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	pthread_mutex_lock(&cs_lock);
	allocation = cs_allocation_find(address, 1);
	if (allocation && allocation->begin == address && !allocation->block->imported) {
		result = cs_opened_elsewhere(allocation) ? CUDA_ERROR_ALREADY_MAPPED : CUDA_SUCCESS;
		if (result == CUDA_SUCCESS)
			cs_allocation_end(allocation);
		else
			cs_say("cuMemFree(0x%llx): another process has it open by cuIpcOpenMemHandle; "
			       "it must close it first", address);
	}
	pthread_mutex_unlock(&cs_lock);
	return result;
}

void cs_memory_end(struct CUctx_st *context)
{
	pthread_mutex_lock(&cs_lock);
	for (struct cs_allocation *a = allocations, *next; a; a = next) {
		next = a->next;
		if (a->context != context)
			continue;
		if (a->block->imported)
			cs_opened_note(a, false);
		cs_allocation_end(a);
	}
	pthread_mutex_unlock(&cs_lock);
}

/* A device of -1 sees all. */
static bool view_from(int device, CUdeviceptr address, struct cs_view *view)
{
	struct cs_allocation *allocation;
	struct cs_host_range *range;
	bool found = true;

	pthread_mutex_lock(&cs_lock);
	allocation = cs_allocation_find(address, 1);
	range = allocation ? NULL : cs_host_find(address, 1);
	if (allocation) {
		struct cs_block *block = allocation->block;

		view->begin = allocation->begin;
		view->end = allocation->begin + allocation->bytes;
		view->host = block->host + (allocation->begin - block->begin);
		/* Imported memory belongs to the context that opened it, whichever device it lies on. */
		found = device < 0 || cs_may_map(device, allocation->context->device);
	} else if (range) {
		view->begin = range->begin;
		view->end = range->begin + range->bytes;
		view->host = (char *)range->begin;
	} else {
		found = false;
	}
	pthread_mutex_unlock(&cs_lock);
	return found;
}

static void *translate_from(int device, CUdeviceptr address, size_t bytes, bool writes)
{
	struct cs_view view;

	if (!view_from(device, address, &view) || bytes > view.end - address) {
		cs_fault(CUDA_ERROR_ILLEGAL_ADDRESS, "%s of %zu bytes at 0x%llx: no such memory of this device",
			 writes ? "write" : "read", bytes, address);
		return NULL;
	}
	cs_note(address, bytes, writes);
	return view.host + (address - view.begin);
}

CS_EXPORT bool cs_view(CUdeviceptr address, struct cs_view *view)
{
	return view_from(cs_running ? cs_running->device : -1, address, view);
}

CS_EXPORT void *cs_translate(CUdeviceptr address, size_t bytes, bool writes)
{
	return translate_from(cs_running ? cs_running->device : -1, address, bytes, writes);
}

void *cs_translate_any(CUdeviceptr address, size_t bytes, bool writes)
{
	return translate_from(-1, address, bytes, writes);
}

CS_API(cuMemAlloc, 3020)(CUdeviceptr *address, size_t bytes)
{
	CUresult result;

	CS_ENTER(CS_NEED_CONTEXT);
	result = cs_capture_forbids();
	return result == CUDA_SUCCESS ? cs_allocate(cs_current()->device, bytes, false, address) : result;
}

/* Waits for the work of the device, as the real one does. */
CS_API(cuMemFree, 3020)(CUdeviceptr address)
{
	struct cs_allocation *allocation;
	size_t bytes = 0;
	CUresult result;

	CS_ENTER(CS_NEED_CONTEXT);
	if (!address)
		return CUDA_SUCCESS;
	result = cs_capture_forbids();
	if (result != CUDA_SUCCESS)
		return result;
	cs_drain(cs_current());
	pthread_mutex_lock(&cs_lock);
	allocation = cs_allocation_find(address, 1);
	bytes = allocation ? allocation->bytes : 0;
	pthread_mutex_unlock(&cs_lock);
	if (bytes)
		cs_race_host_memory("cuMemFree", address, bytes);
	return cs_release(address);
}

CS_API(cuMemGetInfo, 3020)(size_t *free_bytes, size_t *total_bytes)
{
	CS_ENTER(CS_NEED_CONTEXT);
	if (!free_bytes || !total_bytes)
		return CUDA_ERROR_INVALID_VALUE;
	*total_bytes = cs_settings.memory_bytes;
	pthread_mutex_lock(&cs_lock);
	*free_bytes = cs_settings.memory_bytes - used_bytes[cs_current()->device];
	pthread_mutex_unlock(&cs_lock);
	return CUDA_SUCCESS;
}

CS_API(cuMemGetAddressRange, 3020)(CUdeviceptr *begin, size_t *bytes, CUdeviceptr address)
{
	struct cs_allocation *allocation;

	CS_ENTER(CS_NEED_CONTEXT);
	pthread_mutex_lock(&cs_lock);
	allocation = cs_allocation_find(address, 1);
	if (allocation && begin)
		*begin = allocation->begin;
	if (allocation && bytes)
		*bytes = allocation->bytes;
	pthread_mutex_unlock(&cs_lock);
	return allocation ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
