/*
 * test_slot_ring.c - the ring of payload bytes with credit: positions set by hand over each border, and a model of it,
 * driven at random, in which no byte is ever given out twice.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "order.h"
#include "slot_ring.h"

#define LINE RR_CACHE_LINE
#define CLAIMS RR_SLOT_CLAIMS_MAX

static struct rr_slot_claim claim(struct rr_slot_ring *ring, uint64_t bytes)
{
	struct rr_slot_claim got = {0};

	assert(rr_slot_claim(ring, bytes, &got) && got.number);
	return got;
}

static uint64_t held(struct rr_slot_ring *ring, uint64_t bytes, uint64_t serial)
{
	struct rr_slot_claim got = claim(ring, bytes);
	uint64_t offset = got.offset;

	rr_slot_commit(ring, &got, serial);
	assert(!got.number);
	return offset;
}

static bool full(const struct rr_slot_ring *ring, uint64_t bytes)
{
	struct rr_slot_ring copy = *ring;
	struct rr_slot_claim got = {0};
	bool refused = !rr_slot_claim(&copy, bytes, &got);

	assert(refused == (got.number == 0));
	assert(!refused || memcmp(&copy, ring, sizeof(copy)) == 0); /* what is refused changes nothing */
	return refused;
}

static void test_borders(void)
{
	struct rr_slot_ring ring;

	rr_slot_ring_init(&ring, 4 * LINE);
	assert(rr_slot_first(&ring) == 0 && rr_slot_ring_free(&ring) == 4 * LINE);
	assert(full(&ring, 4 * LINE + 1)); /* more than the ring */
	assert(held(&ring, 4 * LINE, 10) == 0); /* the whole of it */
	assert(full(&ring, 0) && full(&ring, 1));
	rr_slot_release(&ring, 10); /* up to 10, and not 10 itself */
	assert(full(&ring, 1));
	rr_slot_release(&ring, 11);
	assert(rr_slot_ring_free(&ring) == 4 * LINE);

	assert(held(&ring, 1, 11) == 0); /* a part of a line takes the line */
	assert(held(&ring, LINE + 1, 12) == LINE);
	assert(full(&ring, LINE + 1) && !full(&ring, LINE));
	rr_slot_release(&ring, 12);
	assert(full(&ring, LINE + 1)); /* one line at each end: a piece does not wrap */
	assert(held(&ring, LINE, 13) == 3 * LINE);
	assert(held(&ring, LINE, 14) == 0);
	assert(full(&ring, 1));
	rr_slot_release(&ring, 15);
	assert(held(&ring, 0, 15) == 0 && held(&ring, 0, 16) == LINE); /* nothing has a place of its own, too */
}

/* Positions by hand: where the end lies when the piece comes, over the ring's border. */
static void test_wrap(void)
{
	for (uint64_t lines = 1; lines <= 5; lines++) {
		for (uint64_t at = 0; at < lines; at++) {
			for (uint64_t used = 1; used <= lines; used++) {
				struct rr_slot_ring ring;
				rr_slot_ring_init(&ring, lines * LINE);
				ring.end = (1000 * lines + at + used) * LINE;
				ring.begin = (1000 * lines + at) * LINE;
				ring.first = 5000;
				ring.next = 5001;
				ring.claims[5000 % CLAIMS].end = ring.end;
				ring.claims[5000 % CLAIMS].serial = 7;
				for (uint64_t bytes = LINE; bytes <= lines * LINE; bytes += LINE) {
					uint64_t end = (at + used) % lines * LINE;
					uint64_t skip = end + bytes > lines * LINE ? lines * LINE - end : 0;
					bool fits = skip + bytes <= (lines - used) * LINE;
					struct rr_slot_ring copy = ring;
					assert(full(&copy, bytes) == !fits);
					if (fits)
						assert(held(&copy, bytes, 8) == (skip ? 0 : end));
				}
				rr_slot_release(&ring, 8);
				assert(ring.begin == ring.end && held(&ring, lines * LINE, 9) == 0);
			}
		}
	}
}

static void test_in_flight(void)
{
	for (uint64_t count = CLAIMS - 1; count <= CLAIMS + 1; count++) {
		struct rr_slot_ring ring;
		rr_slot_ring_init(&ring, (CLAIMS + 4) * LINE);
		uint64_t fit = count < CLAIMS ? count : CLAIMS;
		for (uint64_t i = 0; i < fit; i++)
			assert(held(&ring, 1, 2 * i) == i * LINE); /* others between them carry nothing here */
		assert(full(&ring, 1) == (count >= CLAIMS));
		for (uint64_t i = 0; i < fit; i++) {
			assert(ring.begin == i * LINE);
			rr_slot_release(&ring, 2 * i);
			assert(ring.begin == i * LINE);
			rr_slot_release(&ring, 2 * i + 1);
			assert(ring.begin == (i + 1) * LINE);
		}
	}
}

/* Who commits or aborts without a claim can't touch what is in flight, however often. */
static void test_without_claim(void)
{
	struct rr_slot_ring ring, before;
	struct rr_slot_claim none = {0};

	rr_slot_ring_init(&ring, 8 * LINE);
	held(&ring, LINE, 0);
	held(&ring, LINE, 100);
	before = ring;
	for (uint64_t serial = 1; serial < 200; serial++) {
		rr_slot_commit(&ring, &none, serial);
		rr_slot_abort(&ring, &none);
	}
	assert(memcmp(&ring, &before, sizeof(ring)) == 0);
	rr_slot_release(&ring, 64); /* and what is released of the others frees only the first */
	assert(ring.begin == LINE && ring.end == 2 * LINE);
	rr_slot_release(&ring, 5000); /* a reader may be ahead of what is committed */
	assert(ring.begin == ring.end);
}

static void test_abort(void)
{
	struct rr_slot_ring ring;
	struct rr_slot_claim first, second, third;

	rr_slot_ring_init(&ring, 4 * LINE);
	first = claim(&ring, LINE);
	second = claim(&ring, LINE);
	third = claim(&ring, LINE);
	rr_slot_release(&ring, UINT64_MAX / 2); /* open claims are not released by anything */
	assert(ring.begin == 0 && rr_slot_first(&ring) == 0);
	rr_slot_abort(&ring, &second);
	assert(ring.begin == 0 && ring.end == 3 * LINE); /* positions do not go back */
	rr_slot_commit(&ring, &third, 1);
	rr_slot_commit(&ring, &first, 0);
	assert(rr_slot_first(&ring) == 1);
	rr_slot_release(&ring, 1);
	assert(ring.begin == 2 * LINE); /* the aborted one goes with the one before it */
	rr_slot_release(&ring, 2);
	assert(ring.begin == ring.end);
	first = claim(&ring, LINE);
	rr_slot_abort(&ring, &first);
	assert(ring.begin == ring.end); /* the first of all is free at once */
}

static uint32_t draw(uint32_t below)
{
	return (uint32_t)rand() % below;
}

/* ---- a model ---- */

#define RING_LINES 23u

struct piece {
	struct rr_slot_claim claim;
	uint64_t offset, lines, serial;
	bool committed;
};

static struct piece pieces[4 * CLAIMS];
static uint32_t piece_count;
static int owner[RING_LINES];

static void give(uint32_t i, int value)
{
	for (uint64_t l = 0; l < pieces[i].lines; l++) {
		int *line = &owner[pieces[i].offset / LINE + l];
		assert(*line == !value);
		*line = value;
	}
}

static void forget(uint32_t i)
{
	give(i, 0);
	memmove(&pieces[i], &pieces[i + 1], (--piece_count - i) * sizeof(pieces[0]));
}

static void test_model(uint32_t seed, uint64_t start)
{
	struct rr_slot_ring ring;
	uint64_t serial = start, released = start;

	srand(seed);
	rr_slot_ring_init(&ring, RING_LINES * LINE);
	piece_count = 0;
	memset(owner, 0, sizeof(owner));
	for (uint32_t step = 0; step < 20000; step++) {
		uint32_t what = draw(10);
		if (what < 4) {
			struct piece *piece = &pieces[piece_count];
			uint64_t bytes = draw(draw(4) ? 2 * LINE : RING_LINES * LINE + 1);
			uint64_t lines = bytes ? (bytes + LINE - 1) / LINE : 1;
			if (!rr_slot_claim(&ring, bytes, &piece->claim))
				continue;
			piece->offset = piece->claim.offset;
			piece->lines = lines;
			piece->committed = false;
			assert(piece->offset + lines * LINE <= RING_LINES * LINE);
			give(piece_count++, 1);
		} else if (what < 7) {
			uint32_t i = 0;
			while (i < piece_count && pieces[i].committed)
				i++;
			if (i < piece_count && draw(8) == 0) {
				rr_slot_abort(&ring, &pieces[i].claim);
				forget(i);
			} else if (i < piece_count) {
				pieces[i].serial = serial;
				pieces[i].committed = true;
				rr_slot_commit(&ring, &pieces[i].claim, serial++);
			}
		} else if (what < 8) {
			serial += draw(70); /* transfers without payload */
		} else if (released != serial) {
			released += 1 + draw((uint32_t)(serial - released < 99 ? serial - released : 99));
			rr_slot_release(&ring, released);
			while (piece_count && pieces[0].committed && (int64_t)(released - pieces[0].serial) > 0)
				forget(0);
		}
		assert(ring.begin <= ring.end && ring.end - ring.begin <= RING_LINES * LINE);
	}
}

int main(void)
{
	test_borders();
	test_wrap();
	test_in_flight();
	test_without_claim();
	test_abort();
	for (uint32_t seed = 0; seed < 20; seed++)
		test_model(seed, seed % 2 ? UINT64_MAX - 3000 : seed);
	printf("ok\n");
	return 0;
}
