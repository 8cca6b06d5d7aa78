/*
 * test_crc.c - CRC32C: published values, and the instruction against the tables at every length and alignment.
 *
 * Expected: the check value of "123456789" and the vectors of RFC 3720, appendix B.4.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crc.h"

static unsigned int failures;

static void expect(const char *what, uint32_t got, uint32_t want)
{
	if (got == want)
		return;
	failures++;
	printf("FAIL %s: %08x, not %08x\n", what, got, want);
}

static void both(const char *what, const void *data, size_t bytes, uint32_t want)
{
	expect(what, rr_crc32c(0, data, bytes), want);
	expect(what, rr_crc32c_tables(0, data, bytes), want);
}

static void test_published(void)
{
	uint8_t zeros[32] = {0}, ones[32], up[32], down[32];

	memset(ones, 0xff, sizeof(ones));
	for (uint32_t i = 0; i < 32; i++) {
		up[i] = (uint8_t)i;
		down[i] = (uint8_t)(31 - i);
	}
	both("check value", "123456789", 9, 0xe3069283u);
	both("32 zeros", zeros, 32, 0x8a9136aau);
	both("32 ones", ones, 32, 0x62a8ab43u);
	both("ascending", up, 32, 0x46dd794eu);
	both("descending", down, 32, 0x113fdb5cu);
	both("nothing", zeros, 0, 0);
}

static void test_lengths(uint32_t seed)
{
	static uint8_t data[40000];

	srand(seed);
	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)(rand() >> 7);
	for (uint32_t turn = 0; turn < 3000; turn++) {
		size_t begin = (size_t)rand() % 64, bytes = turn < 1000 ? turn : (size_t)rand() % (sizeof(data) - 64);
		size_t cut = bytes ? (size_t)rand() % bytes : 0;
		uint32_t want = rr_crc32c_tables(0, data + begin, bytes);
		expect("length", rr_crc32c(0, data + begin, bytes), want);
		uint32_t tail = rr_crc32c(0, data + begin + cut, bytes - cut);
		expect("joined", rr_crc32c_join(rr_crc32c(0, data + begin, cut), tail, bytes - cut), want);
		expect("in two parts", rr_crc32c(rr_crc32c(0, data + begin, cut), data + begin + cut, bytes - cut), want);
	}
}

/* Lengths that no buffer has: zeros behind an end are the register moved on, whose inversions are undone. */
static void test_long_joins(uint32_t seed)
{
	static uint8_t zeros[1 << 20];
	uint32_t crc = rr_crc32c(0, &seed, sizeof(seed)), run = crc, one = rr_crc32c(0, zeros, sizeof(zeros)), many = one;

	for (uint32_t i = 0; i < 12; i++) { /* doubled: 4 GiB of zeros at the end */
		many = rr_crc32c_join(many, many, (uint64_t)sizeof(zeros) << i);
		if (i < 4)
			for (uint32_t k = 0; k < 1u << i; k++)
				run = rr_crc32c(run, zeros, sizeof(zeros));
		if (i < 4)
			expect("zeros at the end", rr_crc32c_join(crc, many, (uint64_t)sizeof(zeros) << (i + 1)),
			       rr_crc32c(run, zeros, sizeof(zeros)));
	}
	expect("in three, either way round", rr_crc32c_join(rr_crc32c_join(crc, many, 1ull << 32), one, 1 << 20),
	       rr_crc32c_join(crc, rr_crc32c_join(many, one, 1 << 20), (1ull << 32) + (1 << 20)));
}

int main(int argc, char **argv)
{
	uint32_t seed = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 1;

	test_published();
	test_lengths(seed);
	test_long_joins(seed);
	printf("test_crc: seed %u, %u failures\n", seed, failures);
	return failures ? 1 : 0;
}
