/*
 * forked.h - what belongs to the process that made it, and what a child of fork() is left of it.
 *
 * A child gets copies of all descriptors and shares all mappings. It must not keep the parent's connections open, since
 * peers see a death by their ends; nor end them, by shutdown() or a word on them; nor store into what others map. So every
 * descriptor and every shared mapping of a communicator is registered here, and a handler of pthread_atfork() does all
 * that a child ever does with them: it remaps, and close()s its copies. Nothing of the parent's communicators is usable in
 * the child, and nothing of them is freed or closed there again, for a number may be another file's by then.
 *
 * Threads: any. The lock is held over fork(), and briefly: nothing that waits is done under it.
 */
#ifndef RR_FORKED_H
#define RR_FORKED_H

#include <stdbool.h>
#include <stdint.h>

/* Of this process; a child has another. What was made under another mark is not ours. */
uint64_t rr_forked_mark(void);

/*
 * A descriptor of this process, made between rr_own_begin() and rr_own_made(), so that no fork comes between: RR_OWN(socket(...)).
 * Below 0: what made it failed, or (ENOMEM) it could not be noted and is closed again; errno tells.
 */
void rr_own_begin(void);
int rr_own_made(int fd);
#define RR_OWN(make) rr_own_made((rr_own_begin(), (make)))
/* Of one that a library made (below 0: it has none), or that goes over to somebody who closes it. False: no memory. */
bool rr_own_take(int fd);
void rr_own_give(int fd);
/* Closes it, registered or not. */
void rr_own_close(int fd);

/* What a child finds where the parent has a shared mapping. */
enum rr_in_child {
	RR_CHILD_COPY, /* the file's bytes, and its own stores; where that cannot be had: nothing that may be touched */
	RR_CHILD_EMPTY /* zeros */
};

/*
 * A shared mapping, read and written, of a file or (fd -1) of fresh pages; at an address, or (NULL) wherever there is room.
 * One of ours that began there is replaced. MAP_FAILED: errno tells. The file of RR_CHILD_COPY stays open as long.
 */
void *rr_own_map(void *at, uint64_t bytes, int fd, enum rr_in_child in_child);
void rr_own_unmap(void *address, uint64_t bytes);

#endif
