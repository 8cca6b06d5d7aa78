/*
 * test_cpu.c - the instruction sets found by CPUID are those that the compiler's own runtime finds.
 */
#include <assert.h>
#include <stdio.h>

#include "cpu.h"

int main(void)
{
	unsigned expected = 0;

#if defined(__x86_64__)
	__builtin_cpu_init();
	if (__builtin_cpu_supports("sse4.2"))
		expected |= RR_CPU_CRC32;
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"))
		expected |= RR_CPU_V3;
	if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	    __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
		expected |= RR_CPU_V4;
#endif
	printf("found %u, expected %u\n", rr_cpu_features(), expected);
	assert(rr_cpu_features() == expected);
	return 0;
}
