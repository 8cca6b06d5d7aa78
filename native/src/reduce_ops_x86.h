/*
 * reduce_ops_x86.h - the operations of reduce_ops_scalar.h on one register of RR_VECTOR_BYTES (32 or 64).
 *
 * Both widths are one text; they differ where an instruction exists in one only. Nothing here adds to a
 * product, so the compiler has nothing to contract into a fused multiply-add, whatever its flags.
 */
#ifndef RR_REDUCE_OPS_X86_H
#define RR_REDUCE_OPS_X86_H

#include <immintrin.h>
#include <string.h>

#include "reduce_levels.h"

#if RR_VECTOR_BYTES == 64
#if defined(__clang__) && __clang_major__ >= 18 && __clang_major__ <= 21
/* These know 64-byte registers as a feature of its own, which zig's baseline switches off. */
#define RR_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,prfchw,evex512")))
#else
#define RR_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,prfchw")))
#endif
#define RR_MM(name) _mm512_##name
typedef __m512 rr_vf;
typedef __m512d rr_vd;
typedef __m512i rr_vi;
typedef __m256i rr_vi_half;
#else
#define RR_TARGET __attribute__((target("avx2,f16c,prfchw")))
#define RR_MM(name) _mm256_##name
typedef __m256 rr_vf;
typedef __m256d rr_vd;
typedef __m256i rr_vi;
typedef __m128i rr_vi_half;
#endif

#define RR_INLINE RR_TARGET static inline __attribute__((always_inline))
#define RR_KERNEL RR_TARGET static

/* ---- registers from memory and back; _part moves the first `bytes` only, fewer than a register ---- */

RR_INLINE rr_vi rr_load(const unsigned char *from)
{
	rr_vi value;

	memcpy(&value, from, sizeof(value));
	return value;
}

RR_INLINE void rr_store(unsigned char *to, rr_vi value)
{
	memcpy(to, &value, sizeof(value));
}

/* Past the caches; `to` is a multiple of the bytes that are stored. In order with other stores by a fence only. */
#if RR_VECTOR_BYTES == 64
RR_INLINE void rr_past_part(unsigned char *to, rr_vi value)
{
	_mm512_stream_si512((void *)to, value);
}

RR_INLINE void rr_past_part_half(unsigned char *to, rr_vi_half value)
{
	_mm256_stream_si256((rr_vi_half *)to, value);
}
#else
RR_INLINE void rr_past_part(unsigned char *to, rr_vi value)
{
	_mm256_stream_si256((rr_vi *)to, value);
}

RR_INLINE void rr_past_part_half(unsigned char *to, rr_vi_half value)
{
	_mm_stream_si128((rr_vi_half *)to, value);
}
#endif

#if RR_VECTOR_BYTES == 64

RR_INLINE rr_vi rr_load_part(const unsigned char *from, size_t bytes)
{
	return _mm512_maskz_loadu_epi8(((__mmask64)1 << bytes) - 1, from);
}

RR_INLINE void rr_store_part(unsigned char *to, rr_vi value, size_t bytes)
{
	_mm512_mask_storeu_epi8(to, ((__mmask64)1 << bytes) - 1, value);
}

RR_INLINE rr_vi_half rr_load_part_half(const unsigned char *from, size_t bytes)
{
	return _mm256_maskz_loadu_epi8(((__mmask32)1 << bytes) - 1, from);
}

RR_INLINE void rr_store_part_half(unsigned char *to, rr_vi_half value, size_t bytes)
{
	_mm256_mask_storeu_epi8(to, ((__mmask32)1 << bytes) - 1, value);
}

#else

/* Masked by words of 4 bytes; what is beyond them, and whatever after it, comes from bytes in a register. */
RR_INLINE rr_vi rr_load_part(const unsigned char *from, size_t bytes)
{
	static const int32_t masks[16] = { -1, -1, -1, -1, -1, -1, -1, -1 };
	rr_vi mask = rr_load((const unsigned char *)(masks + 8 - bytes / 4));
	rr_vi value = _mm256_maskload_epi32((const int *)from, mask);
	uint32_t beyond = 0;

	if ((bytes & 3) == 0)
		return value;
	if (bytes & 1)
		beyond = from[bytes - 1];
	if (bytes & 2) {
		uint16_t two;

		memcpy(&two, from + (bytes & ~(size_t)3), sizeof(two));
		beyond = beyond << 16 | two;
	}
	return value | _mm256_andnot_si256(mask, _mm256_set1_epi32((int)beyond));
}

/* By halves, as masked stores are slow on some processors. */
RR_INLINE void rr_store_part(unsigned char *to, rr_vi value, size_t bytes)
{
	__m128i lane = _mm256_castsi256_si128(value);
	uint32_t word;

	if (bytes & 16) {
		memcpy(to, &lane, 16);
		to += 16;
		lane = _mm256_extracti128_si256(value, 1);
	}
	if (bytes & 8) {
		memcpy(to, &lane, 8);
		to += 8;
		lane = _mm_unpackhi_epi64(lane, lane);
	}
	if (bytes & 4) {
		memcpy(to, &lane, 4);
		to += 4;
		lane = _mm_srli_si128(lane, 4);
	}
	word = (uint32_t)_mm_cvtsi128_si32(lane);
	if (bytes & 2) {
		memcpy(to, &word, 2);
		to += 2;
		word >>= 16;
	}
	if (bytes & 1)
		*to = (unsigned char)word;
}

RR_INLINE __m128i rr_load_part_half(const unsigned char *from, size_t bytes)
{
	return _mm256_castsi256_si128(rr_load_part(from, bytes));
}

RR_INLINE void rr_store_part_half(unsigned char *to, __m128i value, size_t bytes)
{
	rr_store_part(to, _mm256_castsi128_si256(value), bytes);
}

#endif

/* ---- floats ---- */

/* Where `tested` is NaN, if_nan, else otherwise. */
RR_INLINE rr_vf rr_where_nan_ps(rr_vf tested, rr_vf if_nan, rr_vf otherwise)
{
#if RR_VECTOR_BYTES == 64
	return _mm512_mask_mov_ps(otherwise, _mm512_cmp_ps_mask(tested, tested, _CMP_UNORD_Q), if_nan);
#else
	return _mm256_blendv_ps(otherwise, if_nan, _mm256_cmp_ps(tested, tested, _CMP_UNORD_Q));
#endif
}

RR_INLINE rr_vd rr_where_nan_pd(rr_vd tested, rr_vd if_nan, rr_vd otherwise)
{
#if RR_VECTOR_BYTES == 64
	return _mm512_mask_mov_pd(otherwise, _mm512_cmp_pd_mask(tested, tested, _CMP_UNORD_Q), if_nan);
#else
	return _mm256_blendv_pd(otherwise, if_nan, _mm256_cmp_pd(tested, tested, _CMP_UNORD_Q));
#endif
}

/*
 * minps gives its second operand for equal zeros and for any NaN, so with acc there only a NaN in next
 * is left to treat. maxps likewise.
 */
#define RR_DEFINE_FLOAT_OPS(dtype, suffix, vector, element)                                       \
	typedef vector dtype##_v;                                                                 \
	RR_INLINE vector dtype##_sum(vector acc, vector next)                                     \
	{                                                                                         \
		return RR_MM(add_##suffix)(acc, next);                                            \
	}                                                                                         \
	RR_INLINE vector dtype##_prod(vector acc, vector next)                                    \
	{                                                                                         \
		return RR_MM(mul_##suffix)(acc, next);                                            \
	}                                                                                         \
	RR_INLINE vector dtype##_min(vector acc, vector next)                                     \
	{                                                                                         \
		return rr_where_nan_##suffix(next, next, RR_MM(min_##suffix)(next, acc));         \
	}                                                                                         \
	RR_INLINE vector dtype##_max(vector acc, vector next)                                     \
	{                                                                                         \
		return rr_where_nan_##suffix(next, next, RR_MM(max_##suffix)(next, acc));         \
	}                                                                                         \
	RR_INLINE vector dtype##_factor(const struct rr_combine *combine)                         \
	{                                                                                         \
		return RR_MM(set1_##suffix)(combine->post ? (element)combine->factor : 1);        \
	}                                                                                         \
	RR_INLINE vector dtype##_scale(vector value, vector factor)                               \
	{                                                                                         \
		return RR_MM(mul_##suffix)(value, factor);                                        \
	}

/* raw is what lies in memory; widen and narrow lead to dtype_v and back. */
#define RR_DEFINE_MOVE(dtype, raw, part, widen, narrow)                                           \
	enum { dtype##_step = sizeof(raw) };                                                      \
	RR_INLINE dtype##_v dtype##_load(const unsigned char *from)                               \
	{                                                                                         \
		raw value;                                                                        \
		memcpy(&value, from, sizeof(value));                                              \
		return widen(value);                                                              \
	}                                                                                         \
	RR_INLINE void dtype##_store(unsigned char *to, dtype##_v value)                          \
	{                                                                                         \
		raw narrowed = narrow(value);                                                     \
		memcpy(to, &narrowed, sizeof(narrowed));                                          \
	}                                                                                         \
	RR_INLINE void dtype##_store_past(unsigned char *to, dtype##_v value)                     \
	{                                                                                         \
		rr_past_##part(to, narrow(value));                                                \
	}                                                                                         \
	RR_INLINE dtype##_v dtype##_load_part(const unsigned char *from, size_t bytes)            \
	{                                                                                         \
		return widen(rr_load_##part(from, bytes));                                        \
	}                                                                                         \
	RR_INLINE void dtype##_store_part(unsigned char *to, dtype##_v value, size_t bytes)       \
	{                                                                                         \
		rr_store_##part(to, narrow(value), bytes);                                        \
	}

/* Casts between register types keep the bits. */
#define RR_AS_F32(value) ((rr_vf)(value))
#define RR_AS_F64(value) ((rr_vd)(value))
#define RR_AS_BITS(value) ((rr_vi)(value))
#define RR_FLOAT_OF_HALF(value) RR_MM(cvtph_ps)(value)
#define RR_HALF_OF_FLOAT(value) RR_MM(cvtps_ph)(value, _MM_FROUND_TO_NEAREST_INT)

RR_DEFINE_FLOAT_OPS(f32, ps, rr_vf, float)
RR_DEFINE_FLOAT_OPS(f64, pd, rr_vd, double)
RR_DEFINE_FLOAT_OPS(f16, ps, rr_vf, float)
RR_DEFINE_MOVE(f32, rr_vi, part, RR_AS_F32, RR_AS_BITS)
RR_DEFINE_MOVE(f64, rr_vi, part, RR_AS_F64, RR_AS_BITS)
RR_DEFINE_MOVE(f16, rr_vi_half, part_half, RR_FLOAT_OF_HALF, RR_HALF_OF_FLOAT)

/* A register of bfloat16 as two of float32, of its even and of its odd elements: no shuffling needed. */
typedef struct rr_bf16_pair {
	rr_vf even;
	rr_vf odd;
} bf16_v;

RR_INLINE bf16_v rr_widen_bf16(rr_vi raw)
{
	rr_vi upper = RR_MM(set1_epi32)((int)0xffff0000u);

	return (bf16_v){ (rr_vf)RR_MM(slli_epi32)(raw, 16), (rr_vf)(raw & upper) };
}

/*
 * The upper 16 bits of each element are its bfloat16, to nearest, ties to even; the lower are rubbish.
 * NaN needs no care: the lower half of every operand is 0, also of the factor where it is NaN, and the
 * processor gives a NaN operand back or its own, 0xffc00000. So no carry reaches the upper half.
 */
RR_INLINE rr_vi rr_round_bf16(rr_vf value)
{
	rr_vi bits = (rr_vi)value;
	rr_vi odd = RR_MM(srli_epi32)(bits, 16) & RR_MM(set1_epi32)(1);

	return RR_MM(add_epi32)(RR_MM(add_epi32)(bits, RR_MM(set1_epi32)(0x7fff)), odd);
}

RR_INLINE rr_vi rr_narrow_bf16(bf16_v value)
{
	rr_vi upper = RR_MM(set1_epi32)((int)0xffff0000u);

	return RR_MM(srli_epi32)(rr_round_bf16(value.even), 16) | (rr_round_bf16(value.odd) & upper);
}

#define RR_DEFINE_BF16_OP(op)                                                                     \
	RR_INLINE bf16_v bf16_##op(bf16_v acc, bf16_v next)                                       \
	{                                                                                         \
		return (bf16_v){ f32_##op(acc.even, next.even), f32_##op(acc.odd, next.odd) };    \
	}

RR_DEFINE_BF16_OP(sum)
RR_DEFINE_BF16_OP(prod)
RR_DEFINE_BF16_OP(min)
RR_DEFINE_BF16_OP(max)
RR_DEFINE_MOVE(bf16, rr_vi, part, rr_widen_bf16, rr_narrow_bf16)

RR_INLINE bf16_v bf16_factor(const struct rr_combine *combine)
{
	rr_vf given = f32_factor(combine);
	rr_vf factor = rr_where_nan_ps(given, RR_MM(set1_ps)(__builtin_nanf("")), given);

	return (bf16_v){ factor, factor };
}

RR_INLINE bf16_v bf16_scale(bf16_v value, bf16_v factor)
{
	return bf16_prod(value, factor);
}

/* ---- integers ---- */

RR_INLINE rr_vi rr_mul_epi8(rr_vi a, rr_vi b)
{
	rr_vi upper = RR_MM(set1_epi16)((short)0xff00);
	rr_vi even = RR_MM(mullo_epi16)(a, b);
	rr_vi odd = RR_MM(mullo_epi16)(RR_MM(srli_epi16)(a, 8), b & upper);

	return (even & ~upper) | odd;
}

#if RR_VECTOR_BYTES == 64

#define rr_mul_epi64 _mm512_mullo_epi64
#define rr_min_epi64 _mm512_min_epi64
#define rr_max_epi64 _mm512_max_epi64
#define rr_min_epu64 _mm512_min_epu64
#define rr_max_epu64 _mm512_max_epu64

#else

RR_INLINE rr_vi rr_mul_epi64(rr_vi a, rr_vi b)
{
	rr_vi cross = _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(a, 32), b),
				       _mm256_mul_epu32(a, _mm256_srli_epi64(b, 32)));

	return _mm256_add_epi64(_mm256_mul_epu32(a, b), _mm256_slli_epi64(cross, 32));
}

RR_INLINE rr_vi rr_min_epi64(rr_vi a, rr_vi b)
{
	return _mm256_blendv_epi8(a, b, _mm256_cmpgt_epi64(a, b));
}

RR_INLINE rr_vi rr_max_epi64(rr_vi a, rr_vi b)
{
	return _mm256_blendv_epi8(b, a, _mm256_cmpgt_epi64(a, b));
}

/* a > b without sign is a > b with sign once the upper halves of the range have changed places. */
RR_INLINE rr_vi rr_greater_epu64(rr_vi a, rr_vi b)
{
	rr_vi sign = _mm256_set1_epi64x(INT64_MIN);

	return _mm256_cmpgt_epi64(a ^ sign, b ^ sign);
}

RR_INLINE rr_vi rr_min_epu64(rr_vi a, rr_vi b)
{
	return _mm256_blendv_epi8(a, b, rr_greater_epu64(a, b));
}

RR_INLINE rr_vi rr_max_epu64(rr_vi a, rr_vi b)
{
	return _mm256_blendv_epi8(b, a, rr_greater_epu64(a, b));
}

#endif

/* Integers have no post-operation; sum and prod wrap, so signed dtypes use the unsigned ones. */
#define RR_DEFINE_INTEGER_OPS(dtype, min_function, max_function)                                  \
	typedef rr_vi dtype##_v;                                                                  \
	RR_INLINE rr_vi dtype##_min(rr_vi acc, rr_vi next) { return min_function(acc, next); }    \
	RR_INLINE rr_vi dtype##_max(rr_vi acc, rr_vi next) { return max_function(acc, next); }    \
	RR_INLINE rr_vi dtype##_factor(const struct rr_combine *combine)                          \
	{                                                                                         \
		(void)combine;                                                                    \
		return RR_MM(set1_epi8)(0);                                                       \
	}                                                                                         \
	RR_INLINE rr_vi dtype##_scale(rr_vi value, rr_vi factor)                                  \
	{                                                                                         \
		(void)factor;                                                                     \
		return value;                                                                     \
	}                                                                                         \
	RR_DEFINE_MOVE(dtype, rr_vi, part, RR_AS_BITS, RR_AS_BITS)

#define RR_DEFINE_WRAPPING_OPS(dtype, sum_function, prod_function)                                \
	RR_INLINE rr_vi dtype##_sum(rr_vi acc, rr_vi next) { return sum_function(acc, next); }    \
	RR_INLINE rr_vi dtype##_prod(rr_vi acc, rr_vi next) { return prod_function(acc, next); }

RR_DEFINE_INTEGER_OPS(i8, RR_MM(min_epi8), RR_MM(max_epi8))
RR_DEFINE_INTEGER_OPS(i16, RR_MM(min_epi16), RR_MM(max_epi16))
RR_DEFINE_INTEGER_OPS(i32, RR_MM(min_epi32), RR_MM(max_epi32))
RR_DEFINE_INTEGER_OPS(i64, rr_min_epi64, rr_max_epi64)
RR_DEFINE_INTEGER_OPS(u8, RR_MM(min_epu8), RR_MM(max_epu8))
RR_DEFINE_INTEGER_OPS(u16, RR_MM(min_epu16), RR_MM(max_epu16))
RR_DEFINE_INTEGER_OPS(u32, RR_MM(min_epu32), RR_MM(max_epu32))
RR_DEFINE_INTEGER_OPS(u64, rr_min_epu64, rr_max_epu64)
RR_DEFINE_WRAPPING_OPS(u8, RR_MM(add_epi8), rr_mul_epi8)
RR_DEFINE_WRAPPING_OPS(u16, RR_MM(add_epi16), RR_MM(mullo_epi16))
RR_DEFINE_WRAPPING_OPS(u32, RR_MM(add_epi32), RR_MM(mullo_epi32))
RR_DEFINE_WRAPPING_OPS(u64, RR_MM(add_epi64), rr_mul_epi64)

#endif
