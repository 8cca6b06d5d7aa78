/*
 * reduce_kernels.inc.h - one pass over memory for each dtype and operation, made from the operations on
 * one register. Included by each level's file after its reduce_ops_*.h and with RR_TABLE defined.
 *
 * Positions are in bytes. Everything a turn needs is loaded before anything is stored, so a destination
 * may be a source, and no pointer is called `restrict`.
 *
 * The counts of sources and destinations that collectives use most have loops of their own, every
 * pointer in a register: going through arrays of pointers, or by blocks through a buffer, is slower.
 */

#define RR_FIXED_MAX 8u /* sources, or destinations, of a loop of its own */
/* Registers a turn: for constant counts; for others, where a pointer is loaded each time it is used. */
#define RR_TURN_FIXED (RR_VECTOR_BYTES > 0 ? 2u : 1u)
#define RR_TURN_ANY (RR_VECTOR_BYTES > 0 ? 4u : 1u)
#define RR_TURN_MAX 4u
#define RR_SHAPE(src_count, dst_count) ((uint64_t)(src_count) << 32 | (dst_count))

/*
 * A destination that is no source (a slot) was last read by another core: a store to it waits for that
 * core's copy, and no hardware prefetcher runs ahead of stores. Asking for the line early made copies
 * through slots up to four times faster where the cores are far apart. A destination that is a
 * source was loaded a moment ago: there `ahead` is 0, and the request costs next to nothing.
 */
#define RR_LINE_BYTES 64u
#define RR_AHEAD_BYTES 1024u

/*
 * Where that core shares no cache with this one, each line of such a store is fetched from it, though all of it is
 * overwritten, and then fetched by it again. Stores past the caches need neither: 131072 bytes written here and read
 * there took 18 to 20 us, whatever the cores, where ordinary stores took 11 us on cores that share a cache and 36 to
 * 50 us on others. Who asks for it knows which they are (apart.h).
 */
#define RR_PAST_ALIGNMENT 64u

RR_INLINE bool rr_past(const struct rr_combine *combine)
{
#if RR_VECTOR_BYTES > 0
	return combine->past_last && combine->dst_count &&
	       (uintptr_t)combine->dst[combine->dst_count - 1] % RR_PAST_ALIGNMENT == 0;
#else
	(void)combine;
	return false;
#endif
}

/* They become visible in any order: not before this. */
RR_INLINE void rr_past_end(void)
{
#if RR_VECTOR_BYTES > 0
	_mm_sfence();
#endif
}

RR_INLINE size_t rr_ahead(const struct rr_combine *combine)
{
	const void *last = combine->dst_count ? combine->dst[combine->dst_count - 1] : NULL;

	for (uint32_t s = 0; s < combine->src_count; s++)
		if (combine->src[s] == last)
			return 0;
	return RR_AHEAD_BYTES;
}

RR_INLINE void rr_fetch_for_store(const void *line)
{
#if RR_VECTOR_BYTES > 0
	__builtin_prefetch(line, 1, 3);
#else
	(void)line;
#endif
}

#if defined(__clang__)
#define RR_UNROLL _Pragma("unroll")
#else
#define RR_UNROLL _Pragma("GCC unroll 8")
#endif

/* `registers` at a time; inlined, so constant counts leave neither loop nor array. */
#define RR_DEFINE_TURN(dtype, op)                                                                 \
	RR_INLINE void dtype##_##op##_take(dtype##_v *acc, uint32_t registers,                    \
					   const void *const *src, uint32_t src_count,            \
					   size_t at, dtype##_v factor)                           \
	{                                                                                         \
		const unsigned char *from = (const unsigned char *)src[0] + at;                   \
                                                                                                  \
		RR_UNROLL for (uint32_t r = 0; r < registers; r++)                                \
			acc[r] = dtype##_load(from + r * dtype##_step);                           \
		for (uint32_t s = 1; s < src_count; s++) {                                        \
			from = (const unsigned char *)src[s] + at;                                \
			RR_UNROLL for (uint32_t r = 0; r < registers; r++)                        \
				acc[r] = dtype##_##op(acc[r], dtype##_load(from + r * dtype##_step)); \
		}                                                                                 \
		RR_UNROLL for (uint32_t r = 0; r < registers; r++)                                \
			acc[r] = dtype##_scale(acc[r], factor);                                   \
	}                                                                                         \
	RR_INLINE void dtype##_##op##_put(const dtype##_v *acc, uint32_t registers,               \
					  void *const *dst, uint32_t dst_count, size_t at,        \
					  size_t ahead, bool past)                                \
	{                                                                                         \
		for (uint32_t d = 0; d < dst_count; d++) {                                        \
			unsigned char *to = (unsigned char *)dst[d] + at;                         \
                                                                                                  \
			if (past && d + 1 == dst_count) {                                         \
				RR_UNROLL for (uint32_t r = 0; r < registers; r++)                \
					dtype##_store_past(to + r * dtype##_step, acc[r]);        \
				continue;                                                         \
			}                                                                         \
			RR_UNROLL for (uint32_t b = 0; b < registers * dtype##_step; b += RR_LINE_BYTES) \
				rr_fetch_for_store(to + ahead + b);                               \
			RR_UNROLL for (uint32_t r = 0; r < registers; r++)                        \
				dtype##_store(to + r * dtype##_step, acc[r]);                     \
		}                                                                                 \
	}

/* By turns of `turn` registers, while a whole turn is left. Returns where it stopped. */
#define RR_DEFINE_LOOPS(dtype, op)                                                                \
	RR_INLINE size_t dtype##_##op##_loop(const struct rr_combine *combine, size_t bytes,      \
					     const void *const *src, uint32_t src_count,          \
					     void *const *dst, uint32_t dst_count, uint32_t turn, \
					     bool past)                                           \
	{                                                                                         \
		dtype##_v factor = dtype##_factor(combine), acc[RR_TURN_MAX];                     \
		size_t step = (size_t)turn * dtype##_step, at = 0;                                \
		size_t ahead = rr_ahead(combine);                                                 \
                                                                                                  \
		for (; bytes - at >= step; at += step) {                                          \
			dtype##_##op##_take(acc, turn, src, src_count, at, factor);               \
			dtype##_##op##_put(acc, turn, dst, dst_count, at, ahead, past);           \
		}                                                                                 \
		if (past)                                                                         \
			rr_past_end();                                                            \
		return at;                                                                        \
	}                                                                                         \
	/* For constant counts: every pointer in a register. */                                   \
	RR_INLINE size_t dtype##_##op##_fixed(const struct rr_combine *combine, size_t bytes,     \
					      uint32_t src_count, uint32_t dst_count, bool past)  \
	{                                                                                         \
		const void *src[RR_FIXED_MAX];                                                    \
		void *dst[RR_FIXED_MAX];                                                          \
                                                                                                  \
		for (uint32_t s = 0; s < src_count; s++)                                          \
			src[s] = combine->src[s];                                                 \
		for (uint32_t d = 0; d < dst_count; d++)                                          \
			dst[d] = combine->dst[d];                                                 \
		return dtype##_##op##_loop(combine, bytes, src, src_count, dst, dst_count,        \
					   RR_TURN_FIXED, past);                                  \
	}                                                                                         \
	RR_INLINE size_t dtype##_##op##_any(const struct rr_combine *combine, size_t bytes)       \
	{                                                                                         \
		return dtype##_##op##_loop(combine, bytes, combine->src, combine->src_count,      \
					   combine->dst, combine->dst_count, RR_TURN_ANY,         \
					   rr_past(combine));                                     \
	}

/* What is left from `at` on: registers one by one, then a part of one. */
#if RR_VECTOR_BYTES > 0
#define RR_DEFINE_REST(dtype, op)                                                                 \
	RR_KERNEL __attribute__((noinline)) void dtype##_##op##_rest(                             \
		const struct rr_combine *combine, size_t at, size_t bytes)                        \
	{                                                                                         \
		dtype##_v factor = dtype##_factor(combine), acc = factor;                         \
                                                                                                  \
		for (; bytes - at >= dtype##_step; at += dtype##_step) {                          \
			dtype##_##op##_take(&acc, 1, combine->src, combine->src_count, at, factor); \
			dtype##_##op##_put(&acc, 1, combine->dst, combine->dst_count, at, 0, false); \
		}                                                                                 \
		if (at == bytes)                                                                  \
			return;                                                                   \
		for (uint32_t s = 0; s < combine->src_count; s++) {                               \
			const unsigned char *from = (const unsigned char *)combine->src[s] + at;  \
			dtype##_v next = dtype##_load_part(from, bytes - at);                     \
                                                                                                  \
			acc = s == 0 ? next : dtype##_##op(acc, next);                            \
		}                                                                                 \
		acc = dtype##_scale(acc, factor);                                                 \
		for (uint32_t d = 0; d < combine->dst_count; d++)                                 \
			dtype##_store_part((unsigned char *)combine->dst[d] + at, acc, bytes - at); \
	}
#else
#define RR_DEFINE_REST(dtype, op)                                                                 \
	RR_INLINE void dtype##_##op##_rest(const struct rr_combine *combine, size_t at, size_t bytes) \
	{                                                                                         \
		(void)combine; /* every turn is one element: nothing is left */                   \
		(void)at;                                                                         \
		(void)bytes;                                                                      \
	}
#endif

/* One source, no post-operation: bits are kept, NaN payloads too. Defined below, as sums of one source. */
RR_KERNEL void rr_copy(const struct rr_combine *combine, size_t bytes);

#define RR_FIXED_CASE(dtype, op, src_count, dst_count)                                            \
	case RR_SHAPE(src_count, dst_count):                                                      \
		at = dtype##_##op##_fixed(combine, bytes, src_count, dst_count, false);           \
		break;

/* The ring's: with a loop of its own past the caches, too. */
#define RR_FIXED_CASE_PAST(dtype, op, src_count, dst_count)                                       \
	case RR_SHAPE(src_count, dst_count):                                                      \
		at = rr_past(combine) ? dtype##_##op##_fixed(combine, bytes, src_count, dst_count, true) \
				      : dtype##_##op##_fixed(combine, bytes, src_count, dst_count, false); \
		break;

#define RR_FIXED_CASES_few(dtype, op)                                                             \
	RR_FIXED_CASE_PAST(dtype, op, 2, 1)                                                       \
	RR_FIXED_CASE_PAST(dtype, op, 2, 2)

#if RR_VECTOR_BYTES > 0
#define RR_FIXED_CASES_many(dtype, op)                                                            \
	RR_FIXED_CASES_few(dtype, op)                                                             \
	RR_FIXED_CASE(dtype, op, 3, 1)                                                            \
	RR_FIXED_CASE(dtype, op, 3, 3)                                                            \
	RR_FIXED_CASE(dtype, op, 4, 1)                                                            \
	RR_FIXED_CASE(dtype, op, 4, 4)                                                            \
	RR_FIXED_CASE(dtype, op, 8, 1)                                                            \
	RR_FIXED_CASE(dtype, op, 8, 8)
#else
#define RR_FIXED_CASES_many RR_FIXED_CASES_few
#endif

#define RR_DEFINE_COMBINE(dtype, op, cases)                                                       \
	RR_DEFINE_TURN(dtype, op)                                                                 \
	RR_DEFINE_LOOPS(dtype, op)                                                                \
	RR_DEFINE_REST(dtype, op)                                                                 \
	RR_KERNEL void dtype##_##op##_pass(const struct rr_combine *combine)                      \
	{                                                                                         \
		size_t bytes = combine->count * dtype##_element, at = 0;                          \
                                                                                                  \
		if (combine->src_count == 1 && !(dtype##_scales && combine->post)) {              \
			rr_copy(combine, bytes);                                                  \
			return;                                                                   \
		}                                                                                 \
		if (bytes >= RR_TURN_FIXED * dtype##_step) {                                      \
			switch (RR_SHAPE(combine->src_count, combine->dst_count)) {               \
			RR_FIXED_CASES_##cases(dtype, op)                                         \
			default:                                                                  \
				at = dtype##_##op##_any(combine, bytes);                          \
			}                                                                         \
		}                                                                                 \
		if (at < bytes)                                                                   \
			dtype##_##op##_rest(combine, at, bytes);                                  \
	}

/* Bytes of an element; whether the post-operation exists. */
enum {
	f32_element = 4, f64_element = 8, f16_element = 2, bf16_element = 2,
	i8_element = 1, i16_element = 2, i32_element = 4, i64_element = 8,
	u8_element = 1, u16_element = 2, u32_element = 4, u64_element = 8,
	f32_scales = 1, f64_scales = 1, f16_scales = 1, bf16_scales = 1,
	i8_scales = 0, i16_scales = 0, i32_scales = 0, i64_scales = 0,
	u8_scales = 0, u16_scales = 0, u32_scales = 0, u64_scales = 0
};

#define RR_DEFINE_ARITHMETIC(dtype)                                                               \
	RR_DEFINE_COMBINE(dtype, sum, many)                                                       \
	RR_DEFINE_COMBINE(dtype, prod, few)
#define RR_DEFINE_ORDER(dtype)                                                                    \
	RR_DEFINE_COMBINE(dtype, min, few)                                                        \
	RR_DEFINE_COMBINE(dtype, max, few)

RR_DEFINE_ARITHMETIC(f32)
RR_DEFINE_ARITHMETIC(f64)
RR_DEFINE_ARITHMETIC(f16)
RR_DEFINE_ARITHMETIC(bf16)
RR_DEFINE_ARITHMETIC(u8)
RR_DEFINE_ARITHMETIC(u16)
RR_DEFINE_ARITHMETIC(u32)
RR_DEFINE_ARITHMETIC(u64)
RR_DEFINE_ORDER(f32)
RR_DEFINE_ORDER(f64)
RR_DEFINE_ORDER(f16)
RR_DEFINE_ORDER(bf16)
RR_DEFINE_ORDER(i8)
RR_DEFINE_ORDER(i16)
RR_DEFINE_ORDER(i32)
RR_DEFINE_ORDER(i64)
RR_DEFINE_ORDER(u8)
RR_DEFINE_ORDER(u16)
RR_DEFINE_ORDER(u32)
RR_DEFINE_ORDER(u64)

/*
 * The C library copies more than about 2 KiB by `rep movsb` where the processor calls that fast; some
 * then copy 2.7 GB/s where a loop copies 25, if the destination lies a few bytes above a multiple of
 * 4 KiB from the source. Below that memcpy is the fastest, and right at any time.
 */
#define RR_COPY_LOOP_BYTES 2048u

RR_KERNEL void rr_copy(const struct rr_combine *combine, size_t bytes)
{
	size_t at;

	if (RR_VECTOR_BYTES == 0 || bytes < RR_COPY_LOOP_BYTES) {
		rr_combine_memcpy(combine, bytes);
		return;
	}
	if (combine->dst_count == 1 && combine->dst[0] == combine->src[0])
		return;
	if (combine->dst_count == 1)
		at = rr_past(combine) ? u8_sum_fixed(combine, bytes, 1, 1, true) : u8_sum_fixed(combine, bytes, 1, 1, false);
	else if (combine->dst_count == 2)
		at = rr_past(combine) ? u8_sum_fixed(combine, bytes, 1, 2, true) : u8_sum_fixed(combine, bytes, 1, 2, false);
	else
		at = u8_sum_any(combine, bytes);
	u8_sum_rest(combine, at, bytes);
}

/* Sums and products of signed integers have the bits of the unsigned ones. */
#define RR_TABLE_ROW(arithmetic, order)                                                           \
	{                                                                                         \
		[RR_SUM] = arithmetic##_sum_pass, [RR_PROD] = arithmetic##_prod_pass,             \
		[RR_MIN] = order##_min_pass, [RR_MAX] = order##_max_pass                          \
	}

const rr_combine_table RR_TABLE = {
	[RR_FLOAT32] = RR_TABLE_ROW(f32, f32),
	[RR_FLOAT64] = RR_TABLE_ROW(f64, f64),
	[RR_FLOAT16] = RR_TABLE_ROW(f16, f16),
	[RR_BFLOAT16] = RR_TABLE_ROW(bf16, bf16),
	[RR_INT8] = RR_TABLE_ROW(u8, i8),
	[RR_INT16] = RR_TABLE_ROW(u16, i16),
	[RR_INT32] = RR_TABLE_ROW(u32, i32),
	[RR_INT64] = RR_TABLE_ROW(u64, i64),
	[RR_UINT8] = RR_TABLE_ROW(u8, u8),
	[RR_UINT16] = RR_TABLE_ROW(u16, u16),
	[RR_UINT32] = RR_TABLE_ROW(u32, u32),
	[RR_UINT64] = RR_TABLE_ROW(u64, u64),
};
