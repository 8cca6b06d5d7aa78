/*
 * fuzz.h - what the harnesses share: a cursor over the fuzzer's bytes.
 *
 * A harness is one function that takes any bytes and must neither crash, nor hang, nor leak. Built with libFuzzer it
 * searches; built with replay.c it runs the kept inputs, which is how a crash found once stays a test.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct fuzz_input {
	const uint8_t *at;
	size_t left;
};

/* Copies what is there; zeros stand for what is not. */
static inline void fuzz_take(struct fuzz_input *input, void *out, size_t bytes)
{
	size_t have = bytes < input->left ? bytes : input->left;

	memset(out, 0, bytes);
	if (have)
		memcpy(out, input->at, have);
	input->at += have;
	input->left -= have;
}

static inline uint8_t fuzz_byte(struct fuzz_input *input)
{
	uint8_t value;

	fuzz_take(input, &value, sizeof(value));
	return value;
}

static inline uint32_t fuzz_word(struct fuzz_input *input)
{
	uint32_t value;

	fuzz_take(input, &value, sizeof(value));
	return value;
}

static inline uint64_t fuzz_long(struct fuzz_input *input)
{
	uint64_t value;

	fuzz_take(input, &value, sizeof(value));
	return value;
}

#endif
