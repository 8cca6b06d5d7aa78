/*
 * memory.c - where a rank's vectors lie while an operation runs: in blocks of their own, between guards, and of the kind that
 * the seed draws. What was given is copied there, and what an output holds is copied back.
 *
 *   ordinary, CMA   guard | vector | guard
 *   region          the same, in registered memory, of which the vector alone is told to peers
 *   list            guard | piece | guard | piece | guard ...   in the vector's order or against it
 */
#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "shipping.h"
#include "status.h"

#define GUARD_BYTES 192u
#define GUARD 0xc7
#define POISON 0xa5 /* of what an operation has left */
#define PIECES_MAX 24u

struct block {
	struct block *next;
	enum shipping_kind kind;
	char *memory;
	uint64_t memory_bytes;
	bool registered, ended;
	uint64_t begin, end; /* of the vector's coordinates */
	char *zero;          /* where coordinate 0 would lie in what was given; NULL: nothing was */
	bool written;        /* an output: copied back */
	struct rr_region region;
	uint32_t count;
	rr_extent extents[PIECES_MAX];
	uint64_t starts[PIECES_MAX];
};

static rr_status allocate(struct block *block, uint64_t bytes)
{
	block->memory_bytes = bytes;
	if (block->kind == SHIPPING_REGION) {
		void *memory;
		rr_status status = rr_memory_alloc(bytes, &memory);
		if (status != RR_OK)
			return status;
		block->memory = memory;
		block->registered = true;
		if (!rr_memory_find(memory, bytes, &block->region))
			return rr_fail(RR_ERR_NO_MEMORY, "a region is not in its table");
	} else if (posix_memalign((void **)&block->memory, 64, bytes) != 0) {
		block->memory = NULL;
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for a vector");
	}
	memset(block->memory, GUARD, bytes);
	return RR_OK;
}

/* Ascending places where a vector is cut into pieces, none empty; returns how many pieces. */
static uint32_t cut(struct rr_sim *sim, uint64_t elements, uint64_t cuts[PIECES_MAX + 1])
{
	uint32_t count = 2 + (uint32_t)rr_sim_random(sim, PIECES_MAX - 1);

	count = count > elements ? (uint32_t)elements : count;
	cuts[0] = 0;
	for (uint32_t i = 1; i < count; i++) {
		uint64_t left = elements - cuts[i - 1] - (count - i);
		uint64_t step = 1 + rr_sim_random(sim, left);
		cuts[i] = cuts[i - 1] + (rr_sim_random(sim, 3) ? 1 + rr_sim_random(sim, 1 + 2 * left / (count - i + 1)) : step);
		if (cuts[i] > elements - (count - i))
			cuts[i] = elements - (count - i);
	}
	cuts[count] = elements;
	return count;
}

/* Pieces into the block's memory, which is made for them. */
static rr_status lay(struct rr_sim *sim, struct block *block, uint32_t element)
{
	uint64_t cuts[PIECES_MAX + 1] = {0, (block->end - block->begin) / element};
	uint64_t bytes = GUARD_BYTES, shift = rr_sim_random(sim, 64) / element * element;
	bool backwards = rr_sim_random(sim, 2);

	block->count = block->kind == SHIPPING_LIST ? cut(sim, cuts[1], cuts) : 1;
	for (uint32_t i = 0; i < block->count; i++)
		bytes += (cuts[i + 1] - cuts[i]) * element + GUARD_BYTES;
	rr_status status = allocate(block, bytes + shift);
	if (status != RR_OK)
		return status;
	char *at = block->memory + GUARD_BYTES + shift;
	for (uint32_t i = 0; i < block->count; i++) {
		uint32_t piece = backwards ? block->count - 1 - i : i;
		uint64_t size = (cuts[piece + 1] - cuts[piece]) * element;
		block->extents[piece] = (rr_extent){.address = at, .bytes = size};
		block->starts[piece] = block->begin + cuts[piece] * element;
		at += size + GUARD_BYTES;
	}
	return RR_OK;
}

/* Copy between what was given and the block. */
static void move(const struct block *block, bool back)
{
	for (uint32_t i = 0; block->zero && i < block->count; i++) {
		char *given = block->zero + block->starts[i];
		if (back)
			memcpy(given, block->extents[i].address, block->extents[i].bytes);
		else
			memcpy(block->extents[i].address, given, block->extents[i].bytes);
	}
}

static enum shipping_kind draw_kind(struct rr_sim *sim, int buffer)
{
	uint32_t registered = sim->spec.registered;

	if (registered == 5) /* what is read in place, beside what needs room in a link */
		registered = buffer == RR_OUTPUT ? 0 : 1;
	else if (registered == 2)
		registered = (uint32_t)rr_sim_random(sim, 4);
	else if (registered > 2)
		registered--; /* 3: lists, 4: CMA */
	if (buffer == RR_SCRATCH) /* the library's own: in one piece, registered wherever that can be */
		return registered % 2 ? SHIPPING_REGION : SHIPPING_ORDINARY;
	return (enum shipping_kind)registered;
}

static rr_status make(struct rr_sim *sim, int32_t r, int buffer, char *zero, uint64_t begin, uint64_t end, struct block **out)
{
	struct shipping *world = shipping_of(sim);
	struct block *block = calloc(1, sizeof(*block));
	rr_status status;

	if (!block)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for a block");
	block->next = world->all;
	world->all = block;
	block->kind = draw_kind(sim, buffer);
	block->begin = begin;
	block->end = end;
	block->zero = zero;
	status = lay(sim, block, sim->plans[r]->element_bytes);
	if (status == RR_OK)
		move(block, false);
	if (status == RR_OK && block->registered && world->ops->reach)
		status = world->ops->reach(world, r, &block->region);
	*out = block;
	return status;
}

static void use(const struct block *block, struct rr_buffer *buffer, struct rr_place *place)
{
	char *zero = (char *)((uintptr_t)block->extents[0].address - block->begin);

	*buffer = (struct rr_buffer){.zero = zero};
	if (block->kind == SHIPPING_LIST)
		*buffer = (struct rr_buffer){.extents = block->extents, .starts = block->starts, .count = block->count};
	if (block->kind == SHIPPING_REGION)
		*place = (struct rr_place){.base = (uint64_t)(zero - block->region.address), .region = block->region.id,
					   .reach = RR_REACH_REGION};
	if (block->kind == SHIPPING_CMA)
		*place = (struct rr_place){.base = (uint64_t)(uintptr_t)zero, .reach = RR_REACH_CMA};
}

static bool shared(const struct rr_buffer *a, const struct rr_buffer *b, uint64_t begin, uint64_t end, uint64_t begin_b, uint64_t end_b)
{
	return a->zero == b->zero && begin < end_b && begin_b < end;
}

rr_status shipping_begin(struct rr_sim *sim, int32_t r, struct rr_buffer buffers[RR_BUFFER_COUNT],
			 struct rr_place places[RR_BUFFER_COUNT])
{
	struct block **blocks = shipping_of(sim)->blocks[r];
	const struct rr_plan *plan = sim->plans[r];
	uint64_t begins[RR_BUFFER_COUNT] = {plan->input_begin, plan->scattered ? 0 : plan->output_begin, 0};
	uint64_t ends[RR_BUFFER_COUNT] = {plan->input_end, plan->scattered ? plan->vector_bytes : plan->output_end, plan->scratch_bytes};
	bool in_place = shared(&buffers[0], &buffers[1], begins[0], ends[0], begins[1], ends[1]);
	rr_status status = RR_OK;

	if (in_place) { /* one block serves both */
		begins[RR_INPUT] = begins[RR_OUTPUT] = begins[0] < begins[1] ? begins[0] : begins[1];
		ends[RR_INPUT] = ends[RR_OUTPUT] = ends[0] > ends[1] ? ends[0] : ends[1];
	}
	for (int b = 0; b < RR_BUFFER_COUNT && status == RR_OK; b++) {
		blocks[b] = NULL;
		if (begins[b] >= ends[b])
			continue;
		if (b == RR_OUTPUT && in_place)
			blocks[b] = blocks[RR_INPUT];
		else
			status = make(sim, r, b, b == RR_SCRATCH ? NULL : buffers[b].zero, begins[b], ends[b], &blocks[b]);
		if (status == RR_OK)
			use(blocks[b], &buffers[b], &places[b]);
	}
	if (blocks[RR_OUTPUT])
		blocks[RR_OUTPUT]->written = true;
	return status;
}

static rr_status broken(int32_t r, const char *what, uint64_t at)
{
	return rr_fail(RR_ERR_PROTOCOL, "rank %d: %s changed at byte %llu", r, what, (unsigned long long)at);
}

/* Guards stand, and an input that is no output is as it was. */
static rr_status look_over(int32_t r, const struct block *block)
{
	for (uint64_t i = 0; i < block->memory_bytes; i++) {
		const char *at = block->memory + i;
		bool inside = false;
		for (uint32_t p = 0; p < block->count && !inside; p++) {
			const char *piece = block->extents[p].address;
			inside = at >= piece && at < piece + block->extents[p].bytes;
			if (inside)
				i += (uint64_t)(piece + block->extents[p].bytes - at) - 1;
		}
		if (!inside && *(const uint8_t *)at != GUARD)
			return broken(r, "a guard beside a vector", i);
	}
	for (uint32_t p = 0; p < block->count && block->zero && !block->written; p++)
		if (memcmp(block->zero + block->starts[p], block->extents[p].address, block->extents[p].bytes) != 0)
			return broken(r, "its input", block->starts[p]);
	return RR_OK;
}

rr_status shipping_end(struct rr_sim *sim, int32_t r)
{
	struct block **blocks = shipping_of(sim)->blocks[r];
	rr_status status = RR_OK;

	for (int b = 0; b < RR_BUFFER_COUNT; b++) {
		if (!blocks[b])
			continue;
		if (status == RR_OK)
			status = look_over(r, blocks[b]);
		if (blocks[b]->written)
			move(blocks[b], true);
	}
	for (int b = 0; b < RR_BUFFER_COUNT; b++) {
		if (blocks[b]) {
			memset(blocks[b]->memory, POISON, blocks[b]->memory_bytes);
			blocks[b]->ended = true;
		}
		blocks[b] = NULL;
	}
	return status;
}

/* Nobody has stored into it since its operation was over. */
static rr_status look_back(const struct block *block)
{
	for (uint64_t i = 0; block->ended && i < block->memory_bytes; i++)
		if (((const uint8_t *)block->memory)[i] != POISON)
			return rr_fail(RR_ERR_PROTOCOL, "byte %llu of a vector changed after its operation was over", (unsigned long long)i);
	return RR_OK;
}

rr_status shipping_memory_free(struct shipping *world)
{
	rr_status status = RR_OK;

	while (world->all) {
		struct block *block = world->all;
		world->all = block->next;
		if (status == RR_OK)
			status = look_back(block);
		if (block->registered)
			rr_memory_free(block->memory);
		else
			free(block->memory);
		free(block);
	}
	return status;
}
