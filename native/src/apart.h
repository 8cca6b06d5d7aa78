/*
 * apart.h - do the readers of what is stored here share a cache with this core?
 *
 * Which stores are quicker depends on it (reduce_kernels.inc.h, past the caches), and where the system moves processes,
 * or the host virtual processors, it changes by the second. So it is looked at again and again: before such a place
 * is filled some of its lines, which its readers have read, are stored to and timed. Of several readers the farthest
 * shows: a store waits for all of them.
 *
 *	                            16 lines     128 KiB, stored + read: ordinary     past the caches
 *	shares a cache, EPYC 7003      80 ns                  11 us                      18 to 20 us
 *	shares a cache, EPYC 9004  30- 90 ns                  15 + 3                      3 + 8
 *	shares none, EPYC 7003    220-270 ns              36 to 50                       18 to 20
 *	shares none, EPYC 9004    180-350 ns                  58 + 8                      3 + 8
 *
 * The first few KiB are stored without a wait, in the core's store buffer: at 4 KiB the two ways take the same.
 *
 * Threads: the driver of the communicator only.
 */
#ifndef RR_APART_H
#define RR_APART_H

#include <stdbool.h>
#include <stdint.h>

#define RR_APART_BYTES_MIN (4u << 10) /* less is filled the ordinary way */
#define RR_APART_EVERY 8u	      /* places from one look to the next */
#define RR_APART_LINES 16u
#define RR_APART_NS 160u /* of those lines */

struct rr_apart {
	uint32_t places;  /* since the last look */
	uint32_t line_ps; /* found by the last look; 0: none yet */
	bool last, apart; /* what it said; two that agree are believed */
};

/*
 * `bytes` at `place` are about to be filled in; their contents are lost. Are they best filled past the caches, by what
 * is believed?
 */
bool rr_apart_look(struct rr_apart *state, void *place, uint32_t bytes);

#endif
