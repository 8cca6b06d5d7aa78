/*
 * apart.h - how far is the core that reads what is stored here?
 *
 * Which stores are quicker depends on it (reduce_kernels.inc.h, past the caches), and where the system moves processes,
 * or the host virtual processors, it changes by the second. So it is looked at again and again: before such a place
 * is filled some of its lines, which its readers have read, are stored to and timed. Of several readers the farthest
 * shows: a store waits for all of them.
 *
 *	                            16 lines     128 KiB stored and read: ordinary    past the caches
 *	the same core                  30 ns
 *	shares a cache, EPYC 7003      80 ns                 11 us                       18 to 20 us
 *	shares a cache, EPYC 9004     140 ns                 15 +  3                      3 + 8
 *	shares none, EPYC 7003    220-270 ns              36 to 50                       18 to 20
 *	shares none, EPYC 9004        450 ns                 58 +  8                      3 + 8
 *
 * Little is stored without a wait, in the core's store buffer. From 4 KiB on (shares none) and 32 KiB (another core
 * nearby) stores past the caches are quicker, the readers' loads counted in.
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
#define RR_APART_OTHER_NS 110u /* of those lines */
#define RR_APART_FAR_NS 190u

enum rr_apart_far { RR_APART_NOT = 0, RR_APART_OTHER = 1, RR_APART_FAR = 2 };

struct rr_apart {
	uint32_t slots;	  /* since the last look */
	uint32_t line_ps; /* found by the last look; 0: none yet */
	enum rr_apart_far last, far; /* what it said; two that agree are believed */
};

/*
 * `bytes` at `place` are about to be filled in; their contents are lost. Are they best filled past the caches, by what
 * is believed?
 */
bool rr_apart_look(struct rr_apart *state, void *place, uint32_t bytes);

#endif
