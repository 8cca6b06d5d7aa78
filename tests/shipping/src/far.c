/* far.c - ranks of which each is a node of its own, in one process: their pages, hellos and control connections. */
#include <stdlib.h>
#include <string.h>

#include "far.h"
#include "order.h"
#include "shipping.h"
#include "status.h"

struct shipping_far {
	int32_t world;
	int32_t node[SHIPPING_WORLD_MAX];
	struct rr_hello hellos[SHIPPING_WORLD_MAX];
	struct rr_page *pages[SHIPPING_WORLD_MAX];
	struct rr_far *far[SHIPPING_WORLD_MAX];
};

static rr_status prepare(struct shipping_far *far, int32_t r)
{
	rr_hello_fill(&far->hellos[r]);
	memcpy(far->hellos[r].token, "of this world", sizeof("of this world"));
	far->node[r] = r;
	if (posix_memalign((void **)&far->pages[r], 4096, sizeof(struct rr_page)) != 0) {
		far->pages[r] = NULL;
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for a page");
	}
	memset(far->pages[r], 0, sizeof(struct rr_page));
	rr_note32(&far->pages[r]->state, RR_PAGE_RUNNING);
	return rr_far_prepare(r, far->world, &far->hellos[r], &far->far[r]);
}

rr_status shipping_far_open(int32_t world, struct shipping_far **out)
{
	static const uint8_t key[RR_KEY_BYTES] = "a key";
	struct shipping_far *far = calloc(1, sizeof(*far));
	rr_status status = RR_OK;

	*out = far;
	if (!far)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for far ranks");
	far->world = world;
	for (int32_t r = 0; r < world && status == RR_OK; r++)
		status = prepare(far, r);
	for (int32_t r = 0; r < world && status == RR_OK; r++)
		status = rr_far_start(far->far[r], far->hellos, far->node, key, far->pages[r]);
	return status;
}

struct rr_far *shipping_far_of(struct shipping_far *far, int32_t r)
{
	return far->far[r];
}

struct rr_hello *shipping_far_hello(struct shipping_far *far, int32_t r)
{
	return &far->hellos[r];
}

void shipping_far_end(struct shipping_far *far, int32_t r)
{
	rr_publish32(&far->pages[r]->state, RR_PAGE_CLOSED);
	if (far->far[r])
		rr_far_tell_end(far->far[r]);
}

void shipping_far_close(struct shipping_far *far)
{
	for (int32_t r = 0; far && r < far->world; r++) {
		if (far->far[r])
			rr_far_close(far->far[r]);
		free(far->pages[r]);
	}
	free(far);
}
