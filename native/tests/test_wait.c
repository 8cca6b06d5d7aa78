/* test_wait.c - how long a wait spins before it yields. */
#include "wait.h"

#include <stdio.h>
#include <stdlib.h>

#define PAUSES 3u
#define VAIN 8u	  /* spins in a row, as wait.c has it */
#define SPARED 16u /* then one wait of so many spins */

static int failures;

static void expect(bool holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "FAILED: %s\n", what);
	failures++;
}

/* One wait of `passes` passes in which nothing moved. */
static void wait_for(struct rr_wait *wait, struct rr_page *page, uint32_t passes)
{
	for (uint32_t i = 0; i < passes; i++)
		rr_wait_step(wait, page);
	rr_wait_moved(wait, page);
}

static void test_spins_that_are_of_use_go_on(struct rr_page *page)
{
	struct rr_spin spin = {.pauses = PAUSES};
	struct rr_wait wait;

	rr_wait_start(&wait, &spin, 0, -1);
	for (uint32_t i = 0; i < 100; i++) {
		wait_for(&wait, page, i % VAIN == 0 ? 1 : PAUSES + 1); /* never so many in vain in a row */
		expect(wait.pauses == PAUSES, "a wait spins while some of the last ones ended by it");
	}
}

static void test_spins_in_vain_are_spared(struct rr_page *page)
{
	struct rr_spin spin = {.pauses = PAUSES};
	struct rr_wait wait;
	uint32_t spun = 0;

	rr_wait_start(&wait, &spin, 0, -1);
	for (uint32_t i = 0; i < VAIN; i++) {
		expect(wait.pauses == PAUSES, "it spins until that was in vain often enough");
		wait_for(&wait, page, PAUSES + 1);
	}
	for (uint32_t i = 0; i < 10 * SPARED; i++) {
		spun += wait.pauses == PAUSES;
		wait_for(&wait, page, PAUSES + 1);
	}
	expect(spun == 10, "one wait of so many tries again");
	while (wait.pauses == 0)
		wait_for(&wait, page, 1);
	wait_for(&wait, page, PAUSES);
	expect(wait.pauses == PAUSES && spin.vain == 0, "a spin that was of use is believed at once");
}

static void test_other_waits_know(struct rr_page *page)
{
	struct rr_spin spin = {.pauses = PAUSES};
	struct rr_wait wait;

	for (uint32_t i = 0; i < VAIN; i++) {
		rr_wait_start(&wait, &spin, 0, -1);
		for (uint32_t pass = 0; pass <= PAUSES; pass++)
			rr_wait_step(&wait, page);
		rr_wait_stop(&wait, page); /* what it waited for came with the last pass */
	}
	rr_wait_start(&wait, &spin, 0, -1);
	expect(wait.pauses == 0, "the next call's wait begins with what this one learnt");
	expect(rr_spin_pauses(&(struct rr_spin){0}) == 0, "ranks that share processors never spin");
}

int main(void)
{
	struct rr_page *page = aligned_alloc(4096, (sizeof(*page) + 4095) / 4096 * 4096);

	if (!page)
		return 1;
	*page = (struct rr_page){0};
	test_spins_that_are_of_use_go_on(page);
	test_spins_in_vain_are_spared(page);
	test_other_waits_know(page);
	free(page);
	return failures != 0;
}
