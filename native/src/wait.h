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

/*
 * Does spinning pay? It does where the peers run meanwhile, and not where one of them stands in this processor's
 * queue because something else has the other one: then spinning is what it waits for. So after some spins in vain, one
 * after another, waits begin with yields, and now and then one tries again. Threads: the driver.
 */
struct rr_spin {
	uint32_t pauses; /* of a spin, where it pays */
	uint32_t vain;	 /* spins in a row that ended without what they were for */
	uint32_t spared; /* waits that began with yields since then */
};

struct rr_wait {
	struct rr_spin *spin;
	uint32_t idle;   /* passes since something moved */
	uint32_t pauses; /* of them, spent spinning */
	uint32_t yields; /* and then yielding */
	uint32_t vain;   /* yields in a row that let nobody run */
	uint32_t vain_max; /* of them before sleep; UINT32_MAX: not counted */
	int sleeper;     /* an epoll to sleep on, or -1: the page's bell */
	bool awake;      /* a device works for us, and nobody wakes us when it has ended: no sleep */
	bool crowded;    /* others that compute share the processor */
	bool sleepy;     /* the page says "sleeping": one more pass, then sleep */
	uint32_t bell; /* before the last pass */
	uint64_t looked_ns;
	uint32_t unclocked, yields_a_clock; /* yields since the clock was read; after so many it is read again */
	uint64_t clock_ns; /* when a yielding wait read it last; 0: not yet */
};

/* Pauses before the first yield: many if each rank has a CPU of its own, few if not. */
uint32_t rr_wait_pauses(int32_t ranks_here);
/* Pauses that the next wait begins with. */
uint32_t rr_spin_pauses(struct rr_spin *spin);
/* A wait that began with pauses is over; within: it ended before they did. */
void rr_spin_ended(struct rr_spin *spin, bool within);
/* yields: 0 for the default. sleeper: an epoll that tells of all that may come, where ranks are on other nodes; else -1. */
void rr_wait_start(struct rr_wait *wait, struct rr_spin *spin, uint32_t yields, int sleeper);
/* Something moved. */
void rr_wait_moved(struct rr_wait *wait, struct rr_page *page);
/* Nothing moved: pass a moment. True when it is time to look around (deaths, time-outs). */
bool rr_wait_step(struct rr_wait *wait, struct rr_page *page);
/* Leaving. */
void rr_wait_stop(struct rr_wait *wait, struct rr_page *page);

#endif
