/*
 * mutate.c - a search without libFuzzer, for machines that have only gcc: kept inputs, damaged by a seed, under the
 * sanitizers. It does not see which code an input reaches; scripts/fuzz (clang) does, and finds more in the same time.
 *
 * Input n of a seed does not depend on those before it. One that ends the process is saved as crash-SEED-N.
 */
#include "mutate.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "fuzz.h"

#define INPUT_BYTES_MAX 4096u
#define INPUT_S_MAX 20u

void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static struct {
	uint64_t seed, number;
	uint8_t *bytes;
	size_t size;
} now;

/* splitmix64 */
static uint64_t draw(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

static void save(void)
{
	char name[64];

	snprintf(name, sizeof(name), "crash-%llu-%llu", (unsigned long long)now.seed, (unsigned long long)now.number);
	FILE *file = fopen(name, "wb");
	if (file) {
		fwrite(now.bytes, 1, now.size, file);
		fclose(file);
	}
	fprintf(stderr, "input %llu of seed %llu, saved as %s\n", (unsigned long long)now.number,
		(unsigned long long)now.seed, name);
}

static void too_long(int number)
{
	(void)number;
	save();
	_exit(3);
}

static void write_number(uint8_t *bytes, size_t size, uint64_t *state)
{
	static const uint64_t numbers[] = {0, 1, 2, 7, 0x7f, 0xff, 0xffff, 0x7fffffff, 0xffffffff, 1ull << 32, 1ull << 62,
					   UINT64_MAX, UINT64_MAX - 7, INT64_MAX};
	uint64_t value = numbers[draw(state) % (sizeof(numbers) / sizeof(numbers[0]))];
	size_t width = (size_t)1 << draw(state) % 4;

	if (size >= width)
		memcpy(bytes + draw(state) % (size - width + 1), &value, width);
}

/* Damages `bytes` (room for INPUT_BYTES_MAX) in one way, with pieces of `other`. */
static size_t damage(uint8_t *bytes, size_t size, const struct mutate_input *other, uint64_t *state)
{
	size_t at = size ? draw(state) % size : 0, length = 1 + draw(state) % 64, from;

	switch (draw(state) % 6) {
	case 0:
		if (size)
			bytes[at] ^= (uint8_t)(1u << draw(state) % 8);
		return size;
	case 1:
		if (size)
			bytes[at] = (uint8_t)draw(state);
		return size;
	case 2:
		write_number(bytes, size, state);
		return size;
	case 3: /* cut out */
		length = length < size - at ? length : size - at;
		memmove(bytes + at, bytes + at + length, size - at - length);
		return size - length;
	case 4: /* twice */
		length = length < size - at ? length : size - at;
		if (size + length > INPUT_BYTES_MAX)
			return size;
		memmove(bytes + at + length, bytes + at, size - at);
		return size + length;
	default: /* end as another one ends */
		from = other->size ? draw(state) % other->size : 0;
		length = other->size - from;
		length = length < INPUT_BYTES_MAX - at ? length : INPUT_BYTES_MAX - at;
		memcpy(bytes + at, other->bytes + from, length);
		return at + length;
	}
}

static void run_one(const struct mutate_input *kept, size_t count)
{
	static uint8_t made[INPUT_BYTES_MAX];
	uint64_t state = now.seed * 0x2545f4914f6cdd1du + now.number;
	const struct mutate_input *from = &kept[draw(&state) % count];
	size_t size = from->size < INPUT_BYTES_MAX ? from->size : INPUT_BYTES_MAX;

	memcpy(made, from->bytes, size);
	for (uint64_t times = 1 + draw(&state) % 6; times; times--)
		size = damage(made, size, &kept[draw(&state) % count], &state);
	now.bytes = malloc(size + !size); /* exactly: a read beyond it is seen */
	if (!now.bytes)
		abort();
	memcpy(now.bytes, made, size);
	now.size = size;
	alarm(INPUT_S_MAX);
	LLVMFuzzerTestOneInput(now.bytes, size);
	alarm(0);
	free(now.bytes);
}

void mutate_search(const struct mutate_input *kept, size_t count, double seconds, uint64_t seed)
{
	struct timespec begin, end;
	double spent = 0;

	now.seed = seed;
	signal(SIGALRM, too_long);
	if (__sanitizer_set_death_callback)
		__sanitizer_set_death_callback(save);
	clock_gettime(CLOCK_MONOTONIC, &begin);
	for (now.number = 0; spent < seconds; now.number++) {
		run_one(kept, count);
		clock_gettime(CLOCK_MONOTONIC, &end);
		spent = (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9;
	}
	printf("%llu damaged inputs of seed %llu\n", (unsigned long long)now.number, (unsigned long long)seed);
}
