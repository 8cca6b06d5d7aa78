/*
 * memory.h - registered memory of this process: memfd regions that peers map and use in place.
 *
 * Regions belong to the process, not to a communicator. A communicator announces a region to its
 * peers (see shm.h) when an operation first uses it.
 *
 * Threads: all functions may be called from any thread.
 */
#ifndef RR_MEMORY_H
#define RR_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "rdmaring.h"

struct rr_region {
	uint32_t id; /* never used twice in a process; 0 is no region */
	int fd; /* -1: of the parent of this process, which has a private copy; no region any more */
	char *address;
	uint64_t bytes; /* whole pages */
	bool moving; /* its contents are being copied to other pages */
};

/* Changes whenever a region appears, goes, or gets fresh pages: places cached before are void then. */
uint64_t rr_memory_generation(void);
/* For memory that is kept elsewhere under ids of this numbering (gdr.h): a new id; and something appeared or went. */
uint32_t rr_memory_new_id(void);
void rr_memory_changed(void);
/* The region that holds all of [address, address + bytes). */
bool rr_memory_find(const void *address, uint64_t bytes, struct rr_region *out);
/* Whether the machine and our cgroup have so much left; `what` is for the error. */
rr_status rr_memory_available(uint64_t bytes, const char *what);
/* Whether the mapping that holds address is served by huge pages, at least in part. */
bool rr_memory_is_huge(const void *address);
/* Whether the region still lives; and where. */
bool rr_memory_lives(uint32_t id);
bool rr_memory_by_id(uint32_t id, struct rr_region *out);
/*
 * Fresh pages at the same address, with the same contents, under a new id: whoever still writes the
 * old pages writes what nobody sees. For every unfinished operation's regions when it fails.
 */
rr_status rr_memory_quarantine(uint32_t id);
/* See forked.h. The table holds still over a fork; in a child no region of its parent is found any more. */
void rr_memory_before_fork(void);
void rr_memory_after_fork(bool in_child);

#endif
