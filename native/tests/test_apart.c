/* test_apart.c - whether readers are far is believed after two looks that agree, and looked at again and again. */
#define _GNU_SOURCE
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "apart.h"

#define NEAR_NS 40
#define FAR_NS 300
#define BYTES RR_APART_BYTES_MIN

static int64_t clock_ns, look_ns;
static int clock_reads;

/* Instead of libc's: each second reading comes look_ns after the one before. */
int clock_gettime(clockid_t id, struct timespec *now)
{
	(void)id;
	clock_ns += clock_reads++ % 2 ? look_ns : 1000;
	*now = (struct timespec){.tv_sec = clock_ns / 1000000000, .tv_nsec = clock_ns % 1000000000};
	return 0;
}

/* Places up to and with the next that is looked at. */
static bool until_a_look(struct rr_apart *state, uint8_t *place, int64_t ns)
{
	int before = clock_reads;
	bool past;

	look_ns = ns;
	for (uint32_t i = 0; i < RR_APART_EVERY; i++) {
		bool believed = state->apart;
		past = rr_apart_look(state, place, BYTES);
		assert(past == state->apart);
		assert(i == 0 || past == believed); /* others only say what is believed */
	}
	assert(clock_reads == before + 2); /* one look, the first of these */
	return past;
}

int main(void)
{
	static uint8_t place[BYTES];
	struct rr_apart state = {0};

	memset(place, 7, sizeof(place));
	assert(!rr_apart_look(&state, place, BYTES - 1)); /* too small to be looked at, */
	assert(clock_reads == 0 && place[0] == 7);	   /* or touched */
	assert(!until_a_look(&state, place, FAR_NS));	   /* once is chance */
	assert(until_a_look(&state, place, FAR_NS));
	assert(state.line_ps == FAR_NS * 1000 / RR_APART_LINES);
	assert(!rr_apart_look(&(struct rr_apart){.apart = true}, place, BYTES - 1));
	assert(until_a_look(&state, place, NEAR_NS)); /* still far: once is chance */
	assert(until_a_look(&state, place, FAR_NS));
	assert(until_a_look(&state, place, NEAR_NS));
	assert(!until_a_look(&state, place, NEAR_NS));
	assert(!until_a_look(&state, place, FAR_NS));
	assert(!until_a_look(&state, place, NEAR_NS));
	printf("ok\n");
	return 0;
}
