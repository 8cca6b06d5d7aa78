/*
 * reduce_v4.c - 64-byte registers: AVX-512 F, BW, VL and DQ, part of x86-64-v4.
 */
#include "reduce_levels.h"

#if RR_HAVE_X86_LEVELS

#define RR_TABLE rr_combine_v4
#define RR_VECTOR_BYTES 64

#include "reduce_ops_x86.h"

#include "reduce_kernels.inc.h"

#endif
