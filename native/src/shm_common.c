/* shm_common.c - see shm_common.h. */
#include "shm_common.h"

#include <stdlib.h>

#include "order.h"
#include "shm.h"
#include "slot_ring.h"

#define COMMON_COUNT 16u /* slots in use at once */

struct common_reader {
	bool reads;	    /* it was told of the slot, and is not known to be done with it */
	uint64_t transfers; /* that its counter tells once it is */
};

struct rr_common {
	struct rr_slot_ring ring;
	struct rr_slot_claim claims[COMMON_COUNT]; /* by number; they hold until no link has the slot open */
	uint32_t open[COMMON_COUNT];		   /* links that reserved it and have neither committed nor aborted */
	uint64_t newest;			   /* number of the slot taken last; 0: none yet */
	uint8_t *place;				   /* of that */
	struct common_reader readers[]; /* [COMMON_COUNT][ranks of the node] */
};

static struct common_reader *readers_of(const struct rr_shm *shm, uint64_t number)
{
	return &shm->common->readers[number % COMMON_COUNT * shm->layout.count];
}

static bool read_by_all(const struct rr_shm *shm, uint64_t number)
{
	struct common_reader *readers = readers_of(shm, number);
	uint32_t own = (uint32_t)shm->index[shm->rank];

	for (int32_t r = 0; r < shm->world; r++) {
		int32_t reader = shm->index[r];
		if (reader < 0 || !readers[reader].reads)
			continue;
		if (!shm->peers[r].page ||
		    (int64_t)(rr_observe64(&rr_page_consumed(shm->peers[r].page, &shm->layout, own)->value) -
			      readers[reader].transfers) < 0) /* pairs with shm_release() */
			return false;
		readers[reader].reads = false;
	}
	return true;
}

static struct rr_common *common_of(struct rr_shm *shm)
{
	size_t readers = (size_t)COMMON_COUNT * shm->layout.count;

	if (!shm->common) {
		shm->common = calloc(1, sizeof(*shm->common) + readers * sizeof(struct common_reader));
		if (shm->common)
			rr_slot_ring_init(&shm->common->ring, shm->layout.link_bytes);
	}
	return shm->common;
}

int64_t rr_common_take(struct rr_shm *shm, uint32_t bytes, void **place)
{
	struct rr_common *common = common_of(shm);
	struct rr_slot_claim claim;

	if (!common)
		return -1;
	for (uint64_t number = rr_slot_first(&common->ring); number && read_by_all(shm, number);
	     number = rr_slot_first(&common->ring))
		rr_slot_pop(&common->ring);
	if (common->ring.next - common->ring.first >= COMMON_COUNT || !rr_slot_claim(&common->ring, bytes, &claim))
		return -1;
	common->newest = claim.number;
	common->claims[claim.number % COMMON_COUNT] = claim;
	common->open[claim.number % COMMON_COUNT] = 1;
	common->place = rr_page_slots(shm->page, &shm->layout, (uint32_t)shm->index[shm->rank]) + claim.offset;
	*place = common->place;
	return (int64_t)claim.number;
}

bool rr_common_join(struct rr_shm *shm, const void *place, int64_t *number)
{
	struct rr_common *common = shm->common;

	if (!common || !place || place != common->place || !common->open[common->newest % COMMON_COUNT])
		return false;
	common->open[common->newest % COMMON_COUNT]++;
	*number = (int64_t)common->newest;
	return true;
}

/* One link less has it open. After the last it is its readers', or nobody's. */
static void leave(struct rr_shm *shm, uint64_t number)
{
	struct rr_common *common = shm->common;
	struct rr_slot_claim *claim = &common->claims[number % COMMON_COUNT];
	bool read = false;

	if (--common->open[number % COMMON_COUNT])
		return;
	for (uint32_t reader = 0; reader < shm->layout.count; reader++)
		read = read || readers_of(shm, number)[reader].reads;
	if (read)
		rr_slot_commit(&common->ring, claim, 0); /* freed by its readers' counters, not by a serial */
	else
		rr_slot_abort(&common->ring, claim);
}

void rr_common_commit(struct rr_shm *shm, int64_t number, int32_t reader, uint64_t transfers)
{
	readers_of(shm, (uint64_t)number)[shm->index[reader]] = (struct common_reader){.reads = true, .transfers = transfers};
	leave(shm, (uint64_t)number);
}

void rr_common_abort(struct rr_shm *shm, int64_t number)
{
	leave(shm, (uint64_t)number);
}

void rr_common_free(struct rr_common *common)
{
	free(common);
}
