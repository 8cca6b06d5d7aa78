/*
 * shim.h - the language of CUDA for a C++ compiler: enough of it that native/kernels/combine.cu compiles unchanged.
 *
 * A kernel is a function that is called for each thread in turn, with threadIdx and so on set. There is no
 * __syncthreads(): kernels here have threads that do not speak to each other. Global memory is reached by rr_load and
 * rr_store only: they translate the address, and end the launch where a GPU would fault: at an address that nobody has,
 * and at one that is no multiple of the size of the access.
 */
#ifndef CUDA_SIM_SHIM_H
#define CUDA_SIM_SHIM_H

#include <cuda_bf16.h> /* these before the macros: they declare threadIdx */
#include <cuda_fp16.h>
#include <string.h>

#include "shim_abi.h"

#define RR_DEVICE static inline
#define RR_KERNEL(name) SHIM_KERNEL(name, rr_cuda_combine, combine)

/* A kernel whose only parameter is a struct, by value. */
#define SHIM_KERNEL(name, type, parameter)                                                     \
	static void name(const struct type &parameter);                                        \
	static void shim_body_##name(const void *parameters)                                   \
	{                                                                                      \
		name(*static_cast<const struct type *>(parameters));                           \
	}                                                                                      \
	static shim::registered shim_registered_##name(#name, sizeof(struct type), shim_body_##name); \
	static void name(const struct type &parameter)

namespace shim {

struct position {
	unsigned int x, y, z;
};

/* Where this thread is, and its launch. */
extern thread_local position thread_index, block_index, block_size, grid_size;

struct registered {
	struct shim_kernel kernel;
	registered(const char *name, size_t parameter_bytes, void (*body)(const void *));
};

/* The host address of an access; does not return where there is none. */
void *reach(uint64_t address, size_t bytes, bool writes);

} /* namespace shim */

#define threadIdx shim::thread_index
#define blockIdx shim::block_index
#define blockDim shim::block_size
#define gridDim shim::grid_size

template <class E> static inline E rr_load(unsigned long long address)
{
	E element;

	memcpy(&element, shim::reach(address, sizeof(E), false), sizeof(E));
	return element;
}

template <class E> static inline void rr_store(unsigned long long address, E element)
{
	memcpy(shim::reach(address, sizeof(E), true), &element, sizeof(E));
}

#endif
