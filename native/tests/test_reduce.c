/*
 * test_reduce.c - the scalar level against formulas, every other level against the scalar one.
 *
 * Arguments: a seed, to replay; without one it is the time. Exit status 0 or 1.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "reduce.h"
#include "reduce_ops_scalar.h"
#include "test_reduce_expect.h"

#define VECTORS_MAX 9u
#define COUNT_MAX 8200u

static unsigned int failures;

/* ---- 16-bit floats ---- */

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
	bool past;
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
	void *block = NULL;

	if (posix_memalign(&block, 64, bytes ? bytes : 1) != 0) /* so aligned, stores past the caches are possible */
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
	       "shift %zu, placement %d, post %d, past %d, factor %a)\n",
	       level, rr_dtype_name(trial->dtype), rr_redop_name(trial->redop), what, i, trial->count,
	       (unsigned long long)got, (unsigned long long)want, trial->src_count, trial->dst_count,
	       trial->shift, trial->placement, trial->post, trial->past, trial->factor);
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
				      .post = trial->post, .past_last = trial->past,
				      .factor = trial->factor };

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

/* With every bit of the payload set, also after conversion to float. */
static double full_nan(void)
{
	uint64_t bits = 0x7fffffffffffffffu;
	double value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

static void random_trial(rr_dtype dtype, rr_redop redop, uint32_t src_count, size_t count)
{
	double factors[] = { 1.0, 0.5, 1.0 / 3, -3.0, 0x1p-130, 1e300, 0.0, INFINITY, full_nan() };
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
		.past = random_below(2) == 1,
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

/* Vectors that end with their page; the page after it cannot be read. A mistake is a crash. */
static void test_page_end(void)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	unsigned char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (pages == MAP_FAILED || mprotect(pages + page, page, PROT_NONE) != 0) {
		failures++;
		perror("FAIL mmap");
		return;
	}
	for (int dtype = 0; dtype < (int)RR_DTYPE_COUNT; dtype++) {
		for (size_t count = 0; count <= 70; count++) {
			void *vector = pages + page - count * rr_dtype_bytes((rr_dtype)dtype);
			void *all[] = { vector, vector, vector };
			const void *src[] = { vector, vector, vector };
			struct rr_combine combine = { .dst = all, .src = src, .count = count };

			for (uint32_t vectors = 1; vectors <= 3; vectors++) {
				combine.dst_count = combine.src_count = vectors;
				memset(pages, 0, page);
				rr_combine_lookup((rr_dtype)dtype, RR_SUM, rr_simd_level_best())(&combine);
				for (size_t b = 0; b < page; b++)
					failures += pages[b] != 0;
			}
		}
	}
	munmap(pages, 2 * page);
}

/* 4096 codes from `first` on, alone (times 1) or with a random partner: the best level against scalar. */
static void check_codes(rr_dtype dtype, rr_redop redop, uint32_t first)
{
	uint16_t codes[4096], partner[4096], want[4096], got[4096];
	const void *src[] = { codes, partner };
	void *dst[] = { want };
	struct rr_combine combine = { .dst = dst, .src = src, .dst_count = 1, .count = 4096,
				      .src_count = 1 + random_below(2), .post = true, .factor = 1 };

	for (uint32_t i = 0; i < 4096; i++)
		codes[i] = (uint16_t)(first + i);
	fill(dtype, partner, 4096);
	rr_combine_lookup(dtype, redop, RR_SIMD_SCALAR)(&combine);
	dst[0] = got;
	rr_combine_lookup(dtype, redop, rr_simd_level_best())(&combine);
	for (uint32_t i = 0; i < 4096; i++) {
		if (same(dtype, got[i], want[i]) || failures++ >= 20)
			continue;
		printf("FAIL %s %s of %04x: %04x, scalar %04x\n", rr_dtype_name(dtype), rr_redop_name(redop),
		       codes[i], got[i], want[i]);
	}
}

static void test_all_small_codes(void)
{
	for (int redop = RR_SUM; redop <= RR_MAX; redop++) {
		for (uint32_t first = 0; first < 65536; first += 4096) {
			check_codes(RR_FLOAT16, (rr_redop)redop, first);
			check_codes(RR_BFLOAT16, (rr_redop)redop, first);
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
	test_page_end();
	printf("test_reduce: %u failures\n", failures);
	return failures ? 1 : 0;
}
