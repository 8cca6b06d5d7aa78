/*
 * crc.h - CRC32C (Castagnoli, RFC 3720): reflected polynomial 0x82f63b78, start and end inverted.
 *
 * By the processor's instruction where it has one (SSE 4.2), three streams at a time, else by tables.
 */
#ifndef RR_CRC_H
#define RR_CRC_H

#include <stddef.h>
#include <stdint.h>

/* Of what came before (0: nothing) and `bytes` more. rr_crc32c(rr_crc32c(0, a, n), b, m) is that of a and b together. */
uint32_t rr_crc32c(uint32_t crc, const void *data, size_t bytes);
/* The same by tables alone. */
uint32_t rr_crc32c_tables(uint32_t crc, const void *data, size_t bytes);
/* Of a and b together, out of the sums of each; `bytes`: how long b is. */
uint32_t rr_crc32c_join(uint32_t a, uint32_t b, uint64_t bytes);

#endif
