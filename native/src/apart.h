/*
 * apart.h - does the reader of a slot share a cache with this core?
 *
 * Which stores fill a slot quicker depends on it (reduce_kernels.inc.h, past the caches), and where the system
 * moves processes, or the host virtual processors, it changes by the second. So it is looked at again and again: before
 * a slot is filled some of its lines, which its reader has read, are stored to and timed.
 *
 *	16 lines, AMD EPYC:  80 ns where cores share a cache, 220 to 270 ns where they do not
 *
 * Threads: the driver of the communicator only.
 */
#ifndef RR_APART_H
#define RR_APART_H

#include <stdbool.h>
#include <stdint.h>

#define RR_APART_BYTES_MIN (16u << 10) /* smaller slots are filled the ordinary way */
#define RR_APART_EVERY 8u	       /* slots from one look to the next */
#define RR_APART_LINES 16u
#define RR_APART_NS 160u /* of those lines */

struct rr_apart {
	uint32_t slots;	  /* since the last look */
	uint32_t line_ps; /* found by the last look; 0: none yet */
	bool last;	  /* what it said: two that agree are believed */
};

/* A slot of `bytes` at `place` is about to be filled in; its contents are lost. *apart: what is believed. */
void rr_apart_look(struct rr_apart *state, void *place, uint32_t bytes, bool *apart);

#endif
