/* clock.h - one monotonic clock, in nanoseconds, the same for all processes of a machine. */
#ifndef RR_CLOCK_H
#define RR_CLOCK_H

#include <stdint.h>
#include <time.h>

#define RR_NS_PER_S 1000000000ull
#define RR_NS_PER_MS 1000000ull

static inline uint64_t rr_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * RR_NS_PER_S + (uint64_t)now.tv_nsec;
}

#endif
