/*
 * combine.cu - elementwise combination of vectors on a GPU: rr_<op>_<dtype> of cuda_kernel_abi.h.
 *
 * NVRTC compiles it for one dtype at a time, RR_DTYPE being its number (rr_dtype); without RR_DTYPE all are there. The
 * tests compile the same text with a C++ compiler for the simulated driver: there shim.h stands for the language of
 * CUDA, and rr_load and rr_store translate and check addresses. So nothing else here touches global memory.
 *
 * Bits are those of the passes on the CPU (native/src/reduce_ops_scalar.h, docs/NUMBERS.md), NaNs' payloads apart:
 * 16-bit floats are combined in float32 and rounded once, min and max keep the earlier of equal values and take any
 * NaN, integers wrap. No multiplication may be fused with an addition: it is compiled with --fmad=false.
 *
 * A thread takes a unit at a time: a pack of 16 bytes, where all vectors begin at a multiple of 16, otherwise, and
 * behind the last whole pack, one element. Neighbouring threads take neighbouring units, so accesses coalesce either
 * way. Where there are enough packs, a thread takes RR_TURN in one turn: all loads of a source before the first is used.
 */
#include "cuda_kernel_abi.h"

#ifdef RR_KERNELS_ON_HOST
#include "shim.h"
#else
#define RR_DEVICE static __device__ __forceinline__
#define RR_KERNEL(name)                                                     \
	extern "C" __global__ void __launch_bounds__(RR_CUDA_BLOCK_THREADS) \
	name(const __grid_constant__ struct rr_cuda_combine combine)

template <class E> RR_DEVICE E rr_load(unsigned long long address)
{
	return *reinterpret_cast<const E *>(address);
}

template <class E> RR_DEVICE void rr_store(unsigned long long address, E value)
{
	*reinterpret_cast<E *>(address) = value;
}
#endif

#ifdef RR_DTYPE
#define RR_HAS_DTYPE(number) (RR_DTYPE == (number))
#else
#define RR_HAS_DTYPE(number) 1
#endif

#if RR_HAS_DTYPE(2)
#include <cuda_fp16.h>
#endif
#if RR_HAS_DTYPE(3)
#include <cuda_bf16.h>
#endif

#define RR_PACK_BYTES 16
#define RR_TURN 4

typedef unsigned long long rr_index; /* of an element; an address */

/* ---- elements: what lies in memory, what it is combined in ---- */

/* E lies in memory and is combined as it is; the 16-bit floats differ. */
template <class E> struct rr_element {
	typedef E value;
	static constexpr bool scales = (E)0.5 != 0; /* floats have a post-operation */
	static constexpr bool small = false;        /* parts of a pass may be float32 */
	RR_DEVICE E widen(E element) { return element; }
	RR_DEVICE E narrow(E element) { return element; }
};

#if RR_HAS_DTYPE(2)
struct rr_half {
	unsigned short bits;
};

template <> struct rr_element<rr_half> {
	typedef float value;
	static constexpr bool scales = true, small = true;
	RR_DEVICE float widen(rr_half half) { return __half2float(__ushort_as_half(half.bits)); }
	RR_DEVICE rr_half narrow(float value) { return rr_half{__half_as_ushort(__float2half_rn(value))}; }
};
#endif

#if RR_HAS_DTYPE(3)
struct rr_bfloat {
	unsigned short bits;
};

template <> struct rr_element<rr_bfloat> {
	typedef float value;
	static constexpr bool scales = true, small = true;
	RR_DEVICE float widen(rr_bfloat bfloat) { return __bfloat162float(__ushort_as_bfloat16(bfloat.bits)); }
	RR_DEVICE rr_bfloat narrow(float value) { return rr_bfloat{__bfloat16_as_ushort(__float2bfloat16_rn(value))}; }
};
#endif

/* ---- operations ---- */

/* The type in which a sum or product wraps without overflow: unsigned, and at least as wide as int. */
template <class V> struct rr_wrapping { typedef unsigned int type; };
template <> struct rr_wrapping<long long> { typedef unsigned long long type; };
template <> struct rr_wrapping<unsigned long long> { typedef unsigned long long type; };
template <> struct rr_wrapping<float> { typedef float type; };
template <> struct rr_wrapping<double> { typedef double type; };

struct rr_sum {
	template <class V> RR_DEVICE V apply(V total, V next)
	{
		typedef typename rr_wrapping<V>::type wrapping;
		return (V)((wrapping)total + (wrapping)next);
	}
};

struct rr_prod {
	template <class V> RR_DEVICE V apply(V total, V next)
	{
		typedef typename rr_wrapping<V>::type wrapping;
		return (V)((wrapping)total * (wrapping)next);
	}
};

struct rr_min {
	template <class V> RR_DEVICE V apply(V total, V next) { return next < total || next != next ? next : total; }
};

struct rr_max {
	template <class V> RR_DEVICE V apply(V total, V next) { return next > total || next != next ? next : total; }
};

/* One source, its bits. */
struct rr_copy {
	template <class V> RR_DEVICE V apply(V total, V) { return total; }
};

/* ---- the post-operation ---- */

/* Without RR_CUDA_POST the factor is 1, and the product still makes a signalling NaN quiet, as on the CPU. */
template <class E>
RR_DEVICE typename rr_element<E>::value rr_scale(const struct rr_cuda_combine &combine,
						 typename rr_element<E>::value value)
{
	typedef typename rr_element<E>::value value_type;

	if constexpr (rr_element<E>::scales)
		return value * (combine.flags & RR_CUDA_POST ? (value_type)combine.factor : (value_type)1);
	return value;
}

/* ---- memory ---- */

template <class E> union rr_pack {
	uint4 word;
	E items[RR_PACK_BYTES / sizeof(E)];
};

/* COUNT elements from `address` on: whole packs at a multiple of 16, or one element. */
template <class E, int COUNT> struct rr_memory {
	typedef typename rr_element<E>::value value;
	enum { pack_items = RR_PACK_BYTES / sizeof(E) };

	RR_DEVICE void load(rr_index address, value *to)
	{
#pragma unroll
		for (int i = 0; i < COUNT; i += pack_items) {
			rr_pack<E> pack;

			pack.word = rr_load<uint4>(address + i * sizeof(E));
#pragma unroll
			for (int j = 0; j < pack_items; j++)
				to[i + j] = rr_element<E>::widen(pack.items[j]);
		}
	}

	RR_DEVICE void store(rr_index address, const value *from)
	{
#pragma unroll
		for (int i = 0; i < COUNT; i += pack_items) {
			rr_pack<E> pack;

#pragma unroll
			for (int j = 0; j < pack_items; j++)
				pack.items[j] = rr_element<E>::narrow(from[i + j]);
			rr_store<uint4>(address + i * sizeof(E), pack.word);
		}
	}
};

template <class E> struct rr_memory<E, 1> {
	typedef typename rr_element<E>::value value;

	RR_DEVICE void load(rr_index address, value *to) { *to = rr_element<E>::widen(rr_load<E>(address)); }
	RR_DEVICE void store(rr_index address, const value *from)
	{
		rr_store<E>(address, rr_element<E>::narrow(*from));
	}
};

/* ---- a pass ---- */

/* COUNT elements from `at` on of a source, which is float32 if it is `wide`. Only the 16-bit floats have WIDE. */
template <class E, bool WIDE, int COUNT>
RR_DEVICE void rr_take(rr_index base, rr_index at, bool wide, typename rr_element<E>::value *to)
{
	if constexpr (WIDE) {
		if (wide) {
			rr_memory<float, COUNT>::load(base + at * sizeof(float), to);
			return;
		}
	}
	rr_memory<E, COUNT>::load(base + at * sizeof(E), to);
}

template <class E, bool WIDE, int COUNT>
RR_DEVICE void rr_put(rr_index base, rr_index at, bool wide, const typename rr_element<E>::value *from)
{
	if constexpr (WIDE) {
		if (wide) {
			rr_memory<float, COUNT>::store(base + at * sizeof(float), from);
			return;
		}
	}
	rr_memory<E, COUNT>::store(base + at * sizeof(E), from);
}

/*
 * COUNT elements at each of `at`, `at` + stride, ..., UNITS of them. All is loaded before anything is stored, so a
 * destination may be a source.
 */
template <class E, class OP, bool WIDE, int UNITS, int COUNT>
RR_DEVICE void rr_turn(const struct rr_cuda_combine &combine, rr_index at, rr_index stride)
{
	typename rr_element<E>::value total[UNITS][COUNT], next[UNITS][COUNT];

#pragma unroll
	for (int u = 0; u < UNITS; u++)
		rr_take<E, WIDE, COUNT>(combine.src[0], at + u * stride, combine.wide_sources & 1, total[u]);
#pragma unroll 1
	for (unsigned int s = 1; s < combine.src_count; s++) {
#pragma unroll
		for (int u = 0; u < UNITS; u++)
			rr_take<E, WIDE, COUNT>(combine.src[s], at + u * stride, combine.wide_sources >> s & 1, next[u]);
#pragma unroll
		for (int u = 0; u < UNITS; u++)
#pragma unroll
			for (int i = 0; i < COUNT; i++)
				total[u][i] = OP::apply(total[u][i], next[u][i]);
	}
#pragma unroll
	for (int u = 0; u < UNITS; u++)
#pragma unroll
		for (int i = 0; i < COUNT; i++)
			total[u][i] = rr_scale<E>(combine, total[u][i]);
#pragma unroll 1
	for (unsigned int d = 0; d < combine.dst_count; d++)
#pragma unroll
		for (int u = 0; u < UNITS; u++)
			rr_put<E, WIDE, COUNT>(combine.dst[d], at + u * stride, combine.flags & RR_CUDA_WIDE, total[u]);
}

/* Whether all vectors begin at a multiple of 16. */
RR_DEVICE bool rr_all_aligned(const struct rr_cuda_combine &combine)
{
	rr_index bits = 0;

#pragma unroll 1
	for (unsigned int s = 0; s < combine.src_count; s++)
		bits |= combine.src[s];
#pragma unroll 1
	for (unsigned int d = 0; d < combine.dst_count; d++)
		bits |= combine.dst[d];
	return bits % RR_PACK_BYTES == 0;
}

/*
 * This thread's share of the units of COUNT elements from `first` on, of which there are `units`: TURN of them at a
 * time while there are as many, then one by one.
 */
template <class E, class OP, bool WIDE, int COUNT, int TURN>
RR_DEVICE void rr_share(const struct rr_cuda_combine &combine, rr_index first, rr_index units)
{
	rr_index threads = (rr_index)gridDim.x * blockDim.x;
	rr_index at = (rr_index)blockIdx.x * blockDim.x + threadIdx.x;

	if constexpr (TURN > 1) {
#pragma unroll 1
		for (; at + (TURN - 1) * threads < units; at += TURN * threads)
			rr_turn<E, OP, WIDE, TURN, COUNT>(combine, first + at * COUNT, threads * COUNT);
	}
#pragma unroll 1
	for (; at < units; at += threads)
		rr_turn<E, OP, WIDE, 1, COUNT>(combine, first + at * COUNT, 0);
}

template <class E, class OP, bool WIDE> RR_DEVICE void rr_pass(const struct rr_cuda_combine &combine)
{
	const int items = RR_PACK_BYTES / sizeof(E), turn = WIDE ? 1 : RR_TURN;
	rr_index packs = rr_all_aligned(combine) ? combine.count / items : 0;

	rr_share<E, OP, WIDE, items, turn>(combine, 0, packs);
	rr_share<E, OP, WIDE, 1, 1>(combine, packs * items, combine.count - packs * items);
}

template <int BYTES> struct rr_bits_of { typedef unsigned long long type; };
template <> struct rr_bits_of<1> { typedef unsigned char type; };
template <> struct rr_bits_of<2> { typedef unsigned short type; };
template <> struct rr_bits_of<4> { typedef unsigned int type; };

template <class E, class OP> RR_DEVICE void rr_run(const struct rr_cuda_combine &combine)
{
	typedef rr_element<E> element;
	bool copies = combine.src_count == 1 && !(element::scales && combine.flags & RR_CUDA_POST);

	if constexpr (element::small) {
		bool wide = combine.flags & RR_CUDA_WIDE, wide_source = combine.wide_sources & 1;

		if (copies && wide && wide_source) {
			rr_pass<unsigned int, rr_copy, false>(combine);
			return;
		}
		if (wide || combine.wide_sources) {
			rr_pass<E, OP, true>(combine);
			return;
		}
	}
	if (copies)
		rr_pass<typename rr_bits_of<sizeof(E)>::type, rr_copy, false>(combine);
	else
		rr_pass<E, OP, false>(combine);
}

/* ---- the kernels ---- */

#define RR_DEFINE_KERNELS(dtype, element)                                    \
	RR_KERNEL(rr_sum_##dtype) { rr_run<element, rr_sum>(combine); }      \
	RR_KERNEL(rr_prod_##dtype) { rr_run<element, rr_prod>(combine); }    \
	RR_KERNEL(rr_min_##dtype) { rr_run<element, rr_min>(combine); }      \
	RR_KERNEL(rr_max_##dtype) { rr_run<element, rr_max>(combine); }

#if RR_HAS_DTYPE(0)
RR_DEFINE_KERNELS(float32, float)
#endif
#if RR_HAS_DTYPE(1)
RR_DEFINE_KERNELS(float64, double)
#endif
#if RR_HAS_DTYPE(2)
RR_DEFINE_KERNELS(float16, rr_half)
#endif
#if RR_HAS_DTYPE(3)
RR_DEFINE_KERNELS(bfloat16, rr_bfloat)
#endif
#if RR_HAS_DTYPE(4)
RR_DEFINE_KERNELS(int8, signed char)
#endif
#if RR_HAS_DTYPE(5)
RR_DEFINE_KERNELS(int16, short)
#endif
#if RR_HAS_DTYPE(6)
RR_DEFINE_KERNELS(int32, int)
#endif
#if RR_HAS_DTYPE(7)
RR_DEFINE_KERNELS(int64, long long)
#endif
#if RR_HAS_DTYPE(8)
RR_DEFINE_KERNELS(uint8, unsigned char)
#endif
#if RR_HAS_DTYPE(9)
RR_DEFINE_KERNELS(uint16, unsigned short)
#endif
#if RR_HAS_DTYPE(10)
RR_DEFINE_KERNELS(uint32, unsigned int)
#endif
#if RR_HAS_DTYPE(11)
RR_DEFINE_KERNELS(uint64, unsigned long long)
#endif
