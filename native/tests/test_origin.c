/*
 * test_origin.c - sums of what landed: joined over any cuts they are the sums of the bytes as they were, and a bit that turned
 * since is found by who reads it.
 *
 * Expected: rr_crc32c() of a second copy, in which nothing turns.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crc.h"
#include "engine_slice.h"
#include "status.h"

#define BYTES (5u * RR_ORIGIN_GRID + 777)

static unsigned int failures;
static uint8_t memory[BYTES], as_it_was[BYTES];

static void expect(const char *what, uint64_t got, uint64_t want)
{
	if (got == want)
		return;
	failures++;
	printf("FAIL %s: %llx, not %llx\n", what, (unsigned long long)got, (unsigned long long)want);
}

struct bed {
	struct rr_engine engine;
	struct rr_row row;
	struct rr_open_row work;
	uint64_t chunks[2];
	bool kept;
	struct rr_schedule rows;
	struct rr_plan plan;
};

static void make(struct bed *bed)
{
	memset(bed, 0, sizeof(*bed));
	bed->row = (struct rr_row){.buffer = RR_OUTPUT, .operand_buffer = -1};
	bed->rows = (struct rr_schedule){.row_count = 1, .chunk_count = 1, .rows = &bed->row};
	bed->chunks[1] = BYTES;
	bed->kept = true;
	bed->plan = (struct rr_plan){.rows = &bed->rows, .chunk_offsets = bed->chunks, .kept = &bed->kept, .check = true};
	bed->engine.rank = 3;
	bed->engine.buffers[RR_OUTPUT] = (struct rr_buffer){.zero = (char *)memory};
	bed->work = (struct rr_open_row){.engine = &bed->engine, .plan = &bed->plan, .row = &bed->row};
	expect("start", (uint64_t)rr_origin_start(&bed->engine.origins, &bed->plan), RR_OK);
}

static void land(struct bed *bed, uint64_t begin, uint64_t bytes)
{
	uint32_t crc;

	for (uint64_t i = begin; i < begin + bytes; i++)
		memory[i] = as_it_was[i] = (uint8_t)(rand() >> 7);
	expect("note", (uint64_t)rr_origin_note(&bed->engine.origins, RR_OUTPUT, begin, memory + begin, bytes, &crc), RR_OK);
	expect("sum of what landed", crc, rr_crc32c(0, as_it_was + begin, bytes));
}

static void drawn(uint64_t *begin, uint64_t *bytes)
{
	uint64_t longest = rand() % 2 ? 300 : BYTES;

	*begin = (uint64_t)rand() % BYTES;
	*bytes = (uint64_t)rand() % (longest < BYTES - *begin ? longest : BYTES - *begin);
}

static void test_any_cuts(void)
{
	struct bed bed;
	uint64_t begin, bytes;

	make(&bed);
	for (uint32_t turn = 0; turn < 4000; turn++) {
		uint32_t crc = 0x12345678;
		if (turn % 2000 == 0) {
			for (uint32_t i = 0; i < BYTES; i++)
				memory[i] = as_it_was[i] = (uint8_t)(rand() >> 7);
			expect("again", (uint64_t)rr_origin_start(&bed.engine.origins, &bed.plan), RR_OK);
			expect("nothing is kept", (uint64_t)rr_origin_sum(&bed.work, RR_OUTPUT, 5, 70000, &crc), RR_OK);
			expect("so the sum is left alone", crc, 0x12345678);
			land(&bed, 0, 50000);
		}
		drawn(&begin, &bytes);
		if (rand() % 3 == 0) {
			land(&bed, begin, bytes);
			continue;
		}
		crc = rr_crc32c(0, memory + begin, bytes); /* its own, where nothing is kept */
		expect("found", (uint64_t)rr_origin_sum(&bed.work, RR_OUTPUT, begin, bytes, &crc), RR_OK);
		expect("sum", crc, rr_crc32c(0, as_it_was + begin, bytes));
		expect("unchanged", (uint64_t)rr_origin_compare(&bed.work, RR_OUTPUT, begin, bytes), RR_OK);
	}
	rr_origin_free(&bed.engine.origins);
}

/* Whole pieces keep what they were; a cut one is found damaged by this rank itself. */
static void test_a_turned_bit(void)
{
	uint32_t whole = 0, cut = 0;

	for (uint32_t turn = 0; turn < 600; turn++) {
		struct bed bed;
		uint64_t at = (uint64_t)rand() % BYTES, begin, bytes;
		uint32_t crc = 0;

		make(&bed);
		for (uint64_t done = 0, run; done < BYTES; done += run) {
			run = 1 + (uint64_t)rand() % 30000;
			run = run < BYTES - done ? run : BYTES - done;
			land(&bed, done, run);
		}
		memory[at] ^= (uint8_t)(1u << rand() % 8);
		drawn(&begin, &bytes);
		bool inside = at >= begin && at < begin + bytes;
		rr_status status = rr_origin_sum(&bed.work, RR_OUTPUT, begin, bytes, &crc);
		if (status == RR_OK && bytes) {
			expect("the sum is the origin's", crc, rr_crc32c(0, as_it_was + begin, bytes));
			whole += inside;
		} else if (bytes) {
			cut++;
			expect("status", (uint64_t)status, (uint64_t)RR_ERR_CORRUPT);
			expect("peer", (uint64_t)bed.engine.waiting_peer, 3);
			expect("names itself", strstr(rr_error_here()->message, "the memory of rank 3 changed") != NULL, true);
		}
		if (status == RR_OK && inside)
			expect("compared", (uint64_t)rr_origin_compare(&bed.work, RR_OUTPUT, begin, bytes), (uint64_t)RR_ERR_CORRUPT);
		rr_origin_free(&bed.engine.origins);
	}
	expect("both ways were seen", whole > 20 && cut > 20, true);
}

/* A chunk overwritten by a row that keeps nothing, or by a peer before this rank looks: what is beside it is still known. */
static void test_overwritten(void)
{
	for (uint32_t turn = 0; turn < 400; turn++) {
		struct bed bed;
		uint64_t chunks[] = {0, 1 + (uint64_t)rand() % (BYTES - 2), BYTES}, border = chunks[1];
		uint64_t slice = (uint64_t)rand() % border, bytes = border - slice;
		uint32_t crc = 0;

		make(&bed);
		bed.plan.chunk_offsets = chunks;
		bed.rows.chunk_count = 2;
		expect("start", (uint64_t)rr_origin_start(&bed.engine.origins, &bed.plan), RR_OK);
		land(&bed, 0, BYTES);
		memset(memory + border, 0, BYTES - border); /* landed before it is known here */
		expect("the other chunk", (uint64_t)rr_origin_sum(&bed.work, RR_OUTPUT, slice, bytes, &crc), RR_OK);
		expect("is what it was", crc, rr_crc32c(0, as_it_was + slice, bytes));
		expect("overwritten", (uint64_t)rr_origin_overwrite(&bed.work, RR_OUTPUT, border, BYTES - border, true), RR_OK);
		crc = 1;
		expect("forgotten", (uint64_t)rr_origin_sum(&bed.work, RR_OUTPUT, border, BYTES - border, &crc), RR_OK);
		expect("and left alone", crc, 1);
		/* A slice, whose borders cut pieces while they still are what they were. */
		expect("cut", (uint64_t)rr_origin_overwrite(&bed.work, RR_OUTPUT, slice, bytes / 2, false), RR_OK);
		memset(memory + slice, 0, bytes / 2);
		expect("gone", (uint64_t)rr_origin_overwrite(&bed.work, RR_OUTPUT, slice, bytes / 2, true), RR_OK);
		memory[slice + bytes / 2] ^= 1; /* beside it */
		expect("kept beside", (uint64_t)rr_origin_compare(&bed.work, RR_OUTPUT, slice + bytes / 2, bytes - bytes / 2),
		       (uint64_t)RR_ERR_CORRUPT);
		rr_origin_free(&bed.engine.origins);
	}
}

static void test_kept(void)
{
	struct rr_row table[] = {
		{.buffer = RR_OUTPUT, .chunk_begin = 0, .chunk_end = 4, .action = RR_ACTION_COPY, .operand_buffer = -1, .receive_end = 1},
		{.buffer = RR_OUTPUT, .chunk_begin = 4, .chunk_end = 6, .action = RR_ACTION_COPY, .operand_buffer = -1, .receive_end = 1},
		{.buffer = RR_SCRATCH, .chunk_end = 1, .cell = 1, .action = RR_ACTION_REDUCE, .operand_buffer = RR_INPUT},
		{.buffer = RR_SCRATCH, .chunk_end = 1, .cell = 2, .action = RR_ACTION_COPY, .operand_buffer = -1, .receive_end = 1},
		{.buffer = RR_OUTPUT, .chunk_begin = 6, .chunk_end = 7, .action = RR_ACTION_COPY, .operand_buffer = -1, .send_end = 1},
		{.buffer = RR_OUTPUT, .chunk_begin = 2, .chunk_end = 3, .action = RR_ACTION_NONE, .operand_buffer = -1, .send_end = 1},
		{.buffer = RR_OUTPUT, .chunk_begin = 7, .chunk_end = 8, .action = RR_ACTION_COPY, .operand_buffer = RR_SCRATCH, .operand_cell = 2},
		{.buffer = RR_INPUT, .chunk_begin = 0, .chunk_end = 8, .action = RR_ACTION_NONE, .operand_buffer = -1, .send_end = 1},
	};
	const bool want[] = {true, false, false, true, true, false, false, false};
	struct rr_schedule rows = {.row_count = sizeof(table) / sizeof(table[0]), .rows = table};
	bool *kept = rr_origin_kept(&rows);

	for (uint32_t r = 0; r < rows.row_count; r++)
		expect("kept", kept[r], want[r]);
	free(kept);
}

int main(int argc, char **argv)
{
	uint32_t seed = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 1;

	srand(seed);
	test_any_cuts();
	test_a_turned_bit();
	test_overwritten();
	test_kept();
	printf("test_origin: seed %u, %u failures\n", seed, failures);
	return failures ? 1 : 0;
}
