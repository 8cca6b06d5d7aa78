/* pin.c - see pin.h. */
#define _GNU_SOURCE
#include "pin.h"

#include <pthread.h>
#include <stddef.h>
#include <sys/mman.h>

#include "forked.h"

#define PAGE_BYTES 4096u

static pthread_mutex_t ranges_lock = PTHREAD_MUTEX_INITIALIZER;
static struct rr_pin_range *ranges;
static pthread_mutex_t watches_lock = PTHREAD_MUTEX_INITIALIZER; /* taken before a device's own; never inside the other */
static struct rr_pin_watch *watches;

void rr_pin_own(struct rr_pin_range *range, void *address, uint64_t bytes)
{
	range->address = address;
	range->bytes = bytes;
	pthread_mutex_lock(&ranges_lock);
	range->next = ranges;
	ranges = range;
	pthread_mutex_unlock(&ranges_lock);
}

void rr_pin_disown(struct rr_pin_range *range)
{
	if (!range->address)
		return;
	pthread_mutex_lock(&ranges_lock);
	for (struct rr_pin_range **at = &ranges; *at; at = &(*at)->next) {
		if (*at == range) {
			*at = range->next;
			break;
		}
	}
	pthread_mutex_unlock(&ranges_lock);
	pthread_mutex_lock(&watches_lock);
	for (struct rr_pin_watch *watch = watches; watch; watch = watch->next)
		watch->gone(watch, range->address);
	pthread_mutex_unlock(&watches_lock);
	*range = (struct rr_pin_range){0};
}

bool rr_pin_room(struct rr_pin_range *range, uint64_t bytes)
{
	uint64_t whole = (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
	void *address = rr_own_map(NULL, whole, -1, RR_CHILD_EMPTY);

	if (address == MAP_FAILED)
		return false;
	rr_pin_own(range, address, whole);
	return true;
}

void rr_pin_drop(struct rr_pin_range *range)
{
	struct rr_pin_range gone = *range;

	rr_pin_disown(range);
	if (gone.address)
		rr_own_unmap(gone.address, gone.bytes);
}

bool rr_pin_find(const void *address, char **begin, uint64_t *bytes)
{
	bool found = false;

	pthread_mutex_lock(&ranges_lock);
	for (struct rr_pin_range *range = ranges; range && !found; range = range->next) {
		if ((uintptr_t)address - (uintptr_t)range->address >= range->bytes)
			continue;
		*begin = range->address;
		*bytes = range->bytes;
		found = true;
	}
	pthread_mutex_unlock(&ranges_lock);
	return found;
}

void rr_pin_watch(struct rr_pin_watch *watch)
{
	pthread_mutex_lock(&watches_lock);
	watch->next = watches;
	watches = watch;
	pthread_mutex_unlock(&watches_lock);
}

void rr_pin_unwatch(struct rr_pin_watch *watch)
{
	pthread_mutex_lock(&watches_lock);
	for (struct rr_pin_watch **at = &watches; *at; at = &(*at)->next) {
		if (*at == watch) {
			*at = watch->next;
			break;
		}
	}
	pthread_mutex_unlock(&watches_lock);
}

void rr_pin_forget(void)
{
	pthread_mutex_init(&ranges_lock, NULL);
	pthread_mutex_init(&watches_lock, NULL);
	ranges = NULL;
	watches = NULL;
}
