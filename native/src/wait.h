/*
 * wait.h - how a driver waits: a bounded spin, then yields, then sleep.
 *
 * Measured (docs/decisions): spinning alone loses milliseconds beside a busy neighbour, sleeping early
 * costs tens of microseconds an operation, yielding without end halves both under load, and yielding to ranks of other
 * sessions is no yielding: 3 ms an operation of 8 ranks on 2 processors instead of 0.02.
 */
#ifndef RR_WAIT_H
#define RR_WAIT_H

#include <stdbool.h>
#include <stdint.h>

#include "page.h"

struct rr_wait {
	uint32_t idle;   /* passes since something moved */
	uint32_t pauses; /* of them, spent spinning */
	uint32_t yields; /* and then yielding */
	uint32_t vain;   /* yields in a row that let nobody run */
	uint32_t vain_max; /* of them before sleep; UINT32_MAX: not counted */
	int sleeper;     /* an epoll to sleep on, or -1: the page's bell */
	bool awake;      /* a device works for us, and nobody wakes us when it has ended: no sleep */
	bool sleepy;     /* the page says "sleeping": one more pass, then sleep */
	uint32_t bell; /* before the last pass */
	uint64_t looked_ns;
};

/* Pauses before the first yield: many if each rank has a CPU of its own, few if not. */
uint32_t rr_wait_pauses(int32_t ranks_here);
/* yields: 0 for the default. sleeper: an epoll that tells of all that may come, where ranks are on other nodes; else -1. */
void rr_wait_start(struct rr_wait *wait, uint32_t pauses, uint32_t yields, int sleeper);
/* Something moved. */
void rr_wait_moved(struct rr_wait *wait, struct rr_page *page);
/* Nothing moved: pass a moment. True when it is time to look around (deaths, time-outs). */
bool rr_wait_step(struct rr_wait *wait, struct rr_page *page);
/* Leaving. */
void rr_wait_stop(struct rr_wait *wait, struct rr_page *page);

#endif
