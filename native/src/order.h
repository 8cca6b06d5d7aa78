/*
 * order.h - the memory-order operations, named by what they are for.
 *
 * Nothing else in the tree calls atomic_* on memory that two processes share. Each pair is named at
 * the call: publish() pairs with observe().
 */
#ifndef RR_ORDER_H
#define RR_ORDER_H

#include <stdatomic.h>
#include <stdint.h>

#define RR_CACHE_LINE 64u /* bytes; x86-64 and most aarch64 */

/* Make everything written before visible to whoever observes this value. */
static inline void rr_publish64(_Atomic uint64_t *word, uint64_t value)
{
	atomic_store_explicit(word, value, memory_order_release);
}

static inline void rr_publish32(_Atomic uint32_t *word, uint32_t value)
{
	atomic_store_explicit(word, value, memory_order_release);
}

/* See a published value, and all that was written before it. */
static inline uint64_t rr_observe64(const _Atomic uint64_t *word)
{
	return atomic_load_explicit((_Atomic uint64_t *)word, memory_order_acquire);
}

static inline uint32_t rr_observe32(const _Atomic uint32_t *word)
{
	return atomic_load_explicit((_Atomic uint32_t *)word, memory_order_acquire);
}

/* One's own word, or a figure for reading by eye: no order with other memory. */
static inline uint64_t rr_own64(const _Atomic uint64_t *word)
{
	return atomic_load_explicit((_Atomic uint64_t *)word, memory_order_relaxed);
}

static inline uint32_t rr_own32(const _Atomic uint32_t *word)
{
	return atomic_load_explicit((_Atomic uint32_t *)word, memory_order_relaxed);
}

static inline void rr_note64(_Atomic uint64_t *word, uint64_t value)
{
	atomic_store_explicit(word, value, memory_order_relaxed);
}

static inline void rr_note32(_Atomic uint32_t *word, uint32_t value)
{
	atomic_store_explicit(word, value, memory_order_relaxed);
}

/* Put one's number into a word that holds 0; what it held, which stays unless it was 0. */
static inline uint32_t rr_claim32(_Atomic uint32_t *word, uint32_t number)
{
	uint32_t held = 0;

	atomic_compare_exchange_strong_explicit(word, &held, number, memory_order_acq_rel, memory_order_acquire);
	return held;
}

/*
 * Sleeping: the sleeper says "I sleep", then looks once more; the waker publishes, then looks for
 * sleepers. Each side's store must be ordered before its load, which only a full fence gives.
 */
static inline void rr_store_before_load(void)
{
	atomic_thread_fence(memory_order_seq_cst);
}

static inline void rr_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

#endif
