/*
 * apart.h - do the readers of what is stored here share a cache with this core?
 *
 * Which stores are quicker depends on it (reduce_kernels.inc.h, past the caches), and where the system moves processes,
 * or the host virtual processors, it changes by the second. So it is probed again and again: lines of the segment that
 * serve for nothing else (struct rr_probe in page.h), and that their readers have read since they were last written,
 * are stored to and timed. A place that carries data is never stored to for this. Of several readers the farthest shows:
 * a store waits for all of them.
 *
 *	                            16 lines     128 KiB, stored + read: ordinary     past the caches
 *	shares a cache, EPYC 7003      80 ns                  11 us                      18 to 20 us
 *	shares a cache, EPYC 9004  30- 90 ns                  15 + 3                      3 + 8
 *	shares none, EPYC 7003    220-270 ns              36 to 50                       18 to 20
 *	shares none, EPYC 9004    180-350 ns                  58 + 8                      3 + 8
 *	shares none, Xeon 4th     140-270 ns                   8 + 11                    15 + 13
 *
 * The first few KiB are stored without a wait, in the core's store buffer: at 4 KiB the two ways take the same. What is
 * far on one machine is near on another, whose stores past the caches are slower (4.6 ns a line on the Xeon, 1.5 on the
 * EPYC 9004): readers are far only where the lines also take RR_APART_TIMES as long as they would past the caches.
 *
 *	writer   stores the lines, timed, then asked = n                    ... asks again only once n was answered
 *	reader   has used what the writer had for it: sees n, loads the lines, then answers n
 *
 * Threads: the driver of the communicator only.
 */
#ifndef RR_APART_H
#define RR_APART_H

#include <stdbool.h>
#include <stdint.h>

struct rr_shm;

#define RR_APART_BYTES_MIN (4u << 10) /* less is filled the ordinary way */
#define RR_APART_EVERY 8u	      /* places from one probe to the next */
#define RR_APART_TIMES 4u
#define RR_APART_NS 160u	      /* of its lines: less is near whatever stores past the caches take */
#define RR_APART_VOTES 5u	      /* probes of which most are believed: single ones are off by an interrupt or a lucky line */

/* What a rank believes of one reader, or of those that read in common. */
struct rr_apart {
	uint32_t places;  /* since the last probe */
	uint32_t line_ps; /* found by the last probe; 0: none yet */
	uint32_t votes;	  /* a bit for each probe, the newest lowest: far */
	bool apart;	  /* what most of the last RR_APART_VOTES say */
};

/* Once, when the ranks of the node are known: what "far" is here. */
void rr_apart_begin(struct rr_shm *shm);
/* `bytes` are about to be filled in for rank `peer` of this node. Are they best filled past the caches, by what is believed? */
bool rr_apart_look(struct rr_shm *shm, int32_t peer, uint32_t bytes);
/* The same of what several ranks of this node will read. */
bool rr_apart_look_common(struct rr_shm *shm, uint32_t bytes);
/* `bytes` that rank `peer` had filled in for us, or for several, have been read here. */
void rr_apart_answer(struct rr_shm *shm, int32_t peer, bool common, uint32_t bytes);

#endif
