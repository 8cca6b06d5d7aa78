/*
 * api_finite.c - where is the first NaN or infinity of a vector?
 *
 * Both have an exponent of ones. Blocks are looked at whole, without a branch an element, so that the compiler takes
 * registers full; only a block that holds one is looked through.
 */
#include <string.h>

#include "rdmaring.h"
#include "reduce.h"
#include "status.h"

#define BLOCK 1024u /* elements */

#define DEFINE_FIRST(bits, word, exponent)                                                        \
	static int64_t first_##bits(const unsigned char *vector, uint64_t count)                  \
	{                                                                                         \
		for (uint64_t begin = 0; begin < count; begin += BLOCK) {                         \
			uint32_t block = count - begin < BLOCK ? (uint32_t)(count - begin) : BLOCK; \
			const unsigned char *from = vector + begin * sizeof(word);                \
			word found = 0, value;                                                    \
                                                                                                  \
			for (uint32_t i = 0; i < block; i++) {                                    \
				memcpy(&value, from + i * sizeof(word), sizeof(word));            \
				found |= (word)((value & (exponent)) == (exponent));              \
			}                                                                         \
			for (uint32_t i = 0; found && i < block; i++) {                           \
				memcpy(&value, from + i * sizeof(word), sizeof(word));            \
				if ((value & (exponent)) == (exponent))                           \
					return (int64_t)(begin + i);                              \
			}                                                                         \
		}                                                                                 \
		return -1;                                                                        \
	}

DEFINE_FIRST(f64, uint64_t, 0x7ff0000000000000u)
DEFINE_FIRST(f32, uint32_t, 0x7f800000u)
DEFINE_FIRST(f16, uint16_t, 0x7c00u)
DEFINE_FIRST(bf16, uint16_t, 0x7f80u)

rr_status rr_first_nonfinite(int32_t dtype, const void *vector, uint64_t count, int64_t *index)
{
	if (dtype < 0 || dtype >= (int32_t)RR_DTYPE_COUNT)
		return rr_fail(RR_ERR_ARGUMENT, "dtype is %d: accepted are 0..%u", dtype, RR_DTYPE_COUNT - 1);
	switch ((rr_dtype)dtype) {
	case RR_FLOAT64:  *index = first_f64(vector, count); break;
	case RR_FLOAT32:  *index = first_f32(vector, count); break;
	case RR_FLOAT16:  *index = first_f16(vector, count); break;
	case RR_BFLOAT16: *index = first_bf16(vector, count); break;
	default:          *index = -1; /* integers have none */
	}
	return RR_OK;
}
