/*
 * reduce_wide.c - sums of 16-bit floats of which some parts are float32: partial sums on their way.
 *
 * By blocks that stay in the first-level cache: narrow sources are widened, the float32 kernels add, and narrow
 * destinations get the rounded block. So the bits are those of the float32 kernels and of one rounding.
 */
#include <string.h>

#include "reduce_ops_scalar.h"

#if RR_HAVE_X86_LEVELS
#include <immintrin.h>
#endif

#define RR_BLOCK 1024u /* elements */

typedef void (*rr_widen_fn)(const uint16_t *from, float *to, size_t count);
typedef void (*rr_narrow_fn)(const float *from, uint16_t *to, size_t count);

struct rr_wide_kind {
	rr_widen_fn widen;
	rr_narrow_fn narrow;
};

static void half_widen(const uint16_t *from, float *to, size_t count)
{
	for (size_t i = 0; i < count; i++)
		to[i] = rr_half_to_float(from[i]);
}

static void half_narrow(const float *from, uint16_t *to, size_t count)
{
	for (size_t i = 0; i < count; i++)
		to[i] = rr_float_to_half(from[i]);
}

static void bfloat_widen(const uint16_t *from, float *to, size_t count)
{
	for (size_t i = 0; i < count; i++)
		to[i] = rr_bfloat_to_float(from[i]);
}

static void bfloat_narrow(const float *from, uint16_t *to, size_t count)
{
	for (size_t i = 0; i < count; i++)
		to[i] = rr_float_to_bfloat(from[i]);
}

static const struct rr_wide_kind half_plain = {half_widen, half_narrow};
static const struct rr_wide_kind bfloat_plain = {bfloat_widen, bfloat_narrow};

#if RR_HAVE_X86_LEVELS
#define RR_F16C __attribute__((target("avx2,f16c")))
#define RR_EIGHT 8u

RR_F16C static void half_widen_f16c(const uint16_t *from, float *to, size_t count)
{
	size_t i = 0;

	for (; i + RR_EIGHT <= count; i += RR_EIGHT)
		_mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(from + i))));
	half_widen(from + i, to + i, count - i);
}

RR_F16C static void half_narrow_f16c(const float *from, uint16_t *to, size_t count)
{
	size_t i = 0;

	for (; i + RR_EIGHT <= count; i += RR_EIGHT)
		_mm_storeu_si128((__m128i *)(void *)(to + i),
				 _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
	half_narrow(from + i, to + i, count - i);
}

RR_F16C static void bfloat_widen_avx2(const uint16_t *from, float *to, size_t count)
{
	size_t i = 0;

	for (; i + RR_EIGHT <= count; i += RR_EIGHT) {
		__m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(from + i)));
		_mm256_storeu_si256((__m256i *)(void *)(to + i), _mm256_slli_epi32(bits, 16));
	}
	bfloat_widen(from + i, to + i, count - i);
}

RR_F16C static void bfloat_narrow_avx2(const float *from, uint16_t *to, size_t count)
{
	const __m256i most = _mm256_set1_epi32(0x7fff), one = _mm256_set1_epi32(1), quiet = _mm256_set1_epi32(0x40);
	size_t i = 0;

	for (; i + RR_EIGHT <= count; i += RR_EIGHT) {
		__m256 value = _mm256_loadu_ps(from + i);
		__m256i bits = _mm256_castps_si256(value), upper = _mm256_srli_epi32(bits, 16);
		__m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
		__m256i odd = _mm256_and_si256(upper, one);
		__m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(most, odd)), 16);
		__m256i words = _mm256_blendv_epi8(rounded, _mm256_or_si256(upper, quiet), nan);
		__m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(words, words), 0xd8);
		_mm_storeu_si128((__m128i *)(void *)(to + i), _mm256_castsi256_si128(packed));
	}
	bfloat_narrow(from + i, to + i, count - i);
}

static const struct rr_wide_kind half_fast = {half_widen_f16c, half_narrow_f16c};
static const struct rr_wide_kind bfloat_fast = {bfloat_widen_avx2, bfloat_narrow_avx2};
#else
#define half_fast half_plain
#define bfloat_fast bfloat_plain
#endif

/* One block of one source as float32: where it lies, or widened into `room`. */
static const float *as_float(const struct rr_wide_kind *kind, const struct rr_combine *combine, uint32_t source,
			     size_t at, size_t count, float *room)
{
	if (combine->wide_sources >> source & 1)
		return (const float *)combine->src[source] + at;
	kind->widen((const uint16_t *)combine->src[source] + at, room, count);
	return room;
}

/* The block's sum into the float32 at each of `to`. */
static void add_block(const struct rr_wide_kind *kind, const struct rr_combine *combine, size_t at, size_t count,
		      void *const *to, uint32_t to_count)
{
	rr_combine_fn add = rr_combine_lookup(RR_FLOAT32, RR_SUM, rr_simd_level_best());
	float sum[RR_BLOCK], room[RR_BLOCK];
	void *sum_at = sum;
	const void *parts[2] = {as_float(kind, combine, 0, at, count, sum), NULL};

	if (combine->src_count == 1) { /* a partial sum that is only passed on, or has all its parts */
		struct rr_combine copy = {.dst = to, .dst_count = to_count, .src = parts, .src_count = 1, .count = count,
					  .post = combine->post, .factor = combine->factor};
		add(&copy);
		return;
	}
	for (uint32_t s = 1; s < combine->src_count; s++) {
		bool last = s + 1 == combine->src_count;
		parts[1] = as_float(kind, combine, s, at, count, room);
		struct rr_combine pass = {.dst = last ? to : &sum_at, .dst_count = last ? to_count : 1, .src = parts,
					  .src_count = 2, .count = count, .post = last && combine->post,
					  .factor = combine->factor};
		add(&pass);
		parts[0] = sum;
	}
}

static void combine_wide(const struct rr_wide_kind *kind, const struct rr_combine *combine)
{
	float sum[RR_BLOCK];
	void *to[RR_COMBINE_TARGETS_MAX];

	for (size_t at = 0; at < combine->count; at += RR_BLOCK) {
		size_t count = combine->count - at < RR_BLOCK ? combine->count - at : RR_BLOCK;

		if (combine->wide) {
			for (uint32_t d = 0; d < combine->dst_count; d++)
				to[d] = (float *)combine->dst[d] + at;
			add_block(kind, combine, at, count, to, combine->dst_count);
			continue;
		}
		to[0] = sum;
		add_block(kind, combine, at, count, to, 1);
		for (uint32_t d = 0; d < combine->dst_count; d++)
			kind->narrow(sum, (uint16_t *)combine->dst[d] + at, count);
	}
}

static void half_pass(const struct rr_combine *combine)
{
	combine_wide(rr_simd_level_best() == RR_SIMD_SCALAR ? &half_plain : &half_fast, combine);
}

static void bfloat_pass(const struct rr_combine *combine)
{
	combine_wide(rr_simd_level_best() == RR_SIMD_SCALAR ? &bfloat_plain : &bfloat_fast, combine);
}

rr_combine_fn rr_combine_lookup_wide(rr_dtype dtype, rr_redop redop)
{
	if (redop != RR_SUM && redop != RR_AVG)
		return NULL;
	return dtype == RR_FLOAT16 ? half_pass : dtype == RR_BFLOAT16 ? bfloat_pass : NULL;
}
