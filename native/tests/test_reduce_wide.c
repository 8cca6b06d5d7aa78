/*
 * test_reduce_wide.c - sums of 16-bit floats of which some sources, or the destinations, are float32.
 *
 * What is expected is computed in double, element by element, by the formulas of test_values.h. A sum of two floats
 * rounded to double and then to float32 is the correctly rounded one (53 >= 2 * 24 + 2), and a product is exact in
 * double. Nothing of the library's conversions has a part in it.
 *
 * Arguments: a seed, to replay; without one it is the time. Exit status 0 or 1. The test runs itself again for each
 * level, as RDMARING_SIMD is read once a process.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "reduce.h"
#include "test_values.h"

#define SOURCES_MAX 6u
#define TARGETS_MAX 4u
#define COUNT_MAX 2100u /* two blocks of 1024 and a rest */
#define TRIALS 4000u

static unsigned int failures;

/* Blocks of their exact size, so that AddressSanitizer sees one byte too many. */
static void *exact_block(size_t bytes)
{
	void *block = malloc(bytes ? bytes : 1);

	if (!block)
		abort();
	memset(block, 0xa5, bytes);
	return block;
}

struct trial {
	rr_dtype dtype;
	rr_redop redop;
	uint32_t src_count;
	uint32_t dst_count;
	uint64_t wide_sources;
	bool wide;
	bool in_place; /* destination 0 is a source of its own width */
	size_t count;
	bool post;
	double factor;
	void *src[SOURCES_MAX];
	void *dst[TARGETS_MAX];
};

static bool is_wide_source(const struct trial *trial, uint32_t s)
{
	return trial->wide_sources >> s & 1;
}

static double value_of(const struct trial *trial, uint32_t s, size_t i)
{
	rr_dtype dtype = is_wide_source(trial, s) ? RR_FLOAT32 : trial->dtype;

	return float_value(dtype, element_bits(dtype, trial->src[s], i));
}

/* The bits of every destination's element i, from the sources as they are now. */
static uint64_t expected(const struct trial *trial, size_t i)
{
	double value = value_of(trial, 0, i);

	for (uint32_t s = 1; s < trial->src_count; s++)
		value = (double)(float)(value + value_of(trial, s, i));
	if (trial->post)
		value = (double)(float)(value * (double)(float)trial->factor);
	return float_bits(trial->wide ? RR_FLOAT32 : trial->dtype, value);
}

static void draw(struct trial *trial)
{
	static const double factors[] = {0.5, 1.0 / 3, 3.7, -2e-5, 1e5};

	*trial = (struct trial){
		.dtype = random_below(2) ? RR_FLOAT16 : RR_BFLOAT16,
		.redop = random_below(2) ? RR_SUM : RR_AVG,
		.src_count = 1 + random_below(SOURCES_MAX),
		.dst_count = 1 + random_below(TARGETS_MAX),
		.wide = random_below(2),
		.post = random_below(2),
		.factor = factors[random_below(sizeof(factors) / sizeof(*factors))],
	};
	trial->wide_sources = random_bits() & ((1u << trial->src_count) - 1);
	trial->count = random_below(4) ? random_below(40) : random_below(COUNT_MAX);
	for (uint32_t s = 0; s < trial->src_count; s++) {
		rr_dtype dtype = is_wide_source(trial, s) ? RR_FLOAT32 : trial->dtype;

		trial->src[s] = exact_block(trial->count * rr_dtype_bytes(dtype));
		fill(dtype, trial->src[s], trial->count);
	}
	for (uint32_t d = 0; d < trial->dst_count; d++)
		trial->dst[d] = exact_block(trial->count * (trial->wide ? 4 : 2));
	for (uint32_t s = 0; s < trial->src_count && random_below(2); s++) {
		if (is_wide_source(trial, s) == trial->wide) {
			free(trial->dst[0]);
			trial->dst[0] = trial->src[s];
			trial->in_place = true;
			break;
		}
	}
}

static void report(const struct trial *trial, uint32_t d, size_t i, uint64_t got, uint64_t want)
{
	if (failures++ >= 20)
		return;
	printf("FAIL %s %s: destination %u, element %zu of %zu is %llx, not %llx (sources %u, of them wide %llx, "
	       "destinations %u, wide %d, in place %d, post %d, factor %a)\n",
	       rr_dtype_name(trial->dtype), rr_redop_name(trial->redop), d, i, trial->count, (unsigned long long)got,
	       (unsigned long long)want, trial->src_count, (unsigned long long)trial->wide_sources, trial->dst_count,
	       trial->wide, trial->in_place, trial->post, trial->factor);
}

static void run_trial(struct trial *trial)
{
	static uint64_t want[COUNT_MAX];
	rr_dtype out = trial->wide ? RR_FLOAT32 : trial->dtype;
	const void *src[SOURCES_MAX];
	struct rr_combine combine = {.dst = trial->dst, .src = src, .dst_count = trial->dst_count,
				     .src_count = trial->src_count, .count = trial->count,
				     .wide_sources = trial->wide_sources, .wide = trial->wide, .post = trial->post,
				     .factor = trial->factor};

	for (uint32_t s = 0; s < trial->src_count; s++)
		src[s] = trial->src[s];
	for (size_t i = 0; i < trial->count; i++)
		want[i] = expected(trial, i);
	rr_combine_lookup_wide(trial->dtype, trial->redop)(&combine);
	for (uint32_t d = 0; d < trial->dst_count; d++) {
		for (size_t i = 0; i < trial->count; i++) {
			uint64_t got = element_bits(out, trial->dst[d], i);

			if (!same(out, got, want[i]))
				report(trial, d, i, got, want[i]);
		}
	}
	for (uint32_t s = 0; s < trial->src_count; s++)
		free(trial->src[s]);
	for (uint32_t d = trial->in_place; d < trial->dst_count; d++)
		free(trial->dst[d]);
}

/* All codes there are, widened and narrowed again: plus -0, which leaves each as it is. */
static void test_every_code(rr_dtype dtype)
{
	static uint16_t codes[65536], narrowed[65536];
	static float widened[65536], zeros[65536];
	void *wide_at = widened, *narrow_at = narrowed;
	const void *narrow_src[] = {codes, zeros}, *wide_src[] = {widened, zeros};

	for (uint32_t code = 0; code < 65536; code++) {
		codes[code] = (uint16_t)code;
		zeros[code] = -0.0f;
	}
	struct rr_combine up = {.dst = &wide_at, .src = narrow_src, .dst_count = 1, .src_count = 2, .count = 65536,
				.wide_sources = 2, .wide = true};
	struct rr_combine down = {.dst = &narrow_at, .src = wide_src, .dst_count = 1, .src_count = 2, .count = 65536,
				  .wide_sources = 3};

	rr_combine_lookup_wide(dtype, RR_SUM)(&up);
	rr_combine_lookup_wide(dtype, RR_SUM)(&down);
	for (uint32_t code = 0; code < 65536; code++) {
		double value = float_value(dtype, code);

		if (isnan(value) ? !isnan(widened[code])
				 : (double)widened[code] != value || !signbit(widened[code]) != !signbit(value)) {
			failures++;
			printf("FAIL %s %04x is %a, not %a\n", rr_dtype_name(dtype), code, (double)widened[code], value);
		}
		if (!same(dtype, narrowed[code], code)) {
			failures++;
			printf("FAIL %s %04x comes back as %04x\n", rr_dtype_name(dtype), code, narrowed[code]);
		}
	}
}

static void test_lookup(void)
{
	for (int dtype = 0; dtype < (int)RR_DTYPE_COUNT; dtype++) {
		for (int redop = 0; redop < (int)RR_REDOP_COUNT; redop++) {
			bool half = dtype == RR_FLOAT16 || dtype == RR_BFLOAT16;
			bool want = half && (redop == RR_SUM || redop == RR_AVG);

			if ((rr_combine_lookup_wide((rr_dtype)dtype, (rr_redop)redop) != NULL) != want) {
				failures++;
				printf("FAIL lookup of dtype %d, redop %d\n", dtype, redop);
			}
		}
	}
}

static int run_level(const char *program, const char *seed, const char *level)
{
	int status = 0;
	pid_t child = fork();

	if (child < 0)
		return 1;
	if (child == 0) {
		setenv("RDMARING_SIMD", level, 1);
		execl(program, program, seed, "here", (char *)NULL);
		_exit(127);
	}
	if (waitpid(child, &status, 0) != child || !WIFEXITED(status))
		return 1;
	return WEXITSTATUS(status);
}

int main(int argc, char **argv)
{
	static const char *const levels[] = {"scalar", "x86-64-v3", "x86-64-v4"};
	char seed[32];

	snprintf(seed, sizeof(seed), "%s", argc > 1 ? argv[1] : "");
	if (argc < 2)
		snprintf(seed, sizeof(seed), "%llu", (unsigned long long)time(NULL));
	if (argc < 3) {
		printf("seed %s\n", seed);
		fflush(stdout);
		for (size_t i = 0; i < sizeof(levels) / sizeof(*levels); i++) {
			if (run_level(argv[0], seed, levels[i]) != 0)
				failures++;
		}
		return failures ? 1 : 0;
	}
	random_state = strtoull(seed, NULL, 10);
	test_lookup();
	test_every_code(RR_FLOAT16);
	test_every_code(RR_BFLOAT16);
	for (uint32_t i = 0; i < TRIALS; i++) {
		struct trial trial;

		draw(&trial);
		run_trial(&trial);
	}
	printf("%s: %u failures\n", rr_simd_name(), failures);
	return failures ? 1 : 0;
}
