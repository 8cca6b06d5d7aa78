/*
 * reduce.c - names and sizes of data types, the choice of a level, and copies.
 */
#include "reduce.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "reduce_levels.h"

#define RR_LEVEL_UNKNOWN (-1)
#define RR_COPY_BLOCK_BYTES 16384u /* stays in the first-level cache from one destination to the next */

static enum rr_simd_level rr_level_of_machine(void)
{
	unsigned found = RR_HAVE_X86_LEVELS ? rr_cpu_features() : 0;

	return found & RR_CPU_V4 ? RR_SIMD_V4 : found & RR_CPU_V3 ? RR_SIMD_V3 : RR_SIMD_SCALAR;
}

/* A name that is none of ours lowers nothing. */
static enum rr_simd_level rr_level_of_environment(void)
{
	const char *name = getenv("RDMARING_SIMD");

	if (name && strcmp(name, "scalar") == 0)
		return RR_SIMD_SCALAR;
	if (name && strcmp(name, "x86-64-v3") == 0)
		return RR_SIMD_V3;
	return RR_SIMD_V4;
}

enum rr_simd_level rr_simd_level_best(void)
{
	/* Threads that find it unknown together compute the same value. */
	static _Atomic int known = RR_LEVEL_UNKNOWN;
	int best = atomic_load_explicit(&known, memory_order_relaxed);

	if (best == RR_LEVEL_UNKNOWN) {
		enum rr_simd_level machine = rr_level_of_machine();
		enum rr_simd_level wanted = rr_level_of_environment();

		best = wanted < machine ? (int)wanted : (int)machine;
		atomic_store_explicit(&known, best, memory_order_relaxed);
	}
	return (enum rr_simd_level)best;
}

rr_combine_fn rr_combine_lookup(rr_dtype dtype, rr_redop redop, enum rr_simd_level level)
{
	enum rr_simd_level best = rr_simd_level_best();
	unsigned int op = redop == RR_AVG ? RR_SUM : redop;

	if ((unsigned int)dtype >= RR_DTYPE_COUNT || op >= RR_COMBINE_OP_COUNT)
		return NULL;
#if RR_HAVE_X86_LEVELS
	if (level > best)
		level = best;
	if (level == RR_SIMD_V4)
		return rr_combine_v4[dtype][op];
	if (level == RR_SIMD_V3)
		return rr_combine_v3[dtype][op];
#else
	(void)level;
	(void)best;
#endif
	return rr_combine_scalar[dtype][op];
}

void rr_combine_memcpy(const struct rr_combine *combine, size_t bytes)
{
	const unsigned char *src = combine->src[0];
	size_t block = combine->dst_count == 1 ? bytes : RR_COPY_BLOCK_BYTES;

	for (size_t at = 0; at < bytes; at += block) {
		size_t now = bytes - at < block ? bytes - at : block;

		for (uint32_t d = 0; d < combine->dst_count; d++) {
			if (combine->dst[d] != src)
				memcpy((unsigned char *)combine->dst[d] + at, src + at, now);
		}
	}
}

size_t rr_dtype_bytes(rr_dtype dtype)
{
	switch (dtype) {
	case RR_INT8:
	case RR_UINT8:
		return 1;
	case RR_FLOAT16:
	case RR_BFLOAT16:
	case RR_INT16:
	case RR_UINT16:
		return 2;
	case RR_FLOAT32:
	case RR_INT32:
	case RR_UINT32:
		return 4;
	case RR_FLOAT64:
	case RR_INT64:
	case RR_UINT64:
		return 8;
	}
	return 0;
}

bool rr_dtype_is_float(rr_dtype dtype)
{
	return dtype == RR_FLOAT32 || dtype == RR_FLOAT64 || dtype == RR_FLOAT16 || dtype == RR_BFLOAT16;
}

const char *rr_dtype_name(rr_dtype dtype)
{
	switch (dtype) {
	case RR_FLOAT32:  return "float32";
	case RR_FLOAT64:  return "float64";
	case RR_FLOAT16:  return "float16";
	case RR_BFLOAT16: return "bfloat16";
	case RR_INT8:     return "int8";
	case RR_INT16:    return "int16";
	case RR_INT32:    return "int32";
	case RR_INT64:    return "int64";
	case RR_UINT8:    return "uint8";
	case RR_UINT16:   return "uint16";
	case RR_UINT32:   return "uint32";
	case RR_UINT64:   return "uint64";
	}
	return "invalid";
}

const char *rr_redop_name(rr_redop redop)
{
	switch (redop) {
	case RR_SUM:  return "sum";
	case RR_PROD: return "prod";
	case RR_MIN:  return "min";
	case RR_MAX:  return "max";
	case RR_AVG:  return "avg";
	}
	return "invalid";
}
