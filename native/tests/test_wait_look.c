/* test_wait_look.c - on a loaded machine a yield takes long: a waiting rank looks around in time all the same. */
#define _GNU_SOURCE
#include <assert.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "wait.h"

#define LOAD_NS 5000000 /* others run for so long each time */
#define STEPS_MAX 64

static int loaded;

/* Instead of libc's. */
int sched_yield(void)
{
	struct timespec others = {.tv_nsec = LOAD_NS};

	return loaded ? nanosleep(&others, NULL) : 0;
}

static int steps_to_a_look(struct rr_wait *wait, struct rr_page *page)
{
	int steps = 1;

	while (!rr_wait_step(wait, page) && steps < STEPS_MAX)
		steps++;
	return steps;
}

int main(void)
{
	struct rr_page *page = aligned_alloc(RR_CACHE_LINE, sizeof(*page));
	struct rr_spin spin = {0};
	struct rr_wait wait;

	assert(page);
	memset(page, 0, sizeof(*page));
	loaded = 1;
	rr_wait_start(&wait, &spin, 400, -1);
	for (int look = 0; look < 5; look++)
		assert(steps_to_a_look(&wait, page) <= 6);
	assert(steps_to_a_look(&wait, page) == 1); /* it has seen that each takes long, */
	assert(wait.crowded && wait.sleepy);       /* and sleeps */
	rr_wait_stop(&wait, page);
	loaded = 0;
	rr_wait_start(&wait, &spin, 400, -1); /* short ones are not timed one by one */
	for (int step = 0; step < 4; step++)
		rr_wait_step(&wait, page);
	assert(wait.yields_a_clock > 1 && !wait.crowded && !wait.sleepy);
	free(page);
	printf("ok\n");
	return 0;
}
