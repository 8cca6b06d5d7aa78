/*
 * reduce_levels.h - what the three builds of the kernels share. Private to reduce*.c.
 *
 * reduce_scalar.c, reduce_v3.c and reduce_v4.c each include a header of operations on one register
 * (reduce_ops_*.h) and then reduce_kernels.inc.h, which makes from it one function for each dtype and
 * operation. Targets are attributes of functions, so that the build needs no flags for single files
 * and one library runs on every machine.
 */
#ifndef RR_REDUCE_LEVELS_H
#define RR_REDUCE_LEVELS_H

#include "reduce.h"

#define RR_COMBINE_OP_COUNT 4u /* RR_AVG combines as RR_SUM */

#if defined(__x86_64__) && (!defined(__clang__) || __clang_major__ >= 17) /* older ones cannot ask the CPU for F16C */
#define RR_HAVE_X86_LEVELS 1
#else
#define RR_HAVE_X86_LEVELS 0
#endif

typedef rr_combine_fn rr_combine_table[RR_DTYPE_COUNT][RR_COMBINE_OP_COUNT];

extern const rr_combine_table rr_combine_scalar;
#if RR_HAVE_X86_LEVELS
extern const rr_combine_table rr_combine_v3;
extern const rr_combine_table rr_combine_v4;
#endif

/* The source to each destination by memcpy. bytes is of the vector. */
void rr_combine_memcpy(const struct rr_combine *combine, size_t bytes);

#endif
