/*
 * shm_common.h - slots of a segment that several ranks of the node read.
 *
 * What a row sends alike to several peers is filled in once: the links to them name the same slot. It lies where the
 * slots of a link to oneself would lie, in a ring (slot_ring.h). A slot is free when all that were told of it have
 * released it; slots become free in the order in which they were taken. Without room, and for a single reader, a link's own
 * slots serve.
 *
 *   take  opens a slot for the first link        commit  this link's reader is told of it
 *   join  opens it for one more                  abort   it is not
 *
 * Threads: the driver of the communicator only.
 */
#ifndef RR_SHM_COMMON_H
#define RR_SHM_COMMON_H

#include <stdbool.h>
#include <stdint.h>

struct rr_shm;
struct rr_common;

/* The slot's number, or -1: no room, or no memory for the books. *place: where to fill it in. */
int64_t rr_common_take(struct rr_shm *shm, uint32_t bytes, void **place);
/* Whether `place` is the slot taken last and still open: *number is its number then. */
bool rr_common_join(struct rr_shm *shm, const void *place, int64_t *number);
/* transfers: how many transfers from us the reader has released when it is done with this one. */
void rr_common_commit(struct rr_shm *shm, int64_t number, int32_t reader, uint64_t transfers);
void rr_common_abort(struct rr_shm *shm, int64_t number);
void rr_common_free(struct rr_common *common);

#endif
