/*
 * test_common_slots.c - slots that several ranks read: links of one node in one process, driven at random. What a
 * reader sees of a transfer is what was sent, from its commit to its release, whoever else reads or has released it.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "link_shm.h"
#include "test_node.h"

#define WORLD 5
#define SLOT_BYTES 4096u
#define SLOT_COUNT 3u
#define STEPS 200000
#define QUEUE 128u /* more than a link may have in flight */

struct sent {
	struct rr_transfer transfer;
	uint32_t pattern;
};

struct edge {
	struct rr_link *out, *in;
	struct sent queue[QUEUE];
	uint64_t sent, released;
};

struct world {
	struct node node;
	struct edge edges[WORLD]; /* from rank 0 */
	uint64_t commons, owns, aborts;
};

static uint32_t draw(uint32_t below)
{
	return (uint32_t)rand() % below;
}

static void make(struct world *world)
{
	node_make(&world->node, WORLD, SLOT_BYTES, SLOT_COUNT, 1000);
	for (int32_t r = 1; r < WORLD; r++) {
		struct edge *edge = &world->edges[r];
		assert(rr_link_shm_open(&world->node.shms[0], r, true, false, &edge->out) == RR_OK);
		assert(rr_link_shm_open(&world->node.shms[r], 0, false, false, &edge->in) == RR_OK);
	}
}

static void unmake(struct world *world)
{
	for (int32_t r = 1; r < WORLD; r++) {
		world->edges[r].out->ops->close(world->edges[r].out);
		world->edges[r].in->ops->close(world->edges[r].in);
	}
	node_free(&world->node);
}

static void fill(void *place, uint32_t bytes, uint32_t pattern)
{
	for (uint32_t i = 0; i < bytes / 4; i++)
		((uint32_t *)place)[i] = pattern + i;
}

static bool holds(const void *place, uint32_t bytes, uint32_t pattern)
{
	for (uint32_t i = 0; i < bytes / 4; i++)
		if (((const uint32_t *)place)[i] != pattern + i)
			return false;
	return true;
}

/* One slice on its way to some ranks. */
struct row {
	struct rr_transfer transfer;
	uint32_t pattern;
	void *places[WORLD]; /* NULL: not reserved */
	uint32_t joined;     /* links that were given the slot of another */
};

static void reserve(struct world *world, struct row *row, uint32_t wanted, uint32_t pattern)
{
	uint32_t left = (uint32_t)__builtin_popcount(wanted);

	*row = (struct row){.pattern = pattern, .transfer = {.op = 1, .slice = pattern, .mode = RR_MODE_SLOT,
							     .bytes = 4 * (1 + draw(SLOT_BYTES / 4))}};
	for (int32_t r = 1; r < WORLD; r++) {
		struct rr_link *out = world->edges[r].out;
		if (!(wanted >> r & 1))
			continue;
		row->transfer.alike = left--;
		if (out->ops->reserve(out, &row->transfer, &row->places[r]) != RR_OK) {
			row->places[r] = NULL;
			continue;
		}
		row->joined += row->places[r] == row->transfer.given;
		fill(row->places[r], row->transfer.bytes, pattern);
		row->transfer.given = row->places[r];
	}
	world->commons += row->joined;
}

static void end(struct world *world, struct row *row, bool give_up)
{
	for (int32_t r = 1; r < WORLD; r++) {
		struct edge *edge = &world->edges[r];
		if (!row->places[r])
			continue;
		assert(holds(row->places[r], row->transfer.bytes, row->pattern));
		if (give_up) {
			edge->out->ops->abort(edge->out);
			world->aborts++;
			continue;
		}
		world->owns += !row->joined;
		edge->out->ops->commit(edge->out, &row->transfer);
		assert(edge->sent - edge->released < QUEUE);
		edge->queue[edge->sent++ % QUEUE] = (struct sent){row->transfer, row->pattern};
	}
}

/* To a random set of ranks. Now and then a second row begins before the first has ended, as with a slow device. */
static void send_alike(struct world *world, uint32_t step)
{
	uint32_t wanted = draw(1u << WORLD) & ~1u, others = draw(4) ? 0 : ~wanted & draw(1u << WORLD) & ~1u;
	struct row first, second;

	reserve(world, &first, wanted, step * 7919u);
	reserve(world, &second, others, step * 7919u + 1);
	end(world, &first, draw(16) == 0);
	end(world, &second, draw(16) == 0);
}

/* Look at the oldest of one link's; release it, or come again. */
static void receive_one(struct edge *edge)
{
	const struct sent *oldest = &edge->queue[edge->released % QUEUE];
	const void *data = NULL;

	if (edge->released == edge->sent)
		return;
	assert(edge->in->ops->peek(edge->in, &oldest->transfer, &data) == RR_OK);
	assert(holds(data, oldest->transfer.bytes, oldest->pattern));
	if (draw(2)) {
		edge->in->ops->release(edge->in, oldest->transfer.bytes);
		edge->released++;
	}
}

static void drive_at_random(unsigned int seed)
{
	struct world *world = calloc(1, sizeof(*world));

	assert(world);
	printf("seed %u\n", seed);
	srand(seed);
	make(world);
	for (uint32_t step = 0; step < STEPS; step++) {
		uint32_t slow = step / 5000 % WORLD; /* for a while one rank does not read: its slots and those in common fill up */
		if (draw(12) == 0)
			send_alike(world, step);
		else if (1 + draw(WORLD - 1) != slow)
			receive_one(&world->edges[1 + draw(WORLD - 1)]);
	}
	for (int32_t r = 1; r < WORLD; r++)
		while (world->edges[r].released < world->edges[r].sent)
			receive_one(&world->edges[r]);
	printf("%llu shared a slot, %llu had none to share, %llu given up\n", (unsigned long long)world->commons,
	       (unsigned long long)world->owns, (unsigned long long)world->aborts);
	assert(world->commons > 1000 && world->owns > 1000 && world->aborts > 100);
	unmake(world);
	free(world);
}

/* Among idle readers a slice for all of them is written once. */
static void all_share_one(void)
{
	struct world *world = calloc(1, sizeof(*world));
	struct rr_transfer transfer = {.op = 1, .bytes = SLOT_BYTES, .mode = RR_MODE_SLOT};
	void *first = NULL, *place = NULL;

	assert(world);
	make(world);
	for (int32_t r = 1; r < WORLD; r++) {
		transfer.alike = (uint32_t)(WORLD - r);
		assert(world->edges[r].out->ops->reserve(world->edges[r].out, &transfer, &place) == RR_OK);
		first = first ? first : place;
		assert(place == first);
		transfer.given = place;
	}
	for (int32_t r = 1; r < WORLD; r++)
		world->edges[r].out->ops->abort(world->edges[r].out);
	unmake(world);
	free(world);
}

int main(int argc, char **argv)
{
	all_share_one();
	for (unsigned int seed = 1; seed <= 3; seed++)
		drive_at_random(argc > 1 ? (unsigned int)atoi(argv[1]) : seed);
	return 0;
}
