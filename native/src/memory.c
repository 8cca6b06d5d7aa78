/* memory.c - memfd regions; see memory.h. */
#define _GNU_SOURCE
#include "memory.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "forked.h"
#include "order.h"
#include "status.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

#define PAGE_BYTES 4096ull
#define NAP_NS 200000u
#define HUGE_BYTES (2ull << 20) /* a region from this size on is aligned for huge pages */

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct rr_region *table; /* by ascending address */
static size_t table_count, table_room;
static uint32_t next_id = 1;
static _Atomic uint64_t generation = 1;

uint64_t rr_memory_generation(void)
{
	return rr_observe64(&generation);
}

void rr_memory_changed(void)
{
	atomic_fetch_add_explicit(&generation, 1, memory_order_acq_rel);
}

/* The last region that starts at or below address, or table_count. Under the lock. */
static size_t table_at(const char *address)
{
	size_t low = 0, high = table_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (table[middle].address <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low ? low - 1 : table_count;
}

/* Lets the thread that moves a region go on; what the table holds may be different afterwards. Under the lock. */
static void wait_for_table(void)
{
	struct timespec nap = {.tv_nsec = NAP_NS};

	pthread_mutex_unlock(&table_lock);
	nanosleep(&nap, NULL);
	pthread_mutex_lock(&table_lock);
}

static rr_status table_insert(const struct rr_region *region)
{
	if (table_count == table_room) {
		size_t room = table_room ? table_room * 2 : 64;
		struct rr_region *larger = realloc(table, room * sizeof(*table));
		if (!larger)
			return rr_fail(RR_ERR_NO_MEMORY, "no memory for the table of %zu regions", room);
		table = larger;
		table_room = room;
	}
	size_t at = table_at(region->address);
	at = at == table_count ? 0 : at + 1;
	memmove(&table[at + 1], &table[at], (table_count - at) * sizeof(*table));
	table[at] = *region;
	table_count++;
	return RR_OK;
}

/* Room of the size, aligned so that huge pages can serve it. */
static char *reserve_addresses(uint64_t bytes)
{
	uint64_t align = bytes >= HUGE_BYTES ? HUGE_BYTES : PAGE_BYTES;
	char *room = mmap(NULL, bytes + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	char *start;

	if (room == MAP_FAILED)
		return NULL;
	start = (char *)(((uintptr_t)room + align - 1) / align * align);
	if (start > room)
		munmap(room, (size_t)(start - room));
	munmap(start + bytes, (size_t)(room + align - start));
	return start;
}

/* A figure of /proc/meminfo in bytes, or of a cgroup's file; UINT64_MAX where there is none. */
static uint64_t figure_of(const char *path, const char *name, uint64_t unit)
{
	char line[256];
	unsigned long long value;
	uint64_t found = UINT64_MAX;
	FILE *file = fopen(path, "r");

	if (!file)
		return found;
	while (found == UINT64_MAX && fgets(line, sizeof(line), file))
		if (strncmp(line, name, strlen(name)) == 0 && sscanf(line + strlen(name), "%llu", &value) == 1)
			found = value * unit;
	fclose(file);
	return found;
}

/*
 * What may still be taken. Asked first, since the kernel gives shared memory page by page until it has
 * to kill somebody.
 */
static uint64_t bytes_available(void)
{
	uint64_t machine = figure_of("/proc/meminfo", "MemAvailable:", 1024);
	uint64_t limit = figure_of("/sys/fs/cgroup/memory.max", "", 1);
	uint64_t used = figure_of("/sys/fs/cgroup/memory.current", "", 1);

	if (limit != UINT64_MAX && used != UINT64_MAX && limit > used && limit - used < machine)
		return limit - used;
	return machine;
}

rr_status rr_memory_available(uint64_t bytes, const char *what)
{
	uint64_t available = bytes_available();

	if (bytes <= available)
		return RR_OK;
	rr_fail(RR_ERR_NO_MEMORY, "no room for %llu bytes of %s: %llu are available", (unsigned long long)bytes, what,
		(unsigned long long)available);
	strcpy(rr_error_here()->hint, "free memory, raise the cgroup's limit, or use ordinary arrays");
	return RR_ERR_NO_MEMORY;
}

static rr_status memfd_of(uint64_t bytes, int *out)
{
	rr_status status = rr_memory_available(bytes, "registered memory");
	int failed, fd;

	if (status < 0)
		return status;
	fd = RR_OWN(memfd_create("rdmaring-memory", MFD_CLOEXEC));

	if (fd < 0)
		return rr_fail(RR_ERR_NO_MEMORY, "memfd_create for %llu bytes: %s", (unsigned long long)bytes,
			       strerror(errno));
	failed = posix_fallocate(fd, 0, (off_t)bytes);
	if (failed) {
		rr_own_close(fd);
		return rr_fail(RR_ERR_NO_MEMORY, "no room for %llu bytes of registered memory: %s",
			       (unsigned long long)bytes, strerror(failed));
	}
	*out = fd;
	return RR_OK;
}

static rr_status map_at(int fd, char *address, uint64_t bytes)
{
	if (rr_own_map(address, bytes, fd, RR_CHILD_COPY) == MAP_FAILED)
		return rr_fail(RR_ERR_NO_MEMORY, "cannot map %llu bytes: %s", (unsigned long long)bytes,
			       strerror(errno));
	return RR_OK;
}

static void populate(char *address, uint64_t bytes)
{
	madvise(address, bytes, MADV_HUGEPAGE);       /* where the kernel allows it for shared memory */
	madvise(address, bytes, MADV_POPULATE_WRITE); /* an older kernel faults the pages in one by one */
}

bool rr_memory_is_huge(const void *address)
{
	char line[256];
	unsigned long begin, end, kib;
	bool inside = false, huge = false;
	FILE *file = fopen("/proc/self/smaps", "r");

	if (!file)
		return false;
	while (!huge && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%lx-%lx ", &begin, &end) == 2)
			inside = (uintptr_t)address >= begin && (uintptr_t)address < end;
		else if (inside && sscanf(line, "ShmemPmdMapped: %lu", &kib) == 1)
			huge = kib > 0;
	}
	fclose(file);
	return huge;
}

rr_status rr_memory_alloc(uint64_t bytes, void **out)
{
	struct rr_region region = {.bytes = (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES};
	rr_status status;

	if (bytes == 0 || bytes > 1ull << 46)
		return rr_fail(RR_ERR_ARGUMENT, "registered memory of %llu bytes: accepted are 1 to 2^46",
			       (unsigned long long)bytes);
	status = memfd_of(region.bytes, &region.fd);
	if (status < 0)
		return status;
	region.address = reserve_addresses(region.bytes);
	if (!region.address) {
		status = rr_fail(RR_ERR_NO_MEMORY, "no addresses for %llu bytes", (unsigned long long)bytes);
		goto close_fd;
	}
	status = map_at(region.fd, region.address, region.bytes);
	if (status < 0)
		goto unmap;
	populate(region.address, region.bytes);
	pthread_mutex_lock(&table_lock);
	region.id = next_id++;
	status = table_insert(&region);
	pthread_mutex_unlock(&table_lock);
	if (status < 0)
		goto unmap;
	rr_memory_changed();
	*out = region.address;
	return RR_OK;

unmap:
	rr_own_unmap(region.address, region.bytes);
close_fd:
	rr_own_close(region.fd);
	return status;
}

rr_status rr_memory_free(void *address)
{
	struct rr_region region = {0};

	pthread_mutex_lock(&table_lock);
	size_t at = table_at(address);
	while (at < table_count && table[at].address == (char *)address && table[at].moving) {
		wait_for_table();
		at = table_at(address);
	}
	if (at < table_count && table[at].address == (char *)address) {
		region = table[at];
		memmove(&table[at], &table[at + 1], (table_count - at - 1) * sizeof(*table));
		table_count--;
	}
	pthread_mutex_unlock(&table_lock);
	if (!region.id)
		return rr_fail(RR_ERR_ARGUMENT, "%p is not the start of registered memory", address);
	rr_memory_changed();
	rr_own_unmap(region.address, region.bytes);
	if (region.fd >= 0)
		rr_own_close(region.fd);
	return RR_OK;
}

bool rr_memory_find(const void *address, uint64_t bytes, struct rr_region *out)
{
	bool found = false;

	pthread_mutex_lock(&table_lock);
	size_t at = table_at(address);
	if (at < table_count) {
		uint64_t offset = (uint64_t)((const char *)address - table[at].address);
		found = table[at].fd >= 0 && offset <= table[at].bytes && bytes <= table[at].bytes - offset;
		if (found)
			*out = table[at];
	}
	pthread_mutex_unlock(&table_lock);
	return found;
}

bool rr_memory_by_id(uint32_t id, struct rr_region *out)
{
	bool lives = false;

	pthread_mutex_lock(&table_lock);
	for (size_t i = 0; i < table_count && !lives; i++) {
		lives = table[i].id == id && table[i].fd >= 0;
		*out = table[i];
	}
	pthread_mutex_unlock(&table_lock);
	return lives;
}

bool rr_memory_lives(uint32_t id)
{
	struct rr_region region;

	return rr_memory_by_id(id, &region);
}

uint32_t rr_memory_new_id(void)
{
	uint32_t id;

	pthread_mutex_lock(&table_lock);
	id = next_id++;
	pthread_mutex_unlock(&table_lock);
	return id;
}

/* ---- quarantine: a copy of gigabytes takes a second, in which other threads find and free regions, and fork ---- */

/* The entry of an id, or NULL. Under the lock. */
static struct rr_region *entry_of(uint32_t id)
{
	for (size_t i = 0; i < table_count; i++)
		if (table[i].id == id)
			return &table[i];
	return NULL;
}

/* Marks it as moving, so that it is neither freed nor moved by another; false: it has gone, or has been moved already. */
static bool begin_moving(uint32_t id, struct rr_region *out)
{
	struct rr_region *entry;

	pthread_mutex_lock(&table_lock);
	while ((entry = entry_of(id)) && entry->moving)
		wait_for_table();
	bool found = entry && entry->fd >= 0;
	if (found) {
		entry->moving = true;
		*out = *entry;
	}
	pthread_mutex_unlock(&table_lock);
	return found;
}

static rr_status copy_to(int fd, const struct rr_region *region)
{
	for (uint64_t done = 0; done < region->bytes;) {
		ssize_t wrote = pwrite(fd, region->address + done, region->bytes - done, (off_t)done);
		if (wrote <= 0)
			return rr_fail(RR_ERR_NO_MEMORY, "cannot copy a region: %s", strerror(errno));
		done += (uint64_t)wrote;
	}
	return RR_OK;
}

/* The mapping and what the table tells of it change together. */
static rr_status change_over(uint32_t id, int fd)
{
	pthread_mutex_lock(&table_lock);
	struct rr_region *entry = entry_of(id);
	rr_status status = map_at(fd, entry->address, entry->bytes);
	entry->moving = false;
	if (status >= 0) {
		entry->fd = fd;
		entry->id = next_id++;
	}
	pthread_mutex_unlock(&table_lock);
	return status;
}

static void give_up_moving(uint32_t id)
{
	pthread_mutex_lock(&table_lock);
	entry_of(id)->moving = false;
	pthread_mutex_unlock(&table_lock);
}

rr_status rr_memory_quarantine(uint32_t id)
{
	struct rr_region old;
	int fd = -1;

	if (!begin_moving(id, &old))
		return RR_OK;
	rr_status status = memfd_of(old.bytes, &fd);
	if (status >= 0)
		status = copy_to(fd, &old);
	if (status < 0)
		give_up_moving(id);
	else
		status = change_over(id, fd);
	if (status >= 0)
		populate(old.address, old.bytes);
	int unused = status < 0 ? fd : old.fd;
	if (unused >= 0)
		rr_own_close(unused);
	rr_memory_changed();
	return status;
}

void rr_memory_before_fork(void)
{
	pthread_mutex_lock(&table_lock);
}

void rr_memory_after_fork(bool in_child)
{
	for (size_t i = 0; in_child && i < table_count; i++) { /* the child's pages are its own: ordinary memory, still freed as a region */
		table[i].fd = -1;
		table[i].moving = false;
	}
	pthread_mutex_unlock(&table_lock);
	if (in_child)
		rr_memory_changed();
}
