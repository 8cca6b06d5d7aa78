/*
 * ipc.c - legacy IPC: handles of device memory and of events.
 *
 * A handle says where the exporter's memfd is: its process and descriptor, opened as /proc/<pid>/fd/<n>. So memory
 * goes away with the last process that has it mapped, and nothing stays on disk. The page behind a block holds who
 * has it open; an entry of a process that died counts no more.
 */
#define _GNU_SOURCE
#include "cs.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define OPENERS_MAX 128
#define MEMORY_MAGIC 0x4d454d4952525355ull
#define EVENT_MAGIC  0x5645544952525355ull

/* One process that has one allocation of the block open. */
struct opener {
	_Atomic int32_t pid; /* 0: free */
	uint32_t reserved;
	uint64_t allocation; /* the exporter's id of it */
};

struct cs_shared {
	struct opener openers[OPENERS_MAX];
};

_Static_assert(sizeof(struct cs_shared) <= CS_PAGE_BYTES, "it has one page");

struct memory_handle {
	uint64_t magic;
	int32_t pid, fd;
	uint64_t inode;          /* of the memfd: another process may have this pid by now */
	uint64_t block_bytes;
	uint32_t offset_steps;   /* of the allocation in its block, in CS_STEP_BYTES */
	int32_t device;          /* physical number */
	uint64_t bytes;
	uint64_t allocation;     /* the exporter's id: new for an address that is used again */
};

struct event_handle {
	uint64_t magic;
	int32_t pid, fd;
	uint64_t inode;
};

_Static_assert(sizeof(struct memory_handle) <= CU_IPC_HANDLE_SIZE, "it travels as CUipcMemHandle");
_Static_assert(sizeof(struct event_handle) <= CU_IPC_HANDLE_SIZE, "it travels as CUipcEventHandle");

bool cs_opened_elsewhere(const struct cs_allocation *allocation)
{
	for (int i = 0; i < OPENERS_MAX; i++) {
		struct opener *opener = &allocation->block->shared->openers[i];
		int32_t pid = opener->pid;

		if (!pid || opener->allocation != allocation->id)
			continue;
		if (!kill(pid, 0) || errno == EPERM)
			return true;
		opener->pid = 0;
	}
	return false;
}

bool cs_opened_note(struct cs_allocation *allocation, bool opens)
{
	for (int i = 0; i < OPENERS_MAX; i++) {
		struct opener *opener = &allocation->block->shared->openers[i];
		int32_t expected = opens ? 0 : getpid();

		if (!opens && opener->allocation != allocation->exporter_id)
			continue;
		if (!atomic_compare_exchange_strong(&opener->pid, &expected, opens ? getpid() : 0))
			continue;
		if (opens)
			opener->allocation = allocation->exporter_id;
		return true;
	}
	return false;
}

/* The exporter's descriptor, opened here; -1 where it has gone. */
static int open_there(int pid, int fd, uint64_t inode)
{
	char path[64];
	struct stat status;
	int here;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
	here = open(path, O_RDWR | O_CLOEXEC);
	if (here < 0)
		return -1;
	if (fstat(here, &status) || status.st_ino != inode) {
		close(here);
		return -1;
	}
	return here;
}

static int ordinal_of(int physical)
{
	for (int i = 0; i < cs_settings.device_count; i++)
		if (cs_settings.physical[i] == physical)
			return i;
	return -1;
}

CS_API(cuIpcGetMemHandle, 4010)(CUipcMemHandle *handle, CUdeviceptr address)
{
	struct cs_allocation *allocation;
	struct memory_handle filled = { .magic = MEMORY_MAGIC, .pid = getpid() };
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	CS_ENTER(CS_NEED_CONTEXT);
	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	if (cs_settings.mig)
		return CUDA_ERROR_NOT_SUPPORTED;
	pthread_mutex_lock(&cs_lock);
	allocation = cs_allocation_find(address, 1);
	if (allocation && cs_ipc_capable(allocation)) {
		const struct cs_block *block = allocation->block;

		filled.fd = block->fd;
		filled.inode = block->inode;
		filled.block_bytes = block->bytes;
		filled.offset_steps = (allocation->begin - block->begin) / CS_STEP_BYTES;
		filled.device = cs_settings.physical[block->device];
		filled.bytes = allocation->bytes;
		filled.allocation = allocation->id;
		memset(handle, 0, sizeof(*handle));
		memcpy(handle, &filled, sizeof(filled));
		result = CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&cs_lock);
	return result;
}

/* Map the exporter's block and enter the allocation that the handle names. Locked. */
static CUresult open_new(const struct memory_handle *handle, struct cs_allocation **opened)
{
	struct cs_block *block = cs_block_of(handle->inode);
	struct cs_allocation *allocation = calloc(1, sizeof(*allocation));
	bool fresh = !block;
	int fd;

	if (!allocation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (fresh) {
		fd = open_there(handle->pid, handle->fd, handle->inode);
		if (fd < 0) {
			free(allocation);
			return CUDA_ERROR_INVALID_HANDLE;
		}
		block = cs_block_map(fd, handle->block_bytes, ordinal_of(handle->device), true);
	}
	if (!block) {
		free(allocation);
		return CUDA_ERROR_MAP_FAILED;
	}
	allocation->begin = block->begin + handle->offset_steps * CS_STEP_BYTES;
	allocation->bytes = handle->bytes;
	allocation->block = block;
	allocation->context = cs_current();
	allocation->exporter_id = handle->allocation;
	if (!cs_opened_note(allocation, true)) {
		if (fresh)
			cs_block_unmap(block);
		free(allocation);
		return CUDA_ERROR_TOO_MANY_PEERS;
	}
	cs_allocation_insert(allocation);
	*opened = allocation;
	return CUDA_SUCCESS;
}

CS_API(cuIpcOpenMemHandle, 11000)(CUdeviceptr *address, CUipcMemHandle packed, unsigned int flags)
{
	struct cs_allocation *allocation;
	struct memory_handle handle;
	CUresult result = CUDA_SUCCESS;

	CS_ENTER(CS_NEED_CONTEXT);
	memcpy(&handle, &packed, sizeof(handle));
	if (!address || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
		return CUDA_ERROR_INVALID_VALUE;
	if (handle.magic != MEMORY_MAGIC)
		return CUDA_ERROR_INVALID_HANDLE;
	if (handle.pid == getpid())
		return CUDA_ERROR_INVALID_CONTEXT; /* the real driver's answer in the exporting process */
	if (cs_settings.mig)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (handle.device != cs_settings.physical[cs_current()->device] && !cs_settings.peer_access)
		return CUDA_ERROR_MAP_FAILED;
	pthread_mutex_lock(&cs_lock);
	for (allocation = cs_allocations(); allocation; allocation = allocation->next)
		if (allocation->opened && allocation->block->inode == handle.inode &&
		    allocation->exporter_id == handle.allocation)
			break;
	if (allocation && allocation->context != cs_current())
		result = CUDA_ERROR_INVALID_CONTEXT; /* by one context of each device of a process */
	else if (!allocation)
		result = open_new(&handle, &allocation);
	if (result == CUDA_SUCCESS) {
		allocation->opened++;
		*address = allocation->begin;
	}
	pthread_mutex_unlock(&cs_lock);
	return result;
}

CS_API(cuIpcCloseMemHandle, 4010)(CUdeviceptr address)
{
	struct cs_allocation *allocation;
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	CS_ENTER(CS_NEED_CONTEXT);
	cs_drain(cs_current());
	pthread_mutex_lock(&cs_lock);
	allocation = cs_allocation_find(address, 1);
	if (allocation && allocation->opened && allocation->begin == address) {
		result = CUDA_SUCCESS;
		if (--allocation->opened == 0) {
			cs_opened_note(allocation, false);
			cs_allocation_end(allocation);
		}
	}
	pthread_mutex_unlock(&cs_lock);
	return result;
}

CS_API(cuIpcGetEventHandle, 4010)(CUipcEventHandle *handle, CUevent event_handle)
{
	struct event_handle filled = { .magic = EVENT_MAGIC, .pid = getpid() };
	struct CUevent_st *event;
	CUresult result = CUDA_ERROR_INVALID_HANDLE;

	CS_ENTER(CS_NEED_CONTEXT);
	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&cs_lock);
	event = cs_event_of(event_handle);
	if (event && event->fd >= 0 && !event->imported) {
		filled.fd = event->fd;
		filled.inode = event->inode;
		memset(handle, 0, sizeof(*handle));
		memcpy(handle, &filled, sizeof(filled));
		result = CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&cs_lock);
	return result;
}

CS_API(cuIpcOpenEventHandle, 4010)(CUevent *event, CUipcEventHandle packed)
{
	struct event_handle handle;
	int fd;

	CS_ENTER(CS_NEED_CONTEXT);
	memcpy(&handle, &packed, sizeof(handle));
	if (!event || handle.magic != EVENT_MAGIC)
		return event ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
	if (handle.pid == getpid())
		return CUDA_ERROR_INVALID_CONTEXT;
	fd = open_there(handle.pid, handle.fd, handle.inode);
	if (fd < 0)
		return CUDA_ERROR_INVALID_HANDLE;
	pthread_mutex_lock(&cs_lock);
	*event = cs_event_new(CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING, fd);
	if (*event)
		(*event)->imported = true;
	pthread_mutex_unlock(&cs_lock);
	return *event ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
