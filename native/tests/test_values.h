/*
 * test_values.h - elements of any dtype by formula, and the data that tests of reductions try.
 *
 * 16-bit floats come from value and quantum; nothing of the library's conversions is used.
 */
#ifndef RR_TEST_VALUES_H
#define RR_TEST_VALUES_H

#include <float.h>
#include <math.h>
#include <string.h>

#include "reduce.h"

static uint64_t random_state;

static uint64_t random_bits(void) /* splitmix64 */
{
	uint64_t z = random_state += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

static uint32_t random_below(uint32_t limit)
{
	return (uint32_t)(random_bits() % limit);
}

/* ---- 16-bit floats by formula ---- */

struct small_format {
	int precision; /* bits, the hidden one counted */
	int exponent_min;
	int exponent_max;
};

static const struct small_format half_format = { 11, -14, 15 };
static const struct small_format bfloat_format = { 8, -126, 127 };

static double small_value(struct small_format format, uint16_t code)
{
	int fraction_bits = format.precision - 1;
	int field = (code & 0x7fff) >> fraction_bits;
	int fraction = code & ((1 << fraction_bits) - 1);
	double size;

	if (field == format.exponent_max - format.exponent_min + 2)
		size = fraction ? NAN : INFINITY;
	else if (field == 0)
		size = ldexp(fraction, format.exponent_min - fraction_bits);
	else
		size = ldexp(fraction + (1 << fraction_bits), field - 1 + format.exponent_min - fraction_bits);
	return code & 0x8000 ? -size : size;
}

/* value counted in quanta of its binade: rint rounds to even; a carry lands in the next code. */
static uint16_t small_code(struct small_format format, double value)
{
	int fraction_bits = format.precision - 1;
	uint16_t sign = signbit(value) ? 0x8000 : 0;
	uint16_t infinity = (uint16_t)((format.exponent_max - format.exponent_min + 2) << fraction_bits);
	double size = fabs(value);
	int exponent;

	if (isnan(value))
		return (uint16_t)(infinity + 1);
	if (isinf(value))
		return sign | infinity;
	frexp(size, &exponent);
	exponent--; /* size = 1.x * 2^exponent */
	if (exponent > format.exponent_max)
		return sign | infinity;
	if (size == 0 || exponent < format.exponent_min)
		exponent = format.exponent_min;

	int quanta = (int)rint(ldexp(size, fraction_bits - exponent));

	return sign | (uint16_t)(((exponent - format.exponent_min) << fraction_bits) + quanta);
}

/* ---- elements of any dtype ---- */

static uint64_t element_bits(rr_dtype dtype, const void *vector, size_t i)
{
	size_t bytes = rr_dtype_bytes(dtype);
	uint64_t bits = 0;

	for (size_t b = 0; b < bytes; b++) /* little-endian or not: by the machine's own types */
		((unsigned char *)&bits)[b] = ((const unsigned char *)vector)[i * bytes + b];
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
	bits >>= 64 - 8 * bytes;
#endif
	return bits;
}

static double float_value(rr_dtype dtype, uint64_t bits)
{
	uint32_t bits32 = (uint32_t)bits;
	float value32;
	double value64;

	if (dtype == RR_FLOAT16)
		return small_value(half_format, (uint16_t)bits);
	if (dtype == RR_BFLOAT16)
		return small_value(bfloat_format, (uint16_t)bits);
	if (dtype == RR_FLOAT32) {
		memcpy(&value32, &bits32, sizeof(value32));
		return value32;
	}
	memcpy(&value64, &bits, sizeof(value64));
	return value64;
}

static uint64_t float_bits(rr_dtype dtype, double value)
{
	uint64_t bits64;
	uint32_t bits32;
	float value32 = (float)value;

	if (dtype == RR_FLOAT16)
		return small_code(half_format, value);
	if (dtype == RR_BFLOAT16)
		return small_code(bfloat_format, value);
	memcpy(&bits32, &value32, sizeof(bits32));
	memcpy(&bits64, &value, sizeof(bits64));
	return dtype == RR_FLOAT32 ? bits32 : bits64;
}

static bool same(rr_dtype dtype, uint64_t a, uint64_t b)
{
	if (a == b)
		return true;
	return rr_dtype_is_float(dtype) && isnan(float_value(dtype, a)) && isnan(float_value(dtype, b));
}

/* ---- data ---- */

/* Bits of float32 that find mistakes, and their negatives: zero, subnormals, ties, ends, NaNs. */
static const uint32_t special32[] = {
	0x00000000, 0x00000001, 0x007fffff, 0x00800000, 0x33000000, 0x33000001, 0x33800000, 0x387fe000,
	0x38800000, 0x3f800000, 0x3f808000, 0x3f818000, 0x3f801000, 0x3f803000, 0x477fe000, 0x477ff000,
	0x47800000, 0x7f7f0000, 0x7f7f8000, 0x7f7fffff, 0x7f800000, 0x7f800001, 0x7f810000, 0x7fc00000,
	0x7fff0000, 0x7fffffff,
};

static uint64_t random_element(rr_dtype dtype)
{
	uint64_t bits = random_bits();
	uint32_t pick = special32[random_below(sizeof(special32) / sizeof(*special32))];
	uint32_t sign = (uint32_t)(bits & 0x80000000u);
	float value;

	if (!rr_dtype_is_float(dtype))
		return random_below(4) == 0 ? (uint64_t)random_below(3) - 1 : bits;
	switch (random_below(4)) {
	case 0: /* any bits */
		return bits;
	case 1: /* special */
		if (dtype == RR_FLOAT32)
			return pick | sign;
		if (dtype == RR_BFLOAT16)
			return (pick | sign) >> 16;
		if (dtype == RR_FLOAT16)
			return (pick & 0x7f800000u) == 0x7f800000u ? 0x7c00u | (bits & 0x83ffu)
								   : bits & 0x83ffu;
		return (uint64_t)(pick | sign) << 32 | (random_below(2) ? 0 : random_bits() >> 32);
	default: /* near 1, so that sums and products round and stay finite */
		value = ldexpf((float)(random_bits() >> 40), (int)random_below(8) - 27);
		return float_bits(dtype, sign ? -value : value);
	}
}

static void fill(rr_dtype dtype, void *vector, size_t count)
{
	size_t bytes = rr_dtype_bytes(dtype);

	for (size_t i = 0; i < count; i++) {
		uint64_t bits = random_element(dtype);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
		bits <<= 64 - 8 * bytes;
#endif
		memcpy((unsigned char *)vector + i * bytes, &bits, bytes);
	}
}

#endif
