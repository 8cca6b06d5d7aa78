/*
 * test_told_release.c - who waits for a release and for what the peer sends next learns both from one line: the counter
 * of releases need not be loaded. Shown by counters that say nothing. Two ranks of one node in one process.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "link_shm.h"
#include "test_node.h"

#define WORLD 2
#define START 0xfffffff0ull /* the low half that lines tell wraps soon */
#define BYTES 256u

struct end {
	struct rr_shm *shm;
	struct rr_link *out, *in;
	uint32_t sent, taken; /* transfers */
};

static void make(struct node *node, struct end *ends)
{
	node_make(node, WORLD, 4096, 2, START);
	for (int32_t r = 0; r < WORLD; r++) {
		ends[r].shm = &node->shms[r];
		assert(rr_link_shm_open(ends[r].shm, 1 - r, true, false, &ends[r].out) == RR_OK);
		assert(rr_link_shm_open(ends[r].shm, 1 - r, false, false, &ends[r].in) == RR_OK);
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

/* How many transfers `end` says to have released. */
static _Atomic uint64_t *counter_of(struct end *end)
{
	return &rr_page_consumed(end->shm->page, &end->shm->layout, (uint32_t)(1 - end->shm->rank))->value;
}

int main(void)
{
	static struct node node;
	static struct end ends[WORLD];
	struct end *a = &ends[0], *b = &ends[1];
	uint64_t counter;

	make(&node, ends);
	for (uint32_t round = 0; round < 40; round++) {
		give(a);
		assert(!rr_link_has_released(a->out, round + 1));
		take(b, true);
		counter = rr_own64(counter_of(b));
		assert(counter == START + round + 1);
		rr_note64(counter_of(b), START); /* as at the start */
		give(b);
		if (round % 2) /* by looking at the line that comes next, or by taking it */
			assert(rr_link_has_released(a->out, round + 1));
		take(a, true);
		assert(a->out->released_seen == round + 1);
		assert(rr_link_has_released(a->out, round + 1) && !rr_link_has_released(a->out, round + 2));
		rr_note64(counter_of(b), counter);
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
	}
	node_free(&node);
	printf("ok\n");
	return 0;
}
