/*
 * enqueue_sim.h - lists of all ranks of a world, recorded, then executed in this thread in an order drawn by seed.
 *
 *   enqueue_record.c  a stream device that records; faults planted in what it recorded
 *   enqueue_race.c    who comes after whom (vector clocks), and accesses that are not ordered
 *   enqueue_sim.c     the world: memory, links, and the execution
 */
#ifndef RR_ENQUEUE_SIM_H
#define RR_ENQUEUE_SIM_H

#include "engine_enqueue.h"
#include "rdmaring_lists.h"

enum rr_entry_kind {
	RR_ENTRY_WAIT_FLAGS,
	RR_ENTRY_SET_FLAG,
	RR_ENTRY_COPY,
	RR_ENTRY_COMBINE,
	RR_ENTRY_RECORD,
	RR_ENTRY_WAIT_EVENT,
	RR_ENTRY_FILL, /* the caller fills its input */
	RR_ENTRY_LOOK  /* the caller has its output back */
};

struct rr_entry {
	enum rr_entry_kind kind;
	uint32_t stream;
	bool dropped;           /* planted: does nothing */
	bool hasty, forgetful;  /* planted: does not wait; does not reset */
	uint32_t event, record; /* number, and which of the rank's records it is or means */
	uint64_t first;         /* of the recorder's pointers: flags, or destinations and then sources */
	uint32_t count;
	void *to;
	const void *from;
	uint64_t bytes;
	rr_combine_fn pass;
	struct rr_combine combine;
};

struct rr_recorder {
	struct rr_stream_device device;
	struct rr_entry *entries;
	uint32_t entry_count, entry_room;
	const void **pointers;
	uint32_t pointer_count, pointer_room;
	uint32_t *latest; /* [event_count] record that an event number means now */
	uint32_t event_count, record_count;
	uint64_t calls;
};

rr_status rr_recorder_init(struct rr_recorder *recorder, uint32_t event_count);
void rr_recorder_free(struct rr_recorder *recorder);
/* FILL or LOOK on stream 0. */
rr_status rr_recorder_touch(struct rr_recorder *recorder, enum rr_entry_kind kind, void *address, uint64_t bytes);
/* Entries [first, second) and [second, end) are alike: the same operations with the same addresses. */
bool rr_recorder_alike(const struct rr_recorder *recorder, uint32_t first, uint32_t second);
/* Plant the fault in its place; *places: how many there are in all of these lists. */
void rr_recorder_plant(struct rr_recorder *recorders, int32_t world, int32_t fault, uint32_t at, uint64_t *places);

struct rr_race_region {
	const char *begin, *end;
	const char *name;
	int32_t rank, peer;
	struct rr_race_access *accesses;
	uint32_t count, room;
};

/* Clocks of all streams of all ranks; a stream is rank * streams + stream. */
struct rr_races {
	uint32_t stream_count;     /* of the world */
	uint32_t *clocks;          /* [streams][streams] */
	struct rr_race_region *regions;
	uint32_t region_count, region_room;
	uint64_t count;
	char first[256];
};

rr_status rr_races_init(struct rr_races *races, uint32_t stream_count);
void rr_races_free(struct rr_races *races);
rr_status rr_races_region(struct rr_races *races, const void *begin, uint64_t bytes, const char *name, int32_t rank,
			  int32_t peer);
static inline uint32_t *rr_races_clock(struct rr_races *races, uint32_t stream)
{
	return &races->clocks[(size_t)stream * races->stream_count];
}
void rr_races_join(const struct rr_races *races, uint32_t *into, const uint32_t *from);
/* The stream's next entry touches these bytes. */
rr_status rr_races_touch(struct rr_races *races, uint32_t stream, const void *address, uint64_t bytes, bool writes);
void rr_races_tell(struct rr_races *races, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
