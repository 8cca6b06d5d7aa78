/*
 * test_plan_check.c - what is refused before a schedule is bound, so that the engine and the links need not look: one
 * damage each, in tables that bind without it. And what a link refuses that only arrives.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "link_shm.h"
#include "plan.h"
#include "status.h"
#include "test_node.h"

#define ROWS_MAX 4
#define WORLD 3
#define COUNT 900u

/* One rank's table: each row has at most one receive and one send; peer -1: none. */
struct table {
	int32_t collective, root;
	uint32_t rank, chunks, cells;
	uint32_t row_count;
	struct rr_row rows[ROWS_MAX];
	struct rr_receive receives[ROWS_MAX];
	struct rr_send sends[ROWS_MAX];
};

static uint8_t bytes[4096];

static uint8_t *put32(uint8_t *at, int64_t value)
{
	for (int i = 0; i < 4; i++)
		*at++ = (uint8_t)((uint64_t)value >> 8 * i);
	return at;
}

static size_t encode(const struct table *table)
{
	const int64_t header[] = {RR_RANK_MAGIC, RR_ROWS_VERSION, table->collective, WORLD, table->rank, table->chunks, 2,
				  table->row_count, table->row_count, table->row_count, 0, table->cells, 7, 0, 4, table->root};
	uint8_t *at = bytes;

	for (size_t i = 0; i < sizeof(header) / sizeof(header[0]); i++)
		at = put32(at, header[i]);
	for (uint32_t r = 0; r < table->row_count; r++) {
		struct rr_row row = table->rows[r];
		int32_t words[16];
		row.receive_begin = row.send_begin = (int32_t)r;
		row.receive_end = (int32_t)r + (table->receives[r].peer >= 0);
		row.send_end = (int32_t)r + (table->sends[r].peer >= 0);
		memcpy(words, &row, sizeof(words));
		for (int w = 0; w < 16; w++)
			at = put32(at, words[w]);
	}
	for (uint32_t r = 0; r < table->row_count; r++)
		at = put32(put32(at, table->receives[r].peer), table->receives[r].source);
	for (uint32_t r = 0; r < table->row_count; r++)
		at = put32(put32(at, table->sends[r].peer), table->sends[r].lands);
	return (size_t)(at - bytes);
}

static void add(struct table *table, struct rr_row row, int32_t from, int32_t source, int32_t to, int32_t lands)
{
	table->receives[table->row_count] = (struct rr_receive){.peer = from, .source = source};
	table->sends[table->row_count] = (struct rr_send){.peer = to, .lands = lands};
	table->rows[table->row_count++] = row;
}

static struct rr_row row_of(int32_t action, int32_t buffer, int32_t begin, int32_t end)
{
	return (struct rr_row){.action = action, .buffer = buffer, .chunk_begin = begin, .chunk_end = end, .operand_buffer = -1};
}

struct binding {
	int32_t dtype;
	uint32_t rounds, paired, wide;
	uint64_t offsets[32];
};

/* Decoded and bound; the plan's cell of scratch, or the error. */
static rr_status bound(const struct table *table, const struct binding *how, uint64_t *cell_bytes)
{
	const uint32_t channels[WORLD] = {1, 1, 1};
	rr_plan_spec spec = {.collective = table->collective, .dtype = how->dtype, .root = table->root, .count = COUNT, .scale = 1.0,
			     .chunk_offsets = how->offsets, .round_count = how->rounds, .paired = how->paired, .wide = how->wide,
			     .algorithm = "by hand"};
	size_t size = encode(table);
	struct rr_plan *plan = NULL;
	rr_schedule *schedule = NULL;
	rr_status status = rr_schedule_decode(bytes, size, (int32_t)table->rank, &schedule);

	if (status < 0)
		return status;
	spec.schedule = schedule;
	status = rr_plan_make((int32_t)table->rank, WORLD, 65536, channels, &spec, &plan);
	rr_schedule_free(schedule);
	if (status < 0)
		return status;
	*cell_bytes = plan->cell_bytes;
	rr_plan_unmake(plan);
	return RR_OK;
}

static struct binding even(uint32_t chunks)
{
	struct binding how = {.dtype = RR_INT64};

	for (uint32_t c = 0; c <= chunks; c++)
		how.offsets[c] = COUNT * c / chunks;
	return how;
}

/* The table binds by itself, and not once it is damaged: by the status, in words that hold `words`. */
#define REFUSED(table, how, status, words, ...)                                        \
	do {                                                                           \
		struct table damaged = table;                                          \
		uint64_t cell;                                                         \
		assert(bound(&damaged, &(how), &cell) == RR_OK);                        \
		__VA_ARGS__;                                                           \
		assert(bound(&damaged, &(how), &cell) == (status));                     \
		assert(strstr(rr_error_here()->message, words));                       \
	} while (0)

/* A gather of two chunks a rank to rank 0, by way of rank 1, as rank 1 runs it. */
static void gathers(void)
{
	struct table table = {.collective = RR_GATHER, .root = 0, .rank = 1, .chunks = 6, .cells = 1};
	struct binding how = even(6);

	add(&table, row_of(RR_ACTION_NONE, RR_INPUT, 2, 4), -1, 0, 0, RR_OUTPUT);
	add(&table, row_of(RR_ACTION_COPY, RR_SCRATCH, 4, 6), 2, RR_INPUT, 0, RR_OUTPUT);
	REFUSED(table, how, RR_ERR_SCHEDULE, "touches chunks 3 to 5 of an array of which rank 1 has", damaged.rows[0].chunk_begin = 3,
		damaged.rows[0].chunk_end = 5);
	REFUSED(table, how, RR_ERR_SCHEDULE, "of which rank 2 has", damaged.rows[1].chunk_begin = 3); /* its source */
	REFUSED(table, how, RR_ERR_SCHEDULE, "of which rank 2 has", damaged.sends[1].peer = 2); /* which has no output */
	REFUSED(table, how, RR_ERR_SCHEDULE, "of which rank 1 has", damaged.rows[1].buffer = RR_OUTPUT);
	REFUSED(table, how, RR_ERR_SCHEDULE, "row 1 sends to rank 0, to land in buffer 0", damaged.sends[1].lands = RR_INPUT);
	REFUSED(table, how, RR_ERR_SCHEDULE, "row 1 of rank 1 holds a value out of range", damaged.rows[1].buffer = RR_INPUT);
	REFUSED(table, how, RR_ERR_SCHEDULE, "row 1 receives from rank 2, buffer 3", damaged.receives[1].source = 3);
	REFUSED(table, how, RR_ERR_ARGUMENT, "round_count 2: row 0", how.rounds = 2);
	how.rounds = 0;
	REFUSED(table, how, RR_ERR_ARGUMENT, "5 chunks do not fall to 3 ranks", damaged.chunks = 5, damaged.rows[1].chunk_end = 5,
		how = even(5));
}

static void roots(void)
{
	struct table table = {.collective = RR_SCATTER, .root = 1, .rank = 1, .chunks = 3};
	struct binding how = even(3);

	add(&table, row_of(RR_ACTION_NONE, RR_INPUT, 0, 1), -1, 0, 0, RR_OUTPUT);
	REFUSED(table, how, RR_ERR_SCHEDULE, "of which rank 0 has", damaged.rows[0].chunk_begin = 1, damaged.rows[0].chunk_end = 2);
	REFUSED(table, how, RR_ERR_SCHEDULE, "of which rank 1 has", damaged.root = 2);
	table.collective = RR_BROADCAST;
	REFUSED(table, how, RR_ERR_SCHEDULE, "of which rank 1 has", damaged.root = 2);
	table.collective = RR_ALL_GATHER;
	table.root = -1;
	table.rows[0].chunk_begin = 1;
	table.rows[0].chunk_end = 2;
	REFUSED(table, how, RR_ERR_SCHEDULE, "of which rank 1 has", damaged.rows[0].chunk_end = 3);
}

/* A cell holds the largest row that reads it, too. */
static void cells(void)
{
	struct table table = {.collective = RR_ALL_REDUCE, .root = -1, .rank = 1, .chunks = 9, .cells = 2};
	struct binding how = even(9);
	uint64_t cell;

	add(&table, row_of(RR_ACTION_COPY, RR_SCRATCH, 0, 1), 0, RR_INPUT, -1, 0);
	assert(bound(&table, &how, &cell) == RR_OK && cell == 832); /* 100 elements of 8 bytes, in lines of 64 */
	add(&table, row_of(RR_ACTION_COPY, RR_OUTPUT, 0, 9), -1, 0, -1, 0);
	table.rows[1].operand_buffer = RR_SCRATCH;
	table.rows[1].operand_cell = 1;
	assert(bound(&table, &how, &cell) == RR_OK && cell == 7232);
	REFUSED(table, how, RR_ERR_SCHEDULE, "holds a value out of range", damaged.rows[1].operand_cell = 2);
	REFUSED(table, how, RR_ERR_SCHEDULE, "holds a value out of range", damaged.rows[0].cell = -1);
}

/* float32 lies in scratch and on the way, nowhere else. */
static void wide(void)
{
	struct table table = {.collective = RR_ALL_REDUCE, .root = -1, .rank = 1, .chunks = 3, .cells = 1};
	struct binding how = even(3);

	how.dtype = RR_FLOAT16;
	how.wide = 1;
	add(&table, row_of(RR_ACTION_REDUCE, RR_SCRATCH, 0, 3), 0, RR_SCRATCH, 2, -1);
	table.rows[0].operand_buffer = RR_INPUT;
	table.rows[0].flags = RR_ROW_FIRST | RR_ROW_WIDE | RR_ROW_TAKES_WIDE;
	REFUSED(table, how, RR_ERR_SCHEDULE, "row 0 sends to rank 2, to land in buffer 1", damaged.sends[0].lands = RR_OUTPUT);
	REFUSED(table, how, RR_ERR_SCHEDULE, "row 0 receives from rank 0, buffer 0", damaged.receives[0].source = RR_INPUT);
	REFUSED(table, how, RR_ERR_SCHEDULE, "holds a value out of range", damaged.rows[0].buffer = RR_OUTPUT);
	REFUSED(table, how, RR_ERR_ARGUMENT, "set wide", how.wide = 0);
}

/* all_to_all, as rank 1 runs it: of chunk 3 * s + d only ranks s and d know the length where counts differ by pair. */
static void pairs(void)
{
	struct table table = {.collective = RR_ALL_TO_ALL, .root = -1, .rank = 1, .chunks = 9, .cells = 1};
	struct binding how = even(9);
	uint64_t cell;

	add(&table, row_of(RR_ACTION_NONE, RR_INPUT, 5, 6), -1, 0, 2, RR_OUTPUT);
	add(&table, row_of(RR_ACTION_COPY, RR_SCRATCH, 1, 2), 0, RR_INPUT, -1, 0);
	REFUSED(table, how, RR_ERR_SCHEDULE, "of which rank 2 has", damaged.rows[0].chunk_begin = 4, damaged.rows[0].chunk_end = 5);
	how.paired = 1;
	REFUSED(table, how, RR_ERR_UNSUPPORTED, "row 0 moves several chunks", damaged.sends[0].lands = -1, damaged.rows[0].chunk_begin = 4);
	REFUSED(table, how, RR_ERR_UNSUPPORTED, "in one round", how.rounds = 2);
	how.rounds = 0;
	add(&table, row_of(RR_ACTION_COPY, RR_SCRATCH, 2, 3), 0, RR_INPUT, 2, RR_OUTPUT); /* from rank 0 to rank 2 */
	assert(bound(&table, &how, &cell) == RR_ERR_UNSUPPORTED);
	assert(strstr(rr_error_here()->message, "row 2 of rank 1 of by hand handles chunk 2, whose length that rank cannot know"));
	how.paired = 0;
	assert(bound(&table, &how, &cell) == RR_OK);
}

static void other_collectives(void)
{
	struct table table = {.collective = RR_REDUCE, .root = 2, .rank = 1, .chunks = 1};
	struct binding how = even(1);
	uint64_t cell;

	add(&table, row_of(RR_ACTION_NONE, RR_INPUT, 0, 1), -1, 0, 2, -1);
	const uint32_t channels[WORLD] = {1, 1, 1};
	rr_schedule *schedule;
	struct rr_plan *plan = NULL;
	size_t size = encode(&table);
	assert(bound(&table, &how, &cell) == RR_OK);
	assert(rr_schedule_decode(bytes, size, 1, &schedule) == RR_OK);
	const int32_t wrong[][2] = {{RR_ALL_REDUCE, -1}, {RR_REDUCE, 1}, {RR_REDUCE, -1}, {RR_BROADCAST, 2}};
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		rr_plan_spec spec = {.collective = wrong[i][0], .dtype = RR_INT64, .root = wrong[i][1], .count = COUNT, .scale = 1.0,
				     .chunk_offsets = how.offsets, .schedule = schedule};
		assert(rr_plan_make(1, WORLD, 65536, channels, &spec, &plan) == RR_ERR_ARGUMENT);
		assert(strstr(rr_error_here()->message, "the schedule is for reduce with root 2"));
	}
	rr_schedule_free(schedule);
}

/* Where in its buffer a peer says that the bytes lie: of a vector both know it, of scratch the peer alone. */
static void coordinates(void)
{
	static struct node node;
	static uint8_t vector[256];
	struct rr_link *out, *in;
	struct rr_transfer transfer = {.op = 5, .bytes = 64, .mode = RR_MODE_CMA, .buffer = RR_OUTPUT, .coordinate = 128, .alike = 1};
	struct rr_open open = {0};
	const void *data;
	void *place;

	node_make(&node, 2, 4096, 2, 0);
	node.peers[1][0].pid = getpid();
	assert(rr_link_shm_open(&node.shms[0], 1, true, false, &out) == RR_OK);
	assert(rr_link_shm_open(&node.shms[1], 0, false, false, &in) == RR_OK);
	for (int b = 0; b < RR_BUFFER_COUNT; b++)
		open.place[b] = (struct rr_place){.base = (uint64_t)(uintptr_t)vector, .reach = RR_REACH_CMA};
	assert(in->ops->open_accept(in, &open) == RR_OK);
	assert(out->ops->reserve(out, &transfer, &place) == RR_OK && !place);
	out->ops->commit(out, &transfer);
	struct rr_transfer elsewhere = transfer;
	elsewhere.coordinate = 64;
	assert(in->ops->peek(in, &elsewhere, &data) == RR_ERR_PROTOCOL);
	assert(in->ops->peek(in, &transfer, &data) != RR_ERR_PROTOCOL);
	transfer.order = 1;
	transfer.buffer = RR_SCRATCH;
	in->ops->release(in, 64);
	assert(out->ops->reserve(out, &transfer, &place) == RR_OK);
	out->ops->commit(out, &transfer);
	transfer.coordinate = 0;
	assert(in->ops->peek(in, &transfer, &data) != RR_ERR_PROTOCOL);
	out->ops->close(out);
	in->ops->close(in);
	node_free(&node);
}

int main(void)
{
	gathers();
	roots();
	cells();
	wide();
	pairs();
	other_collectives();
	coordinates();
	printf("ok\n");
	return 0;
}
