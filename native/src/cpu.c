/*
 * cpu.c - see cpu.h. Bits are those of Intel's manual, volume 2, CPUID; volume 1, 13.3 (XCR0).
 */
#include "cpu.h"

#include <stdatomic.h>

#if defined(__x86_64__)
#include <cpuid.h>

#define SSE42_ECX1 (1u << 20)
#define OSXSAVE_ECX1 (1u << 27)
#define AVX_ECX1 (1u << 28)
#define F16C_ECX1 (1u << 29)
#define AVX2_EBX7 (1u << 5)
#define AVX512_EBX7 (1u << 16 | 1u << 17 | 1u << 30 | 1u << 31) /* F, DQ, BW, VL */
#define YMM_XCR0 0x6u  /* SSE and AVX state */
#define ZMM_XCR0 0xe6u /* these, masks, and both halves of the 64-byte registers */

/* Which registers the kernel saves when it changes threads. */
static unsigned saved_state(void)
{
	unsigned low, high;

	__asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
	(void)high;
	return low;
}

static unsigned ask(void)
{
	unsigned eax, ebx, ecx1, ebx7 = 0, ecx, edx, saved = 0, found = 0;

	if (!__get_cpuid(1, &eax, &ebx, &ecx1, &edx))
		return 0;
	if (!__get_cpuid_count(7, 0, &eax, &ebx7, &ecx, &edx))
		ebx7 = 0;
	if (ecx1 & OSXSAVE_ECX1)
		saved = saved_state();
	if (ecx1 & SSE42_ECX1)
		found |= RR_CPU_CRC32;
	if ((saved & YMM_XCR0) == YMM_XCR0 && (ecx1 & AVX_ECX1) && (ecx1 & F16C_ECX1) && (ebx7 & AVX2_EBX7))
		found |= RR_CPU_V3;
	if ((found & RR_CPU_V3) && (saved & ZMM_XCR0) == ZMM_XCR0 && (ebx7 & AVX512_EBX7) == AVX512_EBX7)
		found |= RR_CPU_V4;
	return found;
}
#else
static unsigned ask(void)
{
	return 0;
}
#endif

unsigned rr_cpu_features(void)
{
	/* CPUID leaves a virtual machine each time. Threads that find it unknown together compute the same value. */
	static _Atomic int known = -1;
	int found = atomic_load_explicit(&known, memory_order_relaxed);

	if (found < 0) {
		found = (int)ask();
		atomic_store_explicit(&known, found, memory_order_relaxed);
	}
	return (unsigned)found;
}
