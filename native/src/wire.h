/*
 * wire.h - what two ranks tell each other about one operation: OPEN and DATA.
 *
 * Layouts are fixed: little-endian, sizes asserted, version raised on any change. On shared memory
 * they lie in the sender's page as they are; on other transports they are the messages.
 */
#ifndef RR_WIRE_H
#define RR_WIRE_H

#include <assert.h>
#include <stdalign.h>
#include <stddef.h>
#include <stdint.h>

#include "order.h"

#define RR_WIRE_VERSION 9
#define RR_CHANNELS_MAX 16u /* links of operations an edge may have; one more carries messages */

enum rr_buffer_id { RR_INPUT = 0, RR_OUTPUT = 1, RR_SCRATCH = 2, RR_BUFFER_COUNT = 3 };

/* How one of a rank's buffers can be reached by a peer in this operation. */
enum rr_reach {
	RR_REACH_NONE = 0,   /* through slots only */
	RR_REACH_REGION = 1, /* registered memory: region and offset */
	RR_REACH_CMA = 2,    /* ordinary memory in one piece: address */
	RR_REACH_DEVICE = 3  /* in one process: a device's memory, region and offset; a link tells it as REGION, or not at all */
};

/*
 *   byte 0        8         12       16
 *        +--------+---------+--------+
 *        | base   | region  | reach  |
 *        +--------+---------+--------+
 * base is where vector coordinate 0 would lie: an offset in the region, or an address (modulo 2^64:
 * a rank that holds one chunk of the vector has its coordinate 0 before its memory's start).
 */
struct rr_place {
	uint64_t base;
	uint32_t region;
	uint32_t reach; /* enum rr_reach */
};
_Static_assert(sizeof(struct rr_place) == 16, "OPEN holds three places in one line");

/*
 * OPEN: "I am in operation `op`, and it is this one." One cache line; op is published last.
 *
 *   byte 0    8            16      32       48        64
 *        +----+------------+-------+--------+---------+
 *        | op | descriptor | input | output | scratch |
 *        +----+------------+-------+--------+---------+
 */
struct rr_open {
	alignas(RR_CACHE_LINE) _Atomic uint64_t op;
	uint64_t descriptor; /* hash of rr_descriptor: equal on all ranks, or a mismatch */
	struct rr_place place[RR_BUFFER_COUNT];
};
_Static_assert(sizeof(struct rr_open) == 64, "OPEN is one line");

/* All that ranks must agree on. Ranks that differ in a byte are in different operations. */
struct rr_descriptor {
	uint64_t hash; /* of the bytes that follow */
	uint64_t count;
	uint64_t schedule; /* identity: algorithm, version, world, root */
	uint64_t chunks;   /* hash of the chunk table */
	uint64_t slice_bytes;
	double scale;
	int32_t collective;
	int32_t dtype;
	int32_t redop;
	int32_t root;
	uint32_t round_count;
	uint32_t mailbox;
	char algorithm[24];
	uint32_t costs; /* hash of the constants that chose the algorithm: other constants choose otherwise */
	uint8_t channels; /* that the rows are cut into */
	uint8_t device;   /* where the vectors lie: enum rr_device_kind */
	uint8_t check;    /* slices carry two CRC32C: of the hop, and of their origin */
	uint8_t listed;   /* runs as a list on streams */
};
_Static_assert(sizeof(struct rr_descriptor) == 104, "descriptors are compared byte by byte: no padding");

/* How the bytes of one transfer get across. Both ends compute it from both OPENs. */
enum rr_mode {
	RR_MODE_SLOT = 0,   /* the sender fills a slot of the link */
	RR_MODE_SOURCE = 1, /* the receiver reads the sender's registered memory in place */
	RR_MODE_WRITE = 2,  /* the sender writes the receiver's registered memory in place */
	RR_MODE_CMA = 3,    /* the receiver has the kernel copy from the sender's ordinary memory */
	RR_MODE_STREAM = 4  /* the sender's bytes are pushed, and land where the receiver wants them */
};

#define RR_SLOT_COMMON 0x80000000u /* in DATA.slot, on shared memory: a slot that several ranks read */

/*
 * DATA: one slice. One cache line; serial is published last, after the payload.
 *
 *   byte 0        8    16      20      24      28         32     36     40           48         56       60    64
 *        +--------+----+-------+-------+-------+----------+------+------+------------+----------+--------+-----+
 *        | serial | op | order | slice | bytes | released | mode | slot | coordinate | reserved | origin | crc |
 *        +--------+----+-------+-------+-------+----------+------+------+------------+----------+--------+-----+
 */
struct rr_data {
	alignas(RR_CACHE_LINE) _Atomic uint64_t serial; /* of the link, from 1 */
	uint64_t op;
	uint32_t order; /* this is the order-th row on this link in this operation */
	uint32_t slice;
	uint32_t bytes;
	uint32_t released; /* on shared memory: how many transfers of the other direction the sender has released, low half; else 0 */
	uint32_t mode; /* enum rr_mode */
	uint32_t slot; /* which payload slot, for RR_MODE_SLOT */
	uint64_t coordinate; /* SOURCE and CMA: where in the sender's buffer. SLOT with counts by pair: 1 + bytes of the row */
	uint8_t reserved[8];
	uint32_t origin; /* where the descriptor says check: CRC32C of the payload as its origin had it; else 0 */
	uint32_t crc;    /* likewise, of the payload as the sender read it */
};
_Static_assert(sizeof(struct rr_data) == 64, "DATA is one line");

#endif
