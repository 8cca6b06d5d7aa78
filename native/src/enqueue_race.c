/*
 * enqueue_race.c - accesses that nothing orders; see enqueue_sim.h.
 *
 * Each stream has a vector clock: how many entries of every stream it comes after. Flags and events carry clocks. Two
 * accesses to the same bytes, one of which writes, are a race unless one comes after the other: whatever the run at hand did.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "enqueue_sim.h"
#include "status.h"

struct rr_race_access {
	const char *begin, *end;
	uint32_t stream, clock;
	bool writes;
};

rr_status rr_races_init(struct rr_races *races, uint32_t stream_count)
{
	*races = (struct rr_races){.stream_count = stream_count};
	races->clocks = calloc((size_t)stream_count * stream_count, sizeof(*races->clocks));
	return races->clocks ? RR_OK : rr_fail(RR_ERR_NO_MEMORY, "no memory for the clocks of %u streams", stream_count);
}

void rr_races_free(struct rr_races *races)
{
	for (uint32_t i = 0; i < races->region_count; i++)
		free(races->regions[i].accesses);
	free(races->regions);
	free(races->clocks);
}

rr_status rr_races_region(struct rr_races *races, const void *begin, uint64_t bytes, const char *name, int32_t rank,
			  int32_t peer)
{
	for (uint32_t i = 0; i < races->region_count; i++)
		if (races->regions[i].begin == begin) /* an input that is the output */
			return RR_OK;
	if (races->region_count == races->region_room) {
		uint32_t room = races->region_room * 2 + 16;
		struct rr_race_region *grown = realloc(races->regions, room * sizeof(*grown));
		if (!grown)
			return rr_fail(RR_ERR_NO_MEMORY, "no memory for %u regions", room);
		races->regions = grown;
		races->region_room = room;
	}
	races->regions[races->region_count++] = (struct rr_race_region){
		.begin = begin, .end = (const char *)begin + bytes, .name = name, .rank = rank, .peer = peer};
	return RR_OK;
}

void rr_races_join(const struct rr_races *races, uint32_t *into, const uint32_t *from)
{
	for (uint32_t s = 0; s < races->stream_count; s++)
		into[s] = into[s] > from[s] ? into[s] : from[s];
}

void rr_races_tell(struct rr_races *races, const char *format, ...)
{
	va_list arguments;

	if (races->count++)
		return;
	va_start(arguments, format);
	vsnprintf(races->first, sizeof(races->first), format, arguments);
	va_end(arguments);
}

static struct rr_race_region *region_of(struct rr_races *races, const char *begin, const char *end)
{
	for (uint32_t i = 0; i < races->region_count; i++)
		if (begin >= races->regions[i].begin && end <= races->regions[i].end)
			return &races->regions[i];
	return NULL;
}

rr_status rr_races_touch(struct rr_races *races, uint32_t stream, const void *address, uint64_t bytes, bool writes)
{
	const char *begin = address, *end = begin + bytes;
	const uint32_t *clock = rr_races_clock(races, stream);
	struct rr_race_region *region = bytes ? region_of(races, begin, end) : NULL;

	if (!bytes)
		return RR_OK;
	if (!region)
		return rr_fail(RR_ERR_PROTOCOL, "stream %u touches %llu bytes that are nobody's", stream, (unsigned long long)bytes);
	for (uint32_t i = 0; i < region->count; i++) {
		const struct rr_race_access *other = &region->accesses[i];
		if (!(writes || other->writes) || end <= other->begin || begin >= other->end || other->stream == stream ||
		    clock[other->stream] >= other->clock)
			continue;
		rr_races_tell(races, "%s of rank %d (peer %d) at byte %lld: %s by stream %u is not ordered with the %s by stream %u",
			      region->name, region->rank, region->peer,
			      (long long)((begin > other->begin ? begin : other->begin) - region->begin),
			      writes ? "a write" : "a read", stream, other->writes ? "write" : "read", other->stream);
	}
	if (region->count == region->room) {
		uint32_t room = region->room * 2 + 64;
		struct rr_race_access *grown = realloc(region->accesses, room * sizeof(*grown));
		if (!grown)
			return rr_fail(RR_ERR_NO_MEMORY, "no memory for %u accesses", room);
		region->accesses = grown;
		region->room = room;
	}
	region->accesses[region->count++] = (struct rr_race_access){begin, end, stream, clock[stream], writes};
	return RR_OK;
}
