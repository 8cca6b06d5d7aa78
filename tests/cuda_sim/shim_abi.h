/*
 * shim_abi.h - what the simulated driver and the library of kernels for the CPU agree on. C, and C++.
 *
 * The library (shim.cpp, and each .cu compiled with shim.h) is loaded by module_run.c by the name in RR_CUDA_SIM_KERNELS,
 * and by tests that run kernels on host memory without a driver.
 */
#ifndef CUDA_SIM_SHIM_ABI_H
#define CUDA_SIM_SHIM_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Addresses of a device, and where the first of them is on the host. */
struct shim_view {
	uint64_t begin, end;
	char *host;
};

/* The memory that a launch may touch. */
struct shim_memory {
	/* The piece of memory around `address`; false: there is none. Stays valid until the launch has ended. */
	bool (*view)(void *user, uint64_t address, struct shim_view *view);
	/* Called behind the last access, for each range that was read or written. NULL: nobody wants to know. */
	void (*note)(void *user, uint64_t address, uint64_t bytes, bool writes);
	void *user;
};

enum shim_outcome { /* with the numbers of CUresult */
	SHIM_DONE = 0,
	SHIM_ILLEGAL_ADDRESS = 700,
	SHIM_MISALIGNED_ADDRESS = 716
};

/* Where a thread was when it ended a launch, and what it wanted. */
struct shim_fault {
	uint64_t address, bytes;
	bool writes;
	unsigned int block, thread; /* block is blockIdx.x */
};

struct shim_kernel {
	const char *name;
	size_t parameter_bytes; /* of all parameters, as they lie in the packed block */
	void (*body)(const void *parameters); /* one thread; for shim_run */
	const struct shim_kernel *next;
};

/* NULL: the library has none of this name. */
const struct shim_kernel *shim_find(const char *name);

/*
 * Run all threads, one after another. grid and block are x, y, z. `fault` is written where the outcome is not
 * SHIM_DONE; what was stored before it stays.
 */
enum shim_outcome shim_run(const struct shim_kernel *kernel, const unsigned int grid[3], const unsigned int block[3],
			   const void *parameters, const struct shim_memory *memory, struct shim_fault *fault);

/* shim_memory.view for kernels on host memory: `user` is an array of views that ends with one of end 0. */
bool shim_view_listed(void *user, uint64_t address, struct shim_view *view);

#ifdef __cplusplus
}
#endif

#endif
