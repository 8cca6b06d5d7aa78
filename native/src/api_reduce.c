/*
 * api_reduce.c - reductions by themselves, for callers that hold all sources in one process.
 */
#include "rdmaring.h"

#include "reduce.h"
#include "status.h"

const char *rr_simd_name(void)
{
	switch (rr_simd_level_best()) {
	case RR_SIMD_SCALAR: return "scalar";
	case RR_SIMD_V3:     return "x86-64-v3";
	case RR_SIMD_V4:     return "x86-64-v4";
	}
	return "invalid";
}

static rr_status rr_check_operation(int32_t dtype, int32_t redop, uint32_t source_count, double scale,
				    int32_t level)
{
	if (dtype < 0 || dtype >= (int32_t)RR_DTYPE_COUNT)
		return rr_fail(RR_ERR_ARGUMENT, "dtype is %d; accepted are 0 to %u (rr_dtype)", dtype,
			       RR_DTYPE_COUNT - 1);
	if (redop < 0 || redop >= (int32_t)RR_REDOP_COUNT)
		return rr_fail(RR_ERR_ARGUMENT, "redop is %d; accepted are 0 to %u (rr_redop)", redop,
			       RR_REDOP_COUNT - 1);
	if (!rr_dtype_is_float((rr_dtype)dtype) && redop == RR_AVG)
		return rr_fail(RR_ERR_ARGUMENT, "avg of %s; it is for floating types only",
			       rr_dtype_name((rr_dtype)dtype));
	if (!rr_dtype_is_float((rr_dtype)dtype) && scale != 1.0)
		return rr_fail(RR_ERR_ARGUMENT, "scale is %g for %s; integers accept 1 only", scale,
			       rr_dtype_name((rr_dtype)dtype));
	if (source_count == 0 || source_count > RR_COMBINE_SOURCES_MAX)
		return rr_fail(RR_ERR_ARGUMENT, "source_count is %u; accepted are 1 to %u", source_count,
			       RR_COMBINE_SOURCES_MAX);
	if (level < 0)
		return rr_fail(RR_ERR_ARGUMENT, "level is %d; accepted are 0 (scalar) and more", level);
	return RR_OK;
}

static rr_status rr_check_vectors(const void *dst, const void *const *sources, uint32_t source_count,
				  uint64_t count, size_t element_bytes)
{
	if (count == 0)
		return RR_OK;
	if (count > SIZE_MAX / element_bytes)
		return rr_fail(RR_ERR_ARGUMENT, "count is %llu; that many do not fit an address space",
			       (unsigned long long)count);
	if (!dst || !sources)
		return rr_fail(RR_ERR_ARGUMENT, "%s is NULL", dst ? "sources" : "dst");

	size_t bytes = (size_t)count * element_bytes;

	for (uint32_t s = 0; s < source_count; s++) {
		uintptr_t to = (uintptr_t)dst, from = (uintptr_t)sources[s];

		if (!sources[s])
			return rr_fail(RR_ERR_ARGUMENT, "sources[%u] is NULL", s);
		if (from != to && (from < to ? to - from : from - to) < bytes)
			return rr_fail(RR_ERR_ARGUMENT,
				       "dst overlaps sources[%u] by a part; it may equal it or lie apart", s);
	}
	return RR_OK;
}

/* The sources stand for the ranks, so avg divides by their number. */
rr_status rr_reduce_apply(int32_t dtype, int32_t redop, void *dst, const void *const *sources,
			  uint32_t source_count, uint64_t count, double scale, int32_t level)
{
	rr_status status = rr_check_operation(dtype, redop, source_count, scale, level);

	if (status == RR_OK)
		status = rr_check_vectors(dst, sources, source_count, count,
					  rr_dtype_bytes((rr_dtype)dtype));
	if (status != RR_OK || count == 0)
		return status;

	double factor = redop == RR_AVG ? scale / source_count : scale;
	struct rr_combine combine = {
		.dst = &dst,
		.src = sources,
		.dst_count = 1,
		.src_count = source_count,
		.count = (size_t)count,
		.post = factor != 1.0,
		.factor = factor,
	};
	enum rr_simd_level chosen = level < RR_SIMD_V4 ? (enum rr_simd_level)level : RR_SIMD_V4;

	rr_combine_lookup((rr_dtype)dtype, (rr_redop)redop, chosen)(&combine);
	return RR_OK;
}
