/* gdr.c - see gdr.h. */
#include "gdr.h"

#include <pthread.h>
#include <stdlib.h>

#include "memory.h"
#include "status.h"

#define ORDERING_TO_OWNER 100
#define OPTION_HOST 1

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct rr_gdr_region *table;
static uint32_t table_count, table_room, table_recent;

enum rr_gdr_flush rr_gdr_flush_choose(int ordering, int options, bool call)
{
	if (ordering >= ORDERING_TO_OWNER)
		return RR_GDR_FLUSH_NONE;
	return call && options & OPTION_HOST ? RR_GDR_FLUSH_DRIVER : RR_GDR_FLUSH_READ;
}

const char *rr_gdr_flush_name(enum rr_gdr_flush flush)
{
	switch (flush) {
	case RR_GDR_FLUSH_NONE:
		return "no flush is needed";
	case RR_GDR_FLUSH_DRIVER:
		return "flushed by the driver's call";
	case RR_GDR_FLUSH_READ:
		return "flushed by an RDMA READ over the loopback";
	}
	return "invalid";
}

bool rr_gdr_known(const struct rr_gdr_owner *owner, uint64_t allocation, struct rr_gdr_region *out)
{
	bool found = false;

	pthread_mutex_lock(&table_lock);
	for (uint32_t i = 0; i < table_count && !found; i++) {
		found = table[i].owner == owner && table[i].allocation == allocation;
		if (found)
			*out = table[i];
	}
	pthread_mutex_unlock(&table_lock);
	return found;
}

/* Under the lock. */
static void drop(uint32_t at)
{
	table[at] = table[--table_count];
	table_recent = 0;
}

static bool overlap(const struct rr_gdr_region *a, const struct rr_gdr_region *b)
{
	return a->begin < b->begin + b->bytes && b->begin < a->begin + a->bytes;
}

rr_status rr_gdr_note(struct rr_gdr_region *region)
{
	rr_status status = RR_OK;

	region->id = rr_memory_new_id();
	pthread_mutex_lock(&table_lock);
	for (uint32_t i = 0; i < table_count;) { /* addresses are unique in a process, over all GPUs */
		if (overlap(&table[i], region))
			drop(i);
		else
			i++;
	}
	if (table_count == table_room) {
		uint32_t room = table_room ? table_room * 2 : 16;
		struct rr_gdr_region *larger = realloc(table, room * sizeof(*table));
		if (larger) {
			table = larger;
			table_room = room;
		} else {
			status = rr_fail(RR_ERR_NO_MEMORY, "no memory for the table of %u allocations of GPU memory", room);
		}
	}
	if (status == RR_OK)
		table[table_count++] = *region;
	pthread_mutex_unlock(&table_lock);
	rr_memory_changed();
	return status;
}

void rr_gdr_sweep(struct rr_gdr_owner *owner, bool (*lives)(struct rr_gdr_owner *owner, const struct rr_gdr_region *region))
{
	bool changed = false;

	pthread_mutex_lock(&table_lock);
	for (uint32_t i = 0; i < table_count;) {
		if (table[i].owner != owner || (lives && lives(owner, &table[i]))) {
			i++;
			continue;
		}
		drop(i);
		changed = true;
	}
	pthread_mutex_unlock(&table_lock);
	if (changed)
		rr_memory_changed();
}

/* Under the lock. */
static bool holds(uint32_t at, uint64_t address, uint64_t bytes)
{
	return at < table_count && address - table[at].begin <= table[at].bytes &&
	       bytes <= table[at].bytes - (address - table[at].begin);
}

bool rr_gdr_find(const void *address, uint64_t bytes, struct rr_gdr_region *out)
{
	uint64_t at = (uint64_t)(uintptr_t)address;
	bool found;

	pthread_mutex_lock(&table_lock);
	found = holds(table_recent, at, bytes);
	for (uint32_t i = 0; i < table_count && !found; i++) {
		found = holds(i, at, bytes);
		if (found)
			table_recent = i;
	}
	if (found)
		*out = table[table_recent];
	pthread_mutex_unlock(&table_lock);
	return found;
}

bool rr_gdr_by_id(uint32_t id, struct rr_gdr_region *out)
{
	bool found = false;

	pthread_mutex_lock(&table_lock);
	for (uint32_t i = 0; i < table_count && !found; i++) {
		found = table[i].id == id;
		if (found)
			*out = table[i];
	}
	pthread_mutex_unlock(&table_lock);
	return found;
}

void rr_gdr_forget(void)
{
	pthread_mutex_init(&table_lock, NULL);
	table_count = table_recent = 0;
}
