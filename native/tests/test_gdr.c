/* The decision about the flush, and the table of GPU memory that links register. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "gdr.h"
#include "memory.h"

static void test_flush(void)
{
	/* The driver's values: ordering 0 (none), 100 (to the owner), 200 (to all devices); options: bit 0 host, bit 1 memory operations. */
	static const struct {
		int ordering, options;
		bool call;
		enum rr_gdr_flush expected;
	} cases[] = {
		{0, 0, true, RR_GDR_FLUSH_READ},    {0, 1, true, RR_GDR_FLUSH_DRIVER}, {0, 1, false, RR_GDR_FLUSH_READ},
		{0, 2, true, RR_GDR_FLUSH_READ},    {0, 3, true, RR_GDR_FLUSH_DRIVER}, {99, 1, true, RR_GDR_FLUSH_DRIVER},
		{100, 0, false, RR_GDR_FLUSH_NONE}, {100, 3, true, RR_GDR_FLUSH_NONE}, {200, 0, true, RR_GDR_FLUSH_NONE},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert(rr_gdr_flush_choose(cases[i].ordering, cases[i].options, cases[i].call) == cases[i].expected);
	assert(strcmp(rr_gdr_flush_name(RR_GDR_FLUSH_NONE), "no flush is needed") == 0);
}

static bool is_second(struct rr_gdr_owner *owner, const struct rr_gdr_region *region)
{
	(void)owner;
	return region->allocation == 2;
}

static void *at(uint64_t address)
{
	return (void *)(uintptr_t)address;
}

static void test_table(void)
{
	struct rr_gdr_owner owner = {0}, other = {0};
	struct rr_gdr_region first = {.allocation = 1, .begin = 0x10000, .bytes = 0x2000, .owner = &owner};
	struct rr_gdr_region second = {.allocation = 2, .begin = 0x20000, .bytes = 0x1000, .owner = &owner};
	struct rr_gdr_region again = {.allocation = 3, .begin = 0x11000, .bytes = 0x4000, .owner = &other};
	struct rr_gdr_region found;
	uint64_t generation = rr_memory_generation();

	assert(!rr_gdr_find(at(0x10000), 1, &found));
	assert(rr_gdr_note(&first) == RR_OK && rr_gdr_note(&second) == RR_OK);
	assert(first.id && second.id && first.id != second.id && rr_memory_generation() > generation);
	assert(rr_gdr_find(at(0x10000), 0x2000, &found) && found.id == first.id);
	assert(rr_gdr_find(at(0x11fff), 1, &found) && found.id == first.id);
	assert(!rr_gdr_find(at(0x11fff), 2, &found)); /* beyond its end */
	assert(!rr_gdr_find(at(0xffff), 2, &found));
	assert(rr_gdr_find(at(0x20000), 0x1000, &found) && found.id == second.id);
	assert(rr_gdr_known(&owner, 2, &found) && found.id == second.id && !rr_gdr_known(&other, 2, &found));

	/* Memory taken anew where the first was, which therefore is freed: links drop it. */
	assert(rr_gdr_note(&again) == RR_OK && again.id > second.id);
	assert(!rr_gdr_by_id(first.id, &found) && rr_gdr_by_id(again.id, &found) && found.begin == again.begin);
	assert(!rr_gdr_find(at(0x10000), 1, &found));

	generation = rr_memory_generation();
	rr_gdr_sweep(&owner, is_second);
	assert(rr_memory_generation() == generation && rr_gdr_by_id(second.id, &found));
	rr_gdr_sweep(&owner, NULL);
	assert(rr_memory_generation() > generation && !rr_gdr_by_id(second.id, &found) && rr_gdr_by_id(again.id, &found));
	rr_gdr_sweep(&other, NULL);
	assert(!rr_gdr_find(at(0x11000), 1, &found));
}

int main(void)
{
	test_flush();
	test_table();
	puts("ok");
	return 0;
}
