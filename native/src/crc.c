/*
 * crc.c - see crc.h.
 *
 * A CRC is linear over GF(2): the register after n zero bytes is a matrix times the register before, and the
 * register after A and B is (that after A, moved over |B| zero bytes) xor (that of B from zero). So three blocks
 * side by side give the CRC of one behind the other; one instruction after the other takes three cycles, three
 * streams hide them.
 */
#include "crc.h"

#include <pthread.h>
#include <string.h>

#include "cpu.h"

#define POLYNOMIAL 0x82f63b78u
#define LONG_BYTES 4096u /* of each of three blocks */
#define SHORT_BYTES 256u

/* by[k][b]: what byte b does to the register k bytes later. */
static uint32_t by[8][256];
/* moved[k][b]: byte k of the register being b, after LONG_BYTES, or SHORT_BYTES, zero bytes. */
static uint32_t moved_long[4][256], moved_short[4][256];
/* x^(8 * 2^k) modulo the polynomial: what 2^k zero bytes multiply the register by. */
static uint32_t zeros[64];
static pthread_once_t made = PTHREAD_ONCE_INIT;

static uint32_t over_zeros(uint32_t crc, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		crc = crc >> 8 ^ by[0][crc & 0xff];
	return crc;
}

static void make_moved(uint32_t moved[4][256], size_t bytes)
{
	uint32_t bits[32];

	for (uint32_t i = 0; i < 32; i++)
		bits[i] = over_zeros(1u << i, bytes);
	for (uint32_t k = 0; k < 4; k++)
		for (uint32_t b = 0; b < 256; b++) {
			moved[k][b] = 0;
			for (uint32_t i = 0; i < 8; i++)
				moved[k][b] ^= b >> i & 1 ? bits[8 * k + i] : 0;
		}
}

/*
 * The product of two polynomials modulo ours. The register is reflected: its highest bit is the coefficient of x^0, so a
 * shift to the right multiplies by x, and what falls out is x^32, which is the polynomial's other coefficients.
 */
static uint32_t times(uint32_t a, uint32_t b)
{
	uint32_t product = 0;

	for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
		product ^= a & bit ? b : 0;
		b = b >> 1 ^ (b & 1 ? POLYNOMIAL : 0);
	}
	return product;
}

static void make_tables(void)
{
	for (uint32_t b = 0; b < 256; b++) {
		uint32_t crc = b;
		for (uint32_t i = 0; i < 8; i++)
			crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
		by[0][b] = crc;
	}
	for (uint32_t k = 1; k < 8; k++)
		for (uint32_t b = 0; b < 256; b++)
			by[k][b] = by[k - 1][b] >> 8 ^ by[0][by[k - 1][b] & 0xff];
	make_moved(moved_long, LONG_BYTES);
	make_moved(moved_short, SHORT_BYTES);
	zeros[0] = 1u << (31 - 8);
	for (uint32_t k = 1; k < 64; k++)
		zeros[k] = times(zeros[k - 1], zeros[k - 1]);
}

/*
 * The two inversions cancel: the sum of a as the start of b's register, moved over b's length, is linear, and b's own sum
 * began with the same inverted zeros.
 */
uint32_t rr_crc32c_join(uint32_t a, uint32_t b, uint64_t bytes)
{
	pthread_once(&made, make_tables);
	for (uint32_t k = 0; bytes; k++, bytes >>= 1)
		if (bytes & 1)
			a = times(zeros[k], a);
	return a ^ b;
}

static uint64_t word_at(const uint8_t *data)
{
	uint64_t word;

	memcpy(&word, data, sizeof(word));
	return word;
}

uint32_t rr_crc32c_tables(uint32_t crc, const void *data, size_t bytes)
{
	const uint8_t *at = data;

	pthread_once(&made, make_tables);
	crc = ~crc;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	for (; bytes >= 8; at += 8, bytes -= 8) {
		uint64_t word = word_at(at) ^ crc;
		crc = 0;
		for (uint32_t k = 0; k < 8; k++)
			crc ^= by[7 - k][word >> 8 * k & 0xff];
	}
#endif
	for (; bytes; at++, bytes--)
		crc = crc >> 8 ^ by[0][(crc ^ *at) & 0xff];
	return ~crc;
}

#if defined(__x86_64__)
#if defined(__clang__) /* which counts the instruction apart from sse4.2 */
#define RR_CRC_TARGET __attribute__((target("sse4.2,crc32")))
#else
#define RR_CRC_TARGET __attribute__((target("sse4.2")))
#endif

static uint32_t move_over(uint32_t moved[4][256], uint32_t crc)
{
	return moved[0][crc & 0xff] ^ moved[1][crc >> 8 & 0xff] ^ moved[2][crc >> 16 & 0xff] ^ moved[3][crc >> 24];
}

/* Three blocks of `block` bytes, one behind the other. */
RR_CRC_TARGET static inline uint32_t three(uint32_t crc, const uint8_t *at, size_t block, uint32_t moved[4][256])
{
	uint64_t a = crc, b = 0, c = 0;

	for (size_t i = 0; i < block; i += 8) {
		a = __builtin_ia32_crc32di(a, word_at(at + i));
		b = __builtin_ia32_crc32di(b, word_at(at + block + i));
		c = __builtin_ia32_crc32di(c, word_at(at + 2 * block + i));
	}
	return move_over(moved, move_over(moved, (uint32_t)a) ^ (uint32_t)b) ^ (uint32_t)c;
}

RR_CRC_TARGET static uint32_t by_instruction(uint32_t crc, const uint8_t *at, size_t bytes)
{
	crc = ~crc;
	for (; bytes >= 3 * LONG_BYTES; at += 3 * LONG_BYTES, bytes -= 3 * LONG_BYTES)
		crc = three(crc, at, LONG_BYTES, moved_long);
	for (; bytes >= 3 * SHORT_BYTES; at += 3 * SHORT_BYTES, bytes -= 3 * SHORT_BYTES)
		crc = three(crc, at, SHORT_BYTES, moved_short);
	for (; bytes >= 8; at += 8, bytes -= 8)
		crc = (uint32_t)__builtin_ia32_crc32di(crc, word_at(at));
	for (; bytes; at++, bytes--)
		crc = __builtin_ia32_crc32qi(crc, *at);
	return ~crc;
}

#endif

uint32_t rr_crc32c(uint32_t crc, const void *data, size_t bytes)
{
#if defined(__x86_64__)
	if (rr_cpu_features() & RR_CPU_CRC32) {
		pthread_once(&made, make_tables);
		return by_instruction(crc, data, bytes);
	}
#endif
	return rr_crc32c_tables(crc, data, bytes);
}
