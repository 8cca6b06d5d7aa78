/*
 * cpu.h - which instruction sets this machine has.
 *
 * Not by __builtin_cpu_supports(): that needs libgcc or LLVM's runtime, and the compiler that makes the wheels
 * (zig) brings neither.
 */
#ifndef RR_CPU_H
#define RR_CPU_H

enum rr_cpu_feature {
	RR_CPU_CRC32 = 1, /* the instruction of SSE4.2 */
	RR_CPU_V3 = 2,    /* AVX2 and F16C, and the kernel saves their registers */
	RR_CPU_V4 = 4,    /* AVX-512 F, BW, VL and DQ, likewise */
};

/* A set of rr_cpu_feature; 0 on other machines than x86-64. */
unsigned rr_cpu_features(void);

#endif
