/*
 * test_reduce.c - the scalar level against formulas, every other level against the scalar one.
 *
 * Arguments: a seed, to replay; without one it is the time. Exit status 0 or 1.
 * The formulas compute in wider types that round once: double for float, binary128 for double, 128-bit
 * integers; min and max are computed from their definition, 16-bit floats from value and quantum.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "reduce.h"
#include "reduce_ops_scalar.h"

#if defined(__SIZEOF_FLOAT128__)
typedef __float128 wide_float;
#else
typedef long double wide_float; /* binary128 on the other 64-bit machines */
_Static_assert(LDBL_MANT_DIG == 113, "twice the precision of double and two bits more");
#endif

#define VECTORS_MAX 9u
#define COUNT_MAX 8200u

static uint64_t random_state;
static unsigned int failures;

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

static void check_code(const char *what, struct small_format format, float value, uint16_t got)
{
	uint16_t want = small_code(format, value);

	if (isnan(value) ? isnan(small_value(format, got)) : got == want)
		return;
	failures++;
	printf("FAIL %s of %a is %04x, not %04x\n", what, (double)value, got, want);
}

/* Every code is decoded; every boundary between neighbours, and what lies beside it, is encoded. */
static void test_small_floats(void)
{
	for (uint32_t code = 0; code < 65536 && failures < 20; code++) {
		for (int bfloat = 0; bfloat < 2; bfloat++) {
			struct small_format format = bfloat ? bfloat_format : half_format;
			const char *what = bfloat ? "bfloat16" : "float16";
			double value = small_value(format, (uint16_t)code);
			float decoded = bfloat ? rr_bfloat_to_float((uint16_t)code)
					       : rr_half_to_float((uint16_t)code);

			if (isnan(value) ? !isnan(decoded)
					 : decoded != value || !signbit(decoded) != !signbit(value)) {
				failures++;
				printf("FAIL %s %04x is %a, not %a\n", what, code, (double)decoded, value);
			}
			double next = small_value(format, (uint16_t)(code + 1));
			double unit = fabs(next - value); /* not finite at the end of a sign */
			float middle = (float)(isfinite(unit) ? (value + next) / 2 : value);
			float near[] = { decoded, middle, nextafterf(middle, INFINITY),
					 nextafterf(middle, -INFINITY) };

			for (size_t i = 0; i < sizeof(near) / sizeof(*near); i++)
				check_code(what, format, near[i], bfloat ? rr_float_to_bfloat(near[i])
									 : rr_float_to_half(near[i]));
		}
	}
	float edges[] = { 65504, 65519.996f, 65520, 65536, 1e30f, FLT_MAX, 0x1p-24f, 0x1p-25f, 0x1.000002p-25f,
			  0x1p-26f, FLT_MIN, FLT_TRUE_MIN, 0, INFINITY };

	for (size_t i = 0; i < sizeof(edges) / sizeof(*edges); i++) {
		check_code("float16", half_format, edges[i], rr_float_to_half(edges[i]));
		check_code("float16", half_format, -edges[i], rr_float_to_half(-edges[i]));
		check_code("bfloat16", bfloat_format, edges[i], rr_float_to_bfloat(edges[i]));
		check_code("bfloat16", bfloat_format, -edges[i], rr_float_to_bfloat(-edges[i]));
	}
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

/* ---- one pass of every level ---- */

enum placement { APART, FIRST_IN_PLACE, LAST_IN_PLACE, ALL_IN_PLACE, PLACEMENT_COUNT };

struct trial {
	rr_dtype dtype;
	rr_redop redop;
	uint32_t src_count;
	uint32_t dst_count;
	size_t count;
	size_t bytes; /* of a vector */
	size_t shift; /* bytes from an aligned address */
	enum placement placement;
	bool post;
	double factor;
	void *original[VECTORS_MAX]; /* the sources */
};

/* Blocks of their exact size, so that AddressSanitizer sees one byte too many. */
struct arena {
	unsigned char *src_block[VECTORS_MAX];
	unsigned char *dst_block[VECTORS_MAX];
	const void *src[VECTORS_MAX];
	void *dst[VECTORS_MAX];
};

static void *exact_block(size_t bytes)
{
	void *block = malloc(bytes ? bytes : 1);

	if (!block)
		abort();
	return block;
}

/* Whether destination d is source s. */
static bool in_place(const struct trial *trial, uint32_t d, uint32_t s)
{
	switch (trial->placement) {
	case APART:
		return false;
	case FIRST_IN_PLACE:
		return d == 0 && s == 0;
	case LAST_IN_PLACE:
		return d == 0 && s == trial->src_count - 1;
	case ALL_IN_PLACE:
		return d == s;
	case PLACEMENT_COUNT:
		break;
	}
	return false;
}

static void arena_make(struct arena *arena, const struct trial *trial)
{
	memset(arena, 0, sizeof(*arena));
	for (uint32_t s = 0; s < trial->src_count; s++) {
		arena->src_block[s] = exact_block(trial->shift + trial->bytes);
		memcpy(arena->src_block[s] + trial->shift, trial->original[s], trial->bytes);
		arena->src[s] = arena->src_block[s] + trial->shift;
	}
	for (uint32_t d = 0; d < trial->dst_count; d++) {
		for (uint32_t s = 0; s < trial->src_count; s++) {
			if (in_place(trial, d, s))
				arena->dst[d] = arena->src_block[s] + trial->shift;
		}
		if (arena->dst[d])
			continue;
		arena->dst_block[d] = exact_block(trial->shift + trial->bytes);
		memset(arena->dst_block[d], 0xa5, trial->shift + trial->bytes);
		arena->dst[d] = arena->dst_block[d] + trial->shift;
	}
}

static void arena_free(struct arena *arena)
{
	for (uint32_t v = 0; v < VECTORS_MAX; v++) {
		free(arena->src_block[v]);
		free(arena->dst_block[v]);
	}
}

static void report(const struct trial *trial, int level, const char *what, size_t i, uint64_t got,
		   uint64_t want)
{
	if (failures++ >= 20)
		return;
	printf("FAIL level %d %s %s: %s: element %zu of %zu is %llx, not %llx (sources %u, destinations %u, "
	       "shift %zu, placement %d, post %d, factor %a)\n",
	       level, rr_dtype_name(trial->dtype), rr_redop_name(trial->redop), what, i, trial->count,
	       (unsigned long long)got, (unsigned long long)want, trial->src_count, trial->dst_count,
	       trial->shift, trial->placement, trial->post, trial->factor);
}

static void compare(const struct trial *trial, int level, const struct arena *arena, const uint64_t *want)
{
	for (uint32_t d = 0; d < trial->dst_count; d++) {
		for (size_t i = 0; i < trial->count; i++) {
			uint64_t got = element_bits(trial->dtype, arena->dst[d], i);

			if (!same(trial->dtype, got, want[i]))
				report(trial, level, "result", i, got, want[i]);
		}
	}
	for (uint32_t s = 0; s < trial->src_count; s++) {
		bool kept = true;

		for (uint32_t d = 0; d < trial->dst_count; d++)
			kept = kept && arena->dst[d] != arena->src[s];
		if (kept && memcmp(arena->src[s], trial->original[s], trial->bytes) != 0)
			report(trial, level, "a source changed", s, 0, 0);
	}
}

/* The scalar level is compared with the formula, then the others with the scalar level. */
static void run_trial(struct trial *trial)
{
	static uint64_t want[COUNT_MAX];
	struct arena arena;
	struct rr_combine combine = { .dst = arena.dst, .src = arena.src, .dst_count = trial->dst_count,
				      .src_count = trial->src_count, .count = trial->count,
				      .post = trial->post, .factor = trial->factor };

	trial->bytes = trial->count * rr_dtype_bytes(trial->dtype);
	for (uint32_t s = 0; s < trial->src_count; s++) {
		trial->original[s] = exact_block(trial->bytes);
		fill(trial->dtype, trial->original[s], trial->count);
	}
	for (size_t i = 0; i < trial->count; i++) {
		uint64_t bits[VECTORS_MAX];

		for (uint32_t s = 0; s < trial->src_count; s++)
			bits[s] = element_bits(trial->dtype, trial->original[s], i);
		want[i] = rr_dtype_is_float(trial->dtype)
				  ? expected_float(trial->dtype, trial->redop, bits, trial->src_count, &combine)
				  : expected_integer(trial->dtype, trial->redop, bits, trial->src_count);
	}
	for (int level = RR_SIMD_SCALAR; level <= (int)rr_simd_level_best(); level++) {
		arena_make(&arena, trial);
		rr_combine_lookup(trial->dtype, trial->redop, (enum rr_simd_level)level)(&combine);
		compare(trial, level, &arena, want);
		if (level == RR_SIMD_SCALAR && trial->count > 0) {
			for (size_t i = 0; i < trial->count; i++)
				want[i] = element_bits(trial->dtype, arena.dst[0], i);
		}
		arena_free(&arena);
	}
	for (uint32_t s = 0; s < trial->src_count; s++)
		free(trial->original[s]);
}

static void random_trial(rr_dtype dtype, rr_redop redop, uint32_t src_count, size_t count)
{
	static const double factors[] = { 1.0, 0.5, 1.0 / 3, -3.0, 0x1p-130, 1e300, 0.0, NAN, INFINITY };
	uint32_t dst_counts[] = { 1, 2, src_count, 1 + random_below(VECTORS_MAX) };
	struct trial trial = {
		.dtype = dtype,
		.redop = redop,
		.src_count = src_count,
		.dst_count = dst_counts[random_below(4)],
		.count = count,
		.shift = random_below(2) ? random_below(64) : 0,
		.placement = (enum placement)random_below(PLACEMENT_COUNT),
		.post = rr_dtype_is_float(dtype) && random_below(2),
		.factor = factors[random_below(sizeof(factors) / sizeof(*factors))],
	};

	run_trial(&trial);
}

static void test_passes(void)
{
	static const size_t large[] = { 127, 128, 129, 255, 511, 1000, 2047, 2048, 2049, 4099, COUNT_MAX };

	for (int dtype = 0; dtype < (int)RR_DTYPE_COUNT; dtype++) {
		for (int redop = RR_SUM; redop <= RR_MAX; redop++) {
			for (uint32_t src_count = 1; src_count <= VECTORS_MAX; src_count++) {
				for (size_t count = 0; count <= 70; count++)
					random_trial((rr_dtype)dtype, (rr_redop)redop, src_count, count);
				random_trial((rr_dtype)dtype, (rr_redop)redop, src_count,
					     large[random_below(sizeof(large) / sizeof(*large))]);
			}
		}
	}
}

/* Every float16 and every bfloat16, alone (times 1) and with a random partner, through every level. */
static void test_all_small_codes(void)
{
	for (int dtype = RR_FLOAT16; dtype <= RR_BFLOAT16; dtype++) {
		for (int redop = RR_SUM; redop <= RR_MAX; redop++) {
			for (uint32_t first = 0; first < 65536; first += 4096) {
				uint16_t codes[4096], partner[4096], want[4096], got[4096];
				const void *src[] = { codes, partner };
				void *dst[] = { want };
				struct rr_combine combine = { .dst = dst, .src = src, .dst_count = 1,
							      .src_count = 1 + (uint32_t)random_below(2),
							      .count = 4096, .post = true, .factor = 1 };

				for (uint32_t i = 0; i < 4096; i++)
					codes[i] = (uint16_t)(first + i);
				fill((rr_dtype)dtype, partner, 4096);
				rr_combine_lookup((rr_dtype)dtype, (rr_redop)redop, RR_SIMD_SCALAR)(&combine);
				dst[0] = got;
				rr_combine_lookup((rr_dtype)dtype, (rr_redop)redop, rr_simd_level_best())(&combine);
				for (uint32_t i = 0; i < 4096; i++) {
					if (same((rr_dtype)dtype, got[i], want[i]))
						continue;
					failures++;
					printf("FAIL %s %s of %04x: %04x, scalar %04x\n", rr_dtype_name((rr_dtype)dtype),
					       rr_redop_name((rr_redop)redop), codes[i], got[i], want[i]);
				}
			}
		}
	}
}

static void expect(bool holds, const char *what)
{
	if (holds)
		return;
	failures++;
	printf("FAIL %s\n", what);
}

static void test_lookup(void)
{
	enum rr_simd_level best = rr_simd_level_best();

	for (int dtype = 0; dtype < (int)RR_DTYPE_COUNT; dtype++) {
		rr_dtype d = (rr_dtype)dtype;

		expect(rr_combine_lookup(d, RR_AVG, best) == rr_combine_lookup(d, RR_SUM, best), "avg is sum");
		expect(rr_combine_lookup(d, RR_MAX, RR_SIMD_V4) == rr_combine_lookup(d, RR_MAX, best),
		       "a level above the best is the best");
		expect(strcmp(rr_dtype_name(d), "invalid") != 0, "every dtype has a name");
	}
	expect(rr_combine_lookup((rr_dtype)RR_DTYPE_COUNT, RR_SUM, best) == NULL, "no pass for no dtype");
	expect(rr_combine_lookup(RR_FLOAT32, (rr_redop)RR_REDOP_COUNT, best) == NULL, "no pass for no redop");
	expect(rr_dtype_bytes(RR_BFLOAT16) == 2 && rr_dtype_bytes(RR_UINT64) == 8, "bytes of dtypes");
	expect(strcmp(rr_redop_name(RR_AVG), "avg") == 0, "name of avg");
}

int main(int argc, char **argv)
{
	unsigned long long seed = argc > 1 ? strtoull(argv[1], NULL, 0) : (unsigned long long)time(NULL);

	random_state = seed;
	printf("test_reduce: seed %llu, levels 0 to %d\n", seed, (int)rr_simd_level_best());
	test_small_floats();
	test_all_small_codes();
	test_lookup();
	test_passes();
	printf("test_reduce: %u failures\n", failures);
	return failures ? 1 : 0;
}
