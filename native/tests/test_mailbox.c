/*
 * test_mailbox.c - tiny messages of one node in one process. Where ranks share processors, the first that has the sum
 * of a larger message leaves it, and the others copy that: shown by payloads that are spoilt once one rank has summed.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "mailbox.h"
#include "test_node.h"

#define WORLD 3
#define COUNT_MAX (RR_MAILBOX_BYTES / sizeof(float))

struct world {
	struct node node;
	struct rr_mailbox mailboxes[WORLD];
	float inputs[WORLD][COUNT_MAX], outputs[WORLD][COUNT_MAX];
	uint32_t serial;
};

static void make(struct world *world, bool crowded)
{
	node_make(&world->node, WORLD, 4096, 2, 0);
	for (int32_t r = 0; r < WORLD; r++) {
		world->node.shms[r].crowded = crowded;
		world->mailboxes[r] = (struct rr_mailbox){.shm = &world->node.shms[r]};
	}
	world->serial = 0;
}

static struct rr_plan plan_of(uint32_t bytes, uint64_t hash)
{
	struct rr_plan plan = {.vector_bytes = bytes, .element_bytes = sizeof(float), .pass = rr_combine_lookup(RR_FLOAT32, RR_SUM, rr_simd_level_best())};

	plan.descriptor.hash = hash;
	plan.descriptor.count = bytes / sizeof(float);
	return plan;
}

static void post_all(struct world *world, const struct rr_plan *plan)
{
	for (int32_t r = 0; r < WORLD; r++) {
		struct rr_buffer input = {.zero = (char *)world->inputs[r]};
		for (uint32_t i = 0; i < plan->descriptor.count; i++)
			world->inputs[r][i] = (float)((r + 1) * (int32_t)(i % 1000 + 1 + world->serial));
		rr_mailbox_post(&world->mailboxes[r], plan, &input);
	}
	world->serial++;
}

static rr_status poll(struct world *world, const struct rr_plan *plan, int32_t r)
{
	struct rr_buffer output = {.zero = (char *)world->outputs[r]};

	memset(world->outputs[r], 0, plan->vector_bytes);
	return rr_mailbox_poll(&world->mailboxes[r], plan, &output);
}

/* 1 + 2 + 3 times what a rank's number multiplies. */
static bool right(const struct world *world, const struct rr_plan *plan, int32_t r)
{
	for (uint32_t i = 0; i < plan->descriptor.count; i++)
		if (world->outputs[r][i] != (float)(6 * (int32_t)(i % 1000 + world->serial)))
			return false;
	return true;
}

/* What the ranks have posted last; sums that were left stay. */
static void spoil(struct world *world)
{
	for (int32_t r = 0; r < WORLD; r++) {
		struct rr_shm *shm = &world->node.shms[r];
		memset(rr_page_mailbox_payload(shm->page, &shm->layout, world->serial & 1), 0x55, RR_MAILBOX_BYTES);
	}
}

/* Whether a rank that polls later copies the first one's sum. */
static bool copies(struct world *world, uint32_t bytes)
{
	struct rr_plan plan = plan_of(bytes, 77);

	post_all(world, &plan);
	assert(poll(world, &plan, 1) == RR_OK && right(world, &plan, 1));
	spoil(world);
	assert(poll(world, &plan, 0) == RR_OK && poll(world, &plan, 2) == RR_OK);
	assert(right(world, &plan, 0) == right(world, &plan, 2));
	return right(world, &plan, 0);
}

/* A payload inside its line has the very bytes that would tell of a sum two messages later. */
static void not_taken_in(struct world *world)
{
	struct rr_plan small = plan_of(8, 78), big = plan_of(RR_MAILBOX_BYTES, 77);
	uint64_t tag = (uint64_t)(world->serial + 3) << 32 | 77;
	struct rr_buffer input = {.zero = (char *)&tag};

	for (int32_t r = 0; r < WORLD; r++)
		rr_mailbox_post(&world->mailboxes[r], &small, &input);
	world->serial++;
	for (int32_t r = 0; r < WORLD; r++)
		assert(poll(world, &small, r) == RR_OK);
	for (int message = 0; message < 2; message++) {
		post_all(world, &big);
		for (int32_t r = 0; r < WORLD; r++)
			assert(poll(world, &big, r) == RR_OK && right(world, &big, r));
	}
}

int main(void)
{
	static struct world world;

	make(&world, true);
	for (int round = 0; round < 3; round++) {
		assert(copies(&world, RR_MAILBOX_BYTES));
		assert(copies(&world, 1024));
		assert(!copies(&world, 512)); /* made as fast as copied */
		not_taken_in(&world);
	}
	node_free(&world.node);
	make(&world, false);
	assert(!copies(&world, RR_MAILBOX_BYTES)); /* each has a processor of its own, and sums at once */
	node_free(&world.node);
	printf("ok\n");
	return 0;
}
