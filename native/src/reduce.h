/*
 * reduce.h - elementwise combination of vectors: the only arithmetic of the library.
 *
 * One pass over memory: every destination gets op(source 0, source 1, ...), taken in that order, then
 * the post-operation. With one source and no post-operation it is a copy of the bits. A destination may
 * be equal to a source (same address); otherwise no two regions overlap. Nothing needs more than the
 * dtype's own alignment, and unaligned addresses work too.
 *
 * Numbers (docs/NUMBERS.md has all of it). 16-bit floats are widened to float32, combined there and
 * rounded once (to nearest, ties to even). Integers wrap. min and max return NaN if any source is NaN,
 * and of equal values (-0 and +0) the earlier source's. The post-operation multiplies by `factor`: in
 * float64 for float64, in float32 (of the factor, too) for the other floats; integers have none. Every
 * level gives the bits of the scalar one, sign and payload of NaN apart.
 *
 * Speed. A pass streams: all sources and destinations at once, element by element, with ordinary
 * stores. Sums of (sources, destinations) = (2,1) (2,2) (3,1) (3,3) (4,1) (4,4) (8,1) (8,8), and any
 * operation on (2,1) (2,2), have loops with every pointer in a register; other counts load
 * each pointer every few registers. Copies avoid the `rep movsb` of large memcpy(), see reduce_kernels.inc.h.
 *
 * Threads: pure functions. rr_combine_lookup() may be called from any thread.
 */
#ifndef RR_REDUCE_H
#define RR_REDUCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rdmaring.h"

#define RR_DTYPE_COUNT 12u
#define RR_REDOP_COUNT 5u
#define RR_COMBINE_SOURCES_MAX 64u /* of one pass; the engine splits what is wider */
#define RR_COMBINE_TARGETS_MAX 65u /* of one pass with float32 in part; the others have no such bound */

enum rr_simd_level { /* what the machine and the compiler both have; higher is wider */
	RR_SIMD_SCALAR = 0,
	RR_SIMD_V3 = 1, /* AVX2, FMA off, F16C */
	RR_SIMD_V4 = 2  /* AVX-512 F/BW/VL/DQ */
};

struct rr_combine {
	void *const *dst;
	const void *const *src;
	uint32_t dst_count;
	uint32_t src_count;
	size_t count;  /* elements */
	uint64_t wide_sources; /* bit s: source s is float32; of wide passes only */
	bool wide;             /* the destinations are float32; likewise */
	bool post;     /* multiply the result by factor; ignored for integers */
	bool past_last; /* store the last destination past the caches: a hint; see reduce_kernels.inc.h */
	double factor;
	/* What the pass was looked up by: for devices that have no function of the CPU's. */
	uint8_t dtype; /* rr_dtype */
	uint8_t redop; /* rr_redop; with one source it may be any */
};

/* The pass for one dtype and operation; src_count is 1 or more, dst_count and count may be 0. */
typedef void (*rr_combine_fn)(const struct rr_combine *combine);

/*
 * The widest level this machine runs; RDMARING_SIMD=scalar|x86-64-v3|x86-64-v4, read once, lowers it. It
 * never raises it, and another text in it changes nothing.
 */
enum rr_simd_level rr_simd_level_best(void);
/*
 * NULL only for an invalid dtype or redop; a level above the best one gives the best one's. RR_AVG
 * combines as RR_SUM: its factor is the caller's.
 */
rr_combine_fn rr_combine_lookup(rr_dtype dtype, rr_redop redop, enum rr_simd_level level);

/*
 * Sums of 16-bit floats of which some sources, or the destinations, are float32 (reduce_wide.c): added in float32,
 * rounded once if the destinations are narrow. NULL where there is no such thing.
 */
rr_combine_fn rr_combine_lookup_wide(rr_dtype dtype, rr_redop redop);

size_t rr_dtype_bytes(rr_dtype dtype);
bool rr_dtype_is_float(rr_dtype dtype);
const char *rr_dtype_name(rr_dtype dtype);
const char *rr_redop_name(rr_redop redop);

#endif
