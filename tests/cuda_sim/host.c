/* host.c - pinned host memory. Addresses are unified: the device uses the host's pointer. */
#define _GNU_SOURCE
#include "cs.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define ALLOCATE_FLAGS (CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED)
#define REGISTER_FLAGS (CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY)

static struct cs_host_range *ranges;
static uint64_t last_id = (uint64_t)1 << 32; /* apart from the ids of device memory */

struct cs_host_range *cs_host_find(uintptr_t address, size_t bytes)
{
	for (struct cs_host_range *r = ranges; r; r = r->next)
		if (address >= r->begin && address - r->begin < r->bytes && bytes <= r->bytes - (address - r->begin))
			return r;
	return NULL;
}

static bool overlaps(uintptr_t begin, size_t bytes)
{
	for (const struct cs_host_range *r = ranges; r; r = r->next)
		if (begin < r->begin + r->bytes && r->begin < begin + bytes)
			return true;
	return false;
}

/* By what the processes that share a mapping know it alike. */
static void find_file(struct cs_host_range *range)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	unsigned long begin, end, offset, inode;
	char kind, line[4352];

	while (maps && fgets(line, sizeof(line), maps))
		if (sscanf(line, "%lx-%lx %*3c%c %lx %*s %lu", &begin, &end, &kind, &offset, &inode) == 5 && kind == 's' &&
		    begin <= range->begin && range->begin < end) {
			range->inode = inode;
			range->offset = offset + range->begin - begin;
		}
	if (maps)
		fclose(maps);
}

/* Enter a range; false: memory is short, or part of it is pinned already. Locked. */
static bool enter(uintptr_t begin, size_t bytes, unsigned int flags, bool registered)
{
	struct cs_host_range *range = calloc(1, sizeof(*range));

	if (!range)
		return false;
	range->begin = begin;
	range->bytes = bytes;
	range->flags = flags;
	range->registered = registered;
	range->id = ++last_id;
	if (registered && cs_race_on())
		find_file(range);
	range->context = cs_current();
	range->next = ranges;
	ranges = range;
	return true;
}

/* Take out the range that begins at `begin`; false: there is none of this kind. Locked. */
static bool leave(uintptr_t begin, bool registered)
{
	struct cs_host_range **link = &ranges, *range;

	while (*link && ((*link)->begin != begin || (*link)->registered != registered))
		link = &(*link)->next;
	range = *link;
	if (!range)
		return false;
	*link = range->next;
	if (!registered)
		munmap((void *)range->begin, range->bytes);
	free(range);
	return true;
}

static CUresult allocate(void **address, size_t bytes, unsigned int flags)
{
	void *memory;
	bool entered;
	CUresult result = cs_capture_forbids();

	if (result != CUDA_SUCCESS)
		return result;
	if (!address || !bytes || (flags & ~(unsigned int)ALLOCATE_FLAGS))
		return CUDA_ERROR_INVALID_VALUE;
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&cs_lock);
	entered = enter((uintptr_t)memory, bytes, flags, false);
	pthread_mutex_unlock(&cs_lock);
	if (!entered) {
		munmap(memory, bytes);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*address = memory;
	return CUDA_SUCCESS;
}

CS_API(cuMemAllocHost, 3020)(void **address, size_t bytes)
{
	CS_ENTER(CS_NEED_CONTEXT);
	return allocate(address, bytes, 0);
}

CS_API(cuMemHostAlloc, 2020)(void **address, size_t bytes, unsigned int flags)
{
	CS_ENTER(CS_NEED_CONTEXT);
	return allocate(address, bytes, flags);
}

CS_API(cuMemFreeHost, 2000)(void *address)
{
	bool left;

	CS_ENTER(CS_NEED_CONTEXT);
	cs_drain(cs_current());
	pthread_mutex_lock(&cs_lock);
	left = leave((uintptr_t)address, false);
	pthread_mutex_unlock(&cs_lock);
	return left ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Pages that are not mapped cannot be pinned. */
static bool is_mapped(uintptr_t address, size_t bytes)
{
	unsigned char resident[256];
	uintptr_t page = address & ~(CS_PAGE_BYTES - 1), end = address + bytes;

	while (page < end) {
		size_t part = end - page < sizeof(resident) * CS_PAGE_BYTES ? end - page :
									      sizeof(resident) * CS_PAGE_BYTES;

		if (mincore((void *)page, part, resident))
			return false;
		page += part;
	}
	return true;
}

CS_API(cuMemHostRegister, 6050)(void *address, size_t bytes, unsigned int flags)
{
	CUresult result = CUDA_SUCCESS;

	CS_ENTER(CS_NEED_CONTEXT);
	if (!address || !bytes || (flags & ~(unsigned int)REGISTER_FLAGS) || cs_in_arena((CUdeviceptr)address) ||
	    !is_mapped((uintptr_t)address, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&cs_lock);
	if (overlaps((uintptr_t)address, bytes))
		result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	else if (!enter((uintptr_t)address, bytes, flags, true))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_unlock(&cs_lock);
	return result;
}

CS_API(cuMemHostUnregister, 4000)(void *address)
{
	bool left;

	CS_ENTER(CS_NEED_CONTEXT);
	cs_drain(cs_current());
	pthread_mutex_lock(&cs_lock);
	left = leave((uintptr_t)address, true);
	pthread_mutex_unlock(&cs_lock);
	return left ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

CS_API(cuMemHostGetDevicePointer, 3020)(CUdeviceptr *device, void *address, unsigned int flags)
{
	bool pinned;

	CS_ENTER(CS_NEED_CONTEXT);
	if (!device || flags)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&cs_lock);
	pinned = cs_host_find((uintptr_t)address, 1);
	pthread_mutex_unlock(&cs_lock);
	if (!pinned)
		return CUDA_ERROR_INVALID_VALUE;
	*device = (CUdeviceptr)address;
	return CUDA_SUCCESS;
}

CS_API(cuMemHostGetFlags, 2030)(unsigned int *flags, void *address)
{
	struct cs_host_range *range;

	CS_ENTER(CS_NEED_CONTEXT);
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&cs_lock);
	range = cs_host_find((uintptr_t)address, 1);
	if (range && !range->registered)
		*flags = range->flags | CU_MEMHOSTALLOC_DEVICEMAP; /* always, where addresses are unified */
	pthread_mutex_unlock(&cs_lock);
	return range && !range->registered ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
