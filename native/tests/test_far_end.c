/*
 * test_far_end.c - a rank closes its communicator, or fails, while a connection of it is being proven: the other end, which
 * may have it up by then, hears why it ends.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "far_inside.h"
#include "order.h"
#include "status.h"

#define STEPS_MAX 2000

static const int32_t node[2] = {0, 1};
static const uint8_t key[RR_KEY_BYTES] = "a key";
static const struct rr_edge_ops nobody;

struct end {
	struct rr_far *far;
	struct rr_page page;
};

static void look(struct end *end)
{
	struct timespec nap = {.tv_nsec = 1000000};

	rr_far_look(end->far);
	nanosleep(&nap, NULL);
}

static void make(struct end ends[2])
{
	static struct rr_hello hellos[2];
	rr_status status;

	for (int32_t r = 0; r < 2; r++) {
		memset(&ends[r].page, 0, sizeof(ends[r].page));
		rr_note32(&ends[r].page.state, RR_PAGE_RUNNING);
		rr_hello_fill(&hellos[r]);
		memcpy(hellos[r].token, "token", 6);
		status = rr_far_prepare(r, 2, &hellos[r], &ends[r].far);
		assert(status == RR_OK);
	}
	for (int32_t r = 0; r < 2; r++) {
		status = rr_far_start(ends[r].far, hellos, node, key, &ends[r].page);
		assert(status == RR_OK);
		rr_far_serve(ends[r].far, 1 - r, &nobody, NULL, 0, false);
	}
}

static enum rr_pending_step step_of(const struct rr_far *far)
{
	for (uint32_t i = 0; i < RR_FAR_PENDING_MAX; i++)
		if (far->pending[i].step != RR_PENDING_FREE)
			return far->pending[i].step;
	return RR_PENDING_FREE;
}

/* Rank 0 has proven itself and not read the welcome; rank 1 has the edge up. */
static void join_half(struct end ends[2])
{
	int steps = 0;
	rr_status status = rr_far_want(ends[0].far, 1, 0);

	assert(status == RR_OK);
	while (step_of(ends[0].far) != RR_PENDING_WELCOME && steps++ < STEPS_MAX) {
		look(&ends[1]);
		look(&ends[0]);
	}
	while (rr_far_state(ends[1].far, 0) != RR_EDGE_UP && steps++ < STEPS_MAX)
		look(&ends[1]);
	assert(rr_far_state(ends[0].far, 1) == RR_EDGE_JOINING && rr_far_state(ends[1].far, 0) == RR_EDGE_UP);
}

static void test_end(enum rr_page_state state)
{
	struct end *ends = calloc(2, sizeof(*ends));
	const struct rr_page *told;

	assert(ends);
	make(ends);
	join_half(ends);
	ends[0].page.error.status = RR_ERR_TIMEOUT;
	rr_publish32(&ends[0].page.state, (uint32_t)state);
	rr_far_tell_end(ends[0].far);
	rr_far_close(ends[0].far);
	for (int steps = 0; rr_far_state(ends[1].far, 0) == RR_EDGE_UP && steps < STEPS_MAX; steps++)
		look(&ends[1]);
	told = rr_far_page(ends[1].far, 0);
	assert(rr_far_state(ends[1].far, 0) == RR_EDGE_ENDED);
	assert(rr_own32(&told->state) == (uint32_t)state);
	assert(rr_far_life(ends[1].far, 0) == RR_LIFE_UNKNOWN); /* not ended */
	assert(state != RR_PAGE_FAILED || told->error.status == RR_ERR_TIMEOUT);
	rr_far_close(ends[1].far);
	free(ends);
}

int main(void)
{
	test_end(RR_PAGE_CLOSED);
	test_end(RR_PAGE_FAILED);
	printf("ok\n");
	return 0;
}
