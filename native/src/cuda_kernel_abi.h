/*
 * cuda_kernel_abi.h - what the C engine and the kernels on the GPU agree on.
 *
 * Included by device_cuda.c and by native/kernels, which NVRTC compiles without any header of the C library: so it
 * includes nothing and uses built-in types. rr_cuda_combine is the only parameter of every kernel, by value.
 *
 *   extern "C" __global__ void rr_<op>_<dtype>(struct rr_cuda_combine combine)
 *
 * with <op> sum, prod, min, max (avg is sum and a factor) and <dtype> as rr_dtype_name() says it: rr_sum_float32. The
 * grid may have any number of blocks of at most RR_CUDA_BLOCK_THREADS threads; nothing but the speed depends on it.
 *
 * What a kernel does is what a pass on the CPU does, with the same bits (reduce.h): every destination gets
 * op(source 0, source 1, ...) in that order, then the post-operation. With one source that is as wide as the
 * destinations and without a post-operation it copies the bits. A destination may be equal to a source. Addresses are
 * aligned for their elements, not for more.
 *
 * Wide: of float16 and bfloat16, sources whose bit is set in wide_sources, and the destinations under RR_CUDA_WIDE,
 * are float32. All four operations have this: a pass over more than RR_CUDA_SOURCES_MAX sources is several launches, with
 * float32 in between and one rounding at the end. Other dtypes ignore both.
 */
#ifndef RR_CUDA_KERNEL_ABI_H
#define RR_CUDA_KERNEL_ABI_H

#define RR_CUDA_SOURCES_MAX 9
#define RR_CUDA_TARGETS_MAX 9
#define RR_CUDA_BLOCK_THREADS 512

#define RR_CUDA_POST 1u /* flags: multiply the result by factor, before rounding; integers ignore it */
#define RR_CUDA_WIDE 2u /* the destinations are float32 */

struct rr_cuda_combine {
	unsigned long long src[RR_CUDA_SOURCES_MAX]; /* device addresses */
	unsigned long long dst[RR_CUDA_TARGETS_MAX];
	unsigned long long count; /* elements */
	double factor;            /* float64 multiplies by it; the other floats by its float32 */
	unsigned int src_count;   /* 1 or more */
	unsigned int dst_count;
	unsigned int wide_sources; /* bit s: source s is float32 */
	unsigned int flags;
};

#ifdef __cplusplus
static_assert(sizeof(struct rr_cuda_combine) == 176, "the engine copies so many bytes to a launch");
#else
_Static_assert(sizeof(struct rr_cuda_combine) == 176, "the engine copies so many bytes to a launch");
#endif

#endif
