/*
 * test_told_release.c - who waits for a release and for what the peer sends next learns both from one line: the counter
 * of releases need not be loaded. Shown by counters that say nothing. Two ranks of one node in one process.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "link_shm.h"
#include "order.h"

#define WORLD 2
#define START 0xfffffff0ull /* the low half that lines tell wraps soon */
#define BYTES 256u

struct end {
	struct rr_shm shm;
	struct rr_shm_peer peers[WORLD];
	struct rr_link *out, *in;
	uint32_t sent, taken; /* transfers */
};

static int32_t index_of[WORLD] = {0, 1};

static void make(struct end *ends)
{
	for (int32_t r = 0; r < WORLD; r++) {
		struct rr_shm *shm = &ends[r].shm;
		*shm = (struct rr_shm){.rank = r, .world = WORLD, .count = WORLD, .index = index_of, .peers = ends[r].peers,
				       .serial_start = START};
		rr_layout_set(&shm->layout, WORLD, 4096, 2);
		shm->page = aligned_alloc(4096, shm->layout.bytes);
		assert(shm->page);
		memset(shm->page, 0, shm->layout.bytes);
		for (int32_t p = 0; p < WORLD; p++)
			ends[p].peers[r].page = shm->page;
	}
	for (int32_t r = 0; r < WORLD; r++) {
		rr_note64(&rr_page_consumed(ends[r].shm.page, &ends[r].shm.layout, (uint32_t)(1 - r))->value, START);
		assert(rr_link_shm_open(&ends[r].shm, 1 - r, true, false, &ends[r].out) == RR_OK);
		assert(rr_link_shm_open(&ends[r].shm, 1 - r, false, false, &ends[r].in) == RR_OK);
		rr_link_shm_pair(ends[r].out, ends[r].in);
	}
}

static struct rr_transfer transfer_of(uint32_t number)
{
	return (struct rr_transfer){.op = 5, .order = number, .bytes = BYTES, .mode = RR_MODE_SLOT, .alike = 1};
}

static void give(struct end *end)
{
	struct rr_transfer transfer = transfer_of(end->sent++);
	void *place = NULL;

	assert(end->out->ops->reserve(end->out, &transfer, &place) == RR_OK && place);
	memset(place, (int)end->sent, BYTES);
	end->out->ops->commit(end->out, &transfer);
}

static void take(struct end *end, bool release)
{
	struct rr_transfer transfer = transfer_of(end->taken++);
	const void *data;

	assert(end->in->ops->peek(end->in, &transfer, &data) == RR_OK);
	assert(*(const uint8_t *)data == (uint8_t)end->taken);
	if (release)
		end->in->ops->release(end->in, BYTES);
}

/* The counter in `end`'s segment says what it said at the start. */
static void mute(struct end *end)
{
	uint32_t peer = (uint32_t)(1 - end->shm.rank);

	rr_note64(&rr_page_consumed(end->shm.page, &end->shm.layout, peer)->value, START);
}

int main(void)
{
	static struct end ends[WORLD];
	struct end *a = &ends[0], *b = &ends[1];
	uint64_t counter;

	make(ends);
	for (uint32_t round = 0; round < 40; round++) {
		give(a);
		assert(!rr_link_has_released(a->out, round + 1));
		take(b, true);
		counter = rr_own64(&rr_page_consumed(b->shm.page, &b->shm.layout, 0)->value);
		assert(counter == START + round + 1);
		mute(b);
		give(b);
		if (round % 2) /* by looking at the line that comes next, or by taking it */
			assert(rr_link_has_released(a->out, round + 1));
		take(a, true);
		assert(a->out->released_seen == round + 1);
		assert(rr_link_has_released(a->out, round + 1) && !rr_link_has_released(a->out, round + 2));
		rr_note64(&rr_page_consumed(b->shm.page, &b->shm.layout, 0)->value, counter);
	}
	/* A line that tells nothing new does not stand in the counter's way. */
	give(a);
	give(b);
	take(b, false);
	assert(!rr_link_has_released(a->out, 41));
	b->in->ops->release(b->in, BYTES);
	assert(rr_link_has_released(a->out, 41));
	take(a, true);
	for (int32_t r = 0; r < WORLD; r++) {
		ends[r].out->ops->close(ends[r].out);
		ends[r].in->ops->close(ends[r].in);
		free(ends[r].shm.page);
	}
	printf("ok\n");
	return 0;
}
