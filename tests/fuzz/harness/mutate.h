/* mutate.h - see mutate.c. */
#ifndef MUTATE_H
#define MUTATE_H

#include <stddef.h>
#include <stdint.h>

struct mutate_input {
	uint8_t *bytes;
	size_t size;
};

/* Runs damaged copies of the kept inputs for so many seconds. */
void mutate_search(const struct mutate_input *kept, size_t count, double seconds, uint64_t seed);

#endif
