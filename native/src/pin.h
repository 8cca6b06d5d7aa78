/*
 * pin.h - the host memory in which links keep slices: slots, staging, bounce buffers.
 *
 * A device reads and writes it in place, which a GPU can only once it is pinned. So links say which ranges are theirs, a
 * device pins a range when it first meets an address in it, and is told before the range goes. Nothing else is
 * pinned: an address that lies in no range is the device's own memory.
 *
 * Threads: any. Nobody uses a range while it is disowned.
 */
#ifndef RR_PIN_H
#define RR_PIN_H

#include <stdbool.h>
#include <stdint.h>

/* Whole pages, which no other range shares. Kept by the link; zeroed: none. */
struct rr_pin_range {
	char *address;
	uint64_t bytes;
	struct rr_pin_range *next;
};

/* Mapped by the link. */
void rr_pin_own(struct rr_pin_range *range, void *address, uint64_t bytes);
/* Before it is unmapped. Nothing for a zeroed range. */
void rr_pin_disown(struct rr_pin_range *range);

/* A range that is mapped here, too: shared pages, so that a fork copies nothing away from a device. False: no memory. */
bool rr_pin_room(struct rr_pin_range *range, uint64_t bytes);
void rr_pin_drop(struct rr_pin_range *range);

/* The range that holds an address. */
bool rr_pin_find(const void *address, char **begin, uint64_t *bytes);

/* Who wants to know of ranges that go. Called without any lock of ours but that of watches. */
struct rr_pin_watch {
	void (*gone)(struct rr_pin_watch *watch, const char *begin);
	struct rr_pin_watch *next;
};

void rr_pin_watch(struct rr_pin_watch *watch);
void rr_pin_unwatch(struct rr_pin_watch *watch);
/* In a child of a fork: ranges and watches are the parent's. */
void rr_pin_forget(void);

#endif
