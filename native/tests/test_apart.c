/*
 * test_apart.c - whether readers are far is what most of the last five probes say, and probed again and again; and a
 * probe stores nowhere but to its own lines, which its readers have read since the last one.
 */
#define _GNU_SOURCE
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "test_node.h"

#define NEAR_NS 40
#define FAR_NS 300
#define BYTES RR_APART_BYTES_MIN
#define WORLD 3

static int64_t clock_ns, look_ns;
static int clock_reads;

/* Instead of libc's: each second reading comes look_ns after the one before. */
int clock_gettime(clockid_t id, struct timespec *now)
{
	(void)id;
	clock_ns += clock_reads++ % 2 ? look_ns : 1000;
	*now = (struct timespec){.tv_sec = clock_ns / 1000000000, .tv_nsec = clock_ns % 1000000000};
	return 0;
}

/* Rank 0 fills; what it fills is read by `reader`, in common with others or not. */
static struct rr_apart *state_of(struct node *node, int32_t reader, bool common)
{
	return common ? &node->shms[0].common_apart : &node->shms[0].peers[reader].apart;
}

static bool look(struct node *node, int32_t reader, bool common, uint32_t bytes)
{
	return common ? rr_apart_look_common(&node->shms[0], bytes) : rr_apart_look(&node->shms[0], reader, bytes);
}

/* Places up to and with the next that is probed; then they are read. */
static bool until_a_probe(struct node *node, int32_t reader, bool common, int64_t ns)
{
	int before = clock_reads;
	bool past = false;

	look_ns = ns;
	for (uint32_t i = 0; i < RR_APART_EVERY; i++) {
		bool believed = state_of(node, reader, common)->apart;
		past = look(node, reader, common, BYTES);
		assert(past == state_of(node, reader, common)->apart);
		assert(i == 0 || past == believed); /* others only say what is believed */
	}
	assert(clock_reads == before + 2); /* one probe, the first of these */
	rr_apart_answer(&node->shms[reader], 0, common, BYTES);
	return past;
}

static void test_belief(struct node *node, int32_t reader, bool common)
{
	struct rr_apart *state = state_of(node, reader, common);
	int reads = clock_reads;

	assert(!look(node, reader, common, BYTES - 1)); /* too small to be probed for */
	assert(clock_reads == reads);
	assert(!until_a_probe(node, reader, common, FAR_NS)); /* nobody had read the lines before: it tells nothing */
	assert(state->line_ps == 0);
	for (int i = 0; i < 2; i++)
		assert(!until_a_probe(node, reader, common, FAR_NS)); /* two of five are chance */
	assert(until_a_probe(node, reader, common, FAR_NS));
	assert(state->line_ps == FAR_NS * 1000 / RR_PROBE_LINES);
	assert(!look(node, reader, common, BYTES - 1)); /* what is believed is for larger places only */
	for (int i = 0; i < 2; i++)
		assert(until_a_probe(node, reader, common, FAR_NS)); /* all five by now */
	for (int i = 0; i < 2; i++)
		assert(until_a_probe(node, reader, common, NEAR_NS)); /* still far */
	for (int i = 0; i < 2; i++)
		assert(until_a_probe(node, reader, common, FAR_NS));
	for (int i = 0; i < 5; i++) /* the first is the third of five: two before, two between */
		assert(!until_a_probe(node, reader, common, NEAR_NS));
}

/* Lines that the reader has not read again would always say "near". */
static void test_unread(struct node *node, int32_t reader, bool common)
{
	bool believed = look(node, reader, common, BYTES); /* the next probe: nobody answers it */
	int reads = clock_reads;

	for (uint32_t i = 0; i < 10 * RR_APART_EVERY; i++)
		assert(look(node, reader, common, BYTES) == believed);
	assert(clock_reads == reads);
	rr_apart_answer(&node->shms[reader], 0, common, BYTES - 1); /* nor by one who reads less */
	rr_apart_answer(&node->shms[reader], 0, !common, BYTES);    /* or what is not it */
	for (uint32_t i = 0; i < 2 * RR_APART_EVERY; i++)
		look(node, reader, common, BYTES);
	assert(clock_reads == reads);
	rr_apart_answer(&node->shms[reader], 0, common, BYTES);
	for (uint32_t i = 0; i < RR_APART_EVERY; i++)
		look(node, reader, common, BYTES);
	assert(clock_reads == reads + 2);
}

/* Of all segments only the probes' lines and the answers have changed. */
static void test_nothing_else(const struct node *node)
{
	for (int32_t r = 0; r < WORLD; r++) {
		const struct rr_layout *layout = &node->shms[r].layout;
		const uint8_t *bytes = (const uint8_t *)node->shms[r].page;
		for (uint64_t i = 0; i < layout->bytes; i++)
			assert((i >= layout->consumed && i < layout->mailbox) || bytes[i] == 0);
		for (uint32_t p = 0; p < 2 * WORLD; p++)
			assert(rr_own64(&rr_page_consumed(node->shms[r].page, layout, p)->value) == 0);
	}
}

int main(void)
{
	struct node node;

	node_make(&node, WORLD, 4096, 2, 0);
	node.shms[0].apart_ns = RR_APART_NS;
	test_belief(&node, 1, false);
	test_belief(&node, 2, false);
	test_belief(&node, 2, true);
	test_unread(&node, 1, false);
	test_unread(&node, 1, true); /* another rank than the one that answered last */
	test_nothing_else(&node);
	node_free(&node);
	printf("ok\n");
	return 0;
}
