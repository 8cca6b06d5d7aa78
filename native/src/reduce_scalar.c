/*
 * reduce_scalar.c - the level that defines the bits of all others: element by element, in plain C.
 */
#if defined(__GNUC__) && !defined(__clang__)
/* The compiler's own vectors would be right too, but then nothing here would check them. */
#pragma GCC optimize("no-tree-vectorize", "no-tree-slp-vectorize")
#endif

#define RR_TABLE rr_combine_scalar

#include "reduce_ops_scalar.h"

#include "reduce_kernels.inc.h"
