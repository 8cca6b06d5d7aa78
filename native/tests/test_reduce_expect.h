/*
 * test_reduce_expect.h - what test_reduce.c expects.
 *
 * The formulas compute in wider types that round once: double for float, binary128 for double, 128-bit
 * integers; min and max follow their definition, 16-bit floats come from value and quantum.
 */
#ifndef RR_TEST_REDUCE_EXPECT_H
#define RR_TEST_REDUCE_EXPECT_H

#include "test_values.h"

#if defined(__SIZEOF_FLOAT128__)
typedef __float128 wide_float;
#else
typedef long double wide_float; /* binary128 on the other 64-bit machines */
_Static_assert(LDBL_MANT_DIG == 113, "twice the precision of double and two bits more");
#endif

static __int128 integer_value(rr_dtype dtype, uint64_t bits)
{
	unsigned int unused = 64 - 8 * (unsigned int)rr_dtype_bytes(dtype);
	bool is_signed = dtype >= RR_INT8 && dtype <= RR_INT64;

	/* The conversion to signed and the shift to the right keep the sign with every compiler used. */
	return is_signed ? (__int128)((int64_t)(bits << unused) >> unused) : (__int128)bits;
}

/* ---- expected results ---- */

static double one_rounding(rr_dtype dtype, rr_redop redop, double a, double b)
{
	if (dtype == RR_FLOAT64)
		return (double)(redop == RR_SUM ? (wide_float)a + b : (wide_float)a * b);
	return (float)(redop == RR_SUM ? a + b : a * b);
}

/* NaN if any is; else the first of the sources that have the least (greatest) value. */
static double float_extreme(rr_dtype dtype, rr_redop redop, const uint64_t *bits, uint32_t count)
{
	double best = float_value(dtype, bits[0]);

	for (uint32_t s = 0; s < count; s++) {
		double value = float_value(dtype, bits[s]);

		if (isnan(value))
			return value;
		best = redop == RR_MIN ? fmin(best, value) : fmax(best, value);
	}
	for (uint32_t s = 0; s < count; s++) {
		if (float_value(dtype, bits[s]) == best)
			return float_value(dtype, bits[s]);
	}
	return NAN;
}

static uint64_t expected_float(rr_dtype dtype, rr_redop redop, const uint64_t *bits, uint32_t count,
			       const struct rr_combine *combine)
{
	double factor = dtype == RR_FLOAT64 ? combine->factor : (double)(float)combine->factor;
	double value;

	if (count == 1 && !combine->post)
		return bits[0];
	if (redop == RR_MIN || redop == RR_MAX) {
		value = float_extreme(dtype, redop, bits, count);
	} else {
		value = float_value(dtype, bits[0]);
		for (uint32_t s = 1; s < count; s++)
			value = one_rounding(dtype, redop, value, float_value(dtype, bits[s]));
	}
	if (combine->post)
		value = one_rounding(dtype, RR_PROD, value, factor);
	return float_bits(dtype, value);
}

static uint64_t expected_integer(rr_dtype dtype, rr_redop redop, const uint64_t *bits, uint32_t count)
{
	__int128 value = integer_value(dtype, bits[0]);

	for (uint32_t s = 1; s < count; s++) {
		__int128 next = integer_value(dtype, bits[s]);

		if (redop == RR_SUM)
			value += next;
		else if (redop == RR_PROD) /* modulo 2^128 is enough for modulo 2^64 */
			value = (__int128)((unsigned __int128)value * (unsigned __int128)next);
		else if (redop == RR_MIN)
			value = value < next ? value : next;
		else
			value = value > next ? value : next;
	}
	return (uint64_t)value & UINT64_MAX >> (64 - 8 * rr_dtype_bytes(dtype));
}

#endif
