/* shm_common.c - see shm_common.h. */
#include "shm_common.h"

#include <stdlib.h>

#include "apart.h"
#include "order.h"
#include "shm.h"

#define COMMON_COUNT 16u /* slots in use at once */

struct common_slot {
	uint64_t end;  /* of its payload, counted since creation */
	uint32_t open; /* links that reserved it and have not committed */
};

struct rr_common {
	uint64_t begin, end;  /* payload bytes in use, counted since creation */
	uint64_t first, next; /* numbers of the slots in use */
	struct common_slot slots[COMMON_COUNT];
	uint8_t *place; /* of the slot taken last */
	struct rr_apart apart;
	uint64_t wanted[]; /* [COMMON_COUNT][ranks of the node]: what each reader's counter must reach; 0: no reader */
};

static uint64_t *wanted_of(const struct rr_shm *shm, uint64_t number)
{
	return &shm->common->wanted[number % COMMON_COUNT * shm->layout.count];
}

static bool read_by_all(const struct rr_shm *shm, uint64_t number)
{
	uint64_t *wanted = wanted_of(shm, number);
	uint32_t own = (uint32_t)shm->index[shm->rank];

	if (shm->common->slots[number % COMMON_COUNT].open)
		return false;
	for (int32_t r = 0; r < shm->world; r++) {
		int32_t reader = shm->index[r];
		if (reader < 0 || !wanted[reader])
			continue;
		if (!shm->peers[r].page ||
		    (int64_t)(rr_observe64(&rr_page_consumed(shm->peers[r].page, &shm->layout, own)->value) -
			      wanted[reader]) < 0) /* pairs with shm_release() */
			return false;
		wanted[reader] = 0;
	}
	return true;
}

static struct rr_common *common_of(struct rr_shm *shm)
{
	size_t wanted = (size_t)COMMON_COUNT * shm->layout.count;

	if (!shm->common)
		shm->common = calloc(1, sizeof(*shm->common) + wanted * sizeof(uint64_t));
	return shm->common;
}

int64_t rr_common_take(struct rr_shm *shm, uint32_t bytes, void **place, bool *past)
{
	struct rr_common *common = common_of(shm);
	uint64_t whole = shm->layout.link_bytes;
	uint64_t piece = ((uint64_t)bytes + RR_CACHE_LINE - 1) / RR_CACHE_LINE * RR_CACHE_LINE;
	uint64_t at, skip = 0;

	if (!common)
		return -1;
	while (common->first < common->next && read_by_all(shm, common->first))
		common->begin = common->slots[common->first++ % COMMON_COUNT].end;
	if (common->next - common->first == COMMON_COUNT)
		return -1;
	if (common->first == common->next) { /* empty: start again at the warm front */
		common->end += (whole - common->end % whole) % whole;
		common->begin = common->end;
	}
	at = common->end % whole;
	if (at + piece > whole) { /* a piece does not wrap */
		skip = whole - at;
		at = 0;
	}
	if (common->end + skip + piece - common->begin > whole)
		return -1;
	common->end += skip + piece;
	common->slots[common->next % COMMON_COUNT] = (struct common_slot){.end = common->end, .open = 1};
	common->place = rr_page_slots(shm->page, &shm->layout, (uint32_t)shm->index[shm->rank]) + at;
	*place = common->place;
	*past = rr_apart_look(&common->apart, *place, bytes);
	return (int64_t)common->next++;
}

bool rr_common_join(struct rr_shm *shm, const void *place, int64_t *number)
{
	struct rr_common *common = shm->common;

	if (!common || !place || place != common->place || common->first == common->next ||
	    !common->slots[(common->next - 1) % COMMON_COUNT].open)
		return false;
	common->slots[(common->next - 1) % COMMON_COUNT].open++;
	*number = (int64_t)common->next - 1;
	return true;
}

void rr_common_commit(struct rr_shm *shm, int64_t number, int32_t reader, uint64_t transfers)
{
	wanted_of(shm, (uint64_t)number)[shm->index[reader]] = transfers;
	shm->common->slots[(uint64_t)number % COMMON_COUNT].open--;
}

void rr_common_abort(struct rr_shm *shm, int64_t number)
{
	shm->common->slots[(uint64_t)number % COMMON_COUNT].open--;
}

void rr_common_free(struct rr_common *common)
{
	free(common);
}
