/*
 * reduce_ops_scalar.h - the reference: what each operation means, on one element.
 *
 * For each dtype D: D_v is the type it is combined in, D_step the bytes of one D_v in memory, D_load
 * and D_store move it, D_scale is the post-operation. The other levels give the same bits.
 */
#ifndef RR_REDUCE_OPS_SCALAR_H
#define RR_REDUCE_OPS_SCALAR_H

#include <float.h>
#include <string.h>

#include "reduce_levels.h"

_Static_assert(FLT_EVAL_METHOD == 0, "float arithmetic must round to float after each operation");

#define RR_INLINE static inline __attribute__((always_inline))
#define RR_KERNEL static
#define RR_VECTOR_BYTES 0 /* no registers of many elements: no partial ones either */

RR_INLINE uint32_t rr_bits_of_float(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

RR_INLINE float rr_float_of_bits(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

/* Exact. Integers only, or a product that is normal: the processor's flush modes change nothing. */
static inline float rr_half_to_float(uint16_t half)
{
	uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
	uint32_t exponent = half >> 10 & 0x1fu;
	uint32_t mantissa = half & 0x3ffu;

	if (exponent == 0x1fu) /* infinity, NaN: made quiet, as the instruction does */
		return rr_float_of_bits(sign | 0x7f800000u | mantissa << 13 | (mantissa ? 0x400000u : 0));
	if (exponent == 0)
		return rr_float_of_bits(sign | rr_bits_of_float((float)mantissa * 0x1p-24f));
	return rr_float_of_bits(sign | (exponent + 127 - 15) << 23 | mantissa << 13);
}

/* To nearest, ties to even. */
static inline uint16_t rr_float_to_half(float value)
{
	uint32_t bits = rr_bits_of_float(value);
	uint32_t sign = bits >> 16 & 0x8000u;
	uint32_t size = bits & 0x7fffffffu;

	if (size > 0x7f800000u) /* NaN: quiet, upper payload kept */
		return (uint16_t)(sign | 0x7e00u | (size >> 13 & 0x3ffu));
	if (size >= 0x47800000u) /* 2^16 and more */
		return (uint16_t)(sign | 0x7c00u);
	if (size >= 0x38800000u) { /* 2^-14 and more: normal; a carry may reach infinity */
		size += 0xfffu + (size >> 13 & 1u);
		return (uint16_t)(sign | (size - (112u << 23)) >> 13);
	}
	if (size < 0x33000000u) /* below 2^-25, half of the smallest */
		return (uint16_t)sign;

	/* Subnormal: units of 2^-24. 23 is the shift for exponent field 103, that is 2^-24. */
	uint32_t shift = 126u - (size >> 23);
	uint32_t mantissa = (size & 0x7fffffu) | 0x800000u;
	uint32_t odd = mantissa >> shift & 1u;

	return (uint16_t)(sign | (mantissa + (1u << (shift - 1)) - 1u + odd) >> shift);
}

RR_INLINE float rr_bfloat_to_float(uint16_t bfloat)
{
	return rr_float_of_bits((uint32_t)bfloat << 16);
}

/* To nearest, ties to even. */
RR_INLINE uint16_t rr_float_to_bfloat(float value)
{
	uint32_t bits = rr_bits_of_float(value);

	if ((bits & 0x7fffffffu) > 0x7f800000u)
		return (uint16_t)(bits >> 16 | 0x40u);
	return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/*
 * min and max keep the accumulated value where the two are equal (so of -0 and +0 the earlier source's
 * stays), and take any NaN.
 */
#define RR_DEFINE_FLOAT_OPS(dtype, type)                                                          \
	typedef type dtype##_v;                                                                   \
	RR_INLINE type dtype##_sum(type acc, type next) { return acc + next; }                    \
	RR_INLINE type dtype##_prod(type acc, type next) { return acc * next; }                   \
	RR_INLINE type dtype##_min(type acc, type next)                                           \
	{                                                                                         \
		return next < acc || next != next ? next : acc;                                   \
	}                                                                                         \
	RR_INLINE type dtype##_max(type acc, type next)                                           \
	{                                                                                         \
		return next > acc || next != next ? next : acc;                                   \
	}                                                                                         \
	RR_INLINE type dtype##_factor(const struct rr_combine *combine)                           \
	{                                                                                         \
		return combine->post ? (type)combine->factor : (type)1;                           \
	}                                                                                         \
	RR_INLINE type dtype##_scale(type value, type factor) { return value * factor; }

#define RR_DEFINE_MOVE(dtype, memory_type, widen, narrow)                                         \
	enum { dtype##_step = sizeof(memory_type) };                                              \
	RR_INLINE dtype##_v dtype##_load(const unsigned char *from)                               \
	{                                                                                         \
		memory_type value;                                                                \
		memcpy(&value, from, sizeof(value));                                              \
		return widen(value);                                                              \
	}                                                                                         \
	RR_INLINE void dtype##_store(unsigned char *to, dtype##_v value)                          \
	{                                                                                         \
		memory_type narrowed = narrow(value);                                             \
		memcpy(to, &narrowed, sizeof(narrowed));                                          \
	}                                                                                         \
	RR_INLINE void dtype##_store_past(unsigned char *to, dtype##_v value) /* never: rr_past() */ \
	{                                                                                         \
		dtype##_store(to, value);                                                         \
	}

#define RR_AS_IT_IS(value) (value)

RR_DEFINE_FLOAT_OPS(f32, float)
RR_DEFINE_FLOAT_OPS(f64, double)
RR_DEFINE_FLOAT_OPS(f16, float)
RR_DEFINE_FLOAT_OPS(bf16, float)
RR_DEFINE_MOVE(f32, float, RR_AS_IT_IS, RR_AS_IT_IS)
RR_DEFINE_MOVE(f64, double, RR_AS_IT_IS, RR_AS_IT_IS)
RR_DEFINE_MOVE(f16, uint16_t, rr_half_to_float, rr_float_to_half)
RR_DEFINE_MOVE(bf16, uint16_t, rr_bfloat_to_float, rr_float_to_bfloat)

/* Integers have no post-operation. */
#define RR_DEFINE_INTEGER_OPS(dtype, type)                                                        \
	typedef type dtype##_v;                                                                   \
	RR_INLINE type dtype##_min(type acc, type next) { return next < acc ? next : acc; }       \
	RR_INLINE type dtype##_max(type acc, type next) { return next > acc ? next : acc; }       \
	RR_INLINE type dtype##_factor(const struct rr_combine *combine)                           \
	{                                                                                         \
		(void)combine;                                                                    \
		return 1;                                                                         \
	}                                                                                         \
	RR_INLINE type dtype##_scale(type value, type factor)                                     \
	{                                                                                         \
		(void)factor;                                                                     \
		return value;                                                                     \
	}                                                                                         \
	RR_DEFINE_MOVE(dtype, type, RR_AS_IT_IS, RR_AS_IT_IS)

/* Computed in 64 bits: unsigned, so that no promotion to int can overflow. */
#define RR_DEFINE_WRAPPING_OPS(dtype, type)                                                       \
	RR_INLINE type dtype##_sum(type acc, type next) { return (type)((uint64_t)acc + next); }  \
	RR_INLINE type dtype##_prod(type acc, type next) { return (type)((uint64_t)acc * next); }

RR_DEFINE_INTEGER_OPS(i8, int8_t)
RR_DEFINE_INTEGER_OPS(i16, int16_t)
RR_DEFINE_INTEGER_OPS(i32, int32_t)
RR_DEFINE_INTEGER_OPS(i64, int64_t)
RR_DEFINE_INTEGER_OPS(u8, uint8_t)
RR_DEFINE_INTEGER_OPS(u16, uint16_t)
RR_DEFINE_INTEGER_OPS(u32, uint32_t)
RR_DEFINE_INTEGER_OPS(u64, uint64_t)
RR_DEFINE_WRAPPING_OPS(u8, uint8_t)
RR_DEFINE_WRAPPING_OPS(u16, uint16_t)
RR_DEFINE_WRAPPING_OPS(u32, uint32_t)
RR_DEFINE_WRAPPING_OPS(u64, uint64_t)

#endif
