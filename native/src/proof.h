/*
 * proof.h - proof of a job's key between ranks: SipHash-2-4, keyed with 128 bits.
 *
 * After J.-P. Aumasson and D. J. Bernstein, "SipHash: a fast short-input PRF" (2012). Every proof is over
 * nonces of both sides and a label, so that none can be used twice or for the other side.
 */
#ifndef RR_PROOF_H
#define RR_PROOF_H

#include <stddef.h>
#include <stdint.h>

#define RR_KEY_BYTES 16u

uint64_t rr_proof(const uint8_t key[RR_KEY_BYTES], const void *message, size_t size);

#endif
