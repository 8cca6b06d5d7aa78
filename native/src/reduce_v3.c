/*
 * reduce_v3.c - 32-byte registers: AVX2 and F16C, part of x86-64-v3.
 */
#include "reduce_levels.h"

#if RR_HAVE_X86_LEVELS

#define RR_TABLE rr_combine_v3
#define RR_VECTOR_BYTES 32

#include "reduce_ops_x86.h"

#include "reduce_kernels.inc.h"

#endif
