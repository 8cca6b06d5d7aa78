/*
 * stream_edge.h - an edge over ordered streams of bytes: what both directions share, and the frames.
 *
 * link_tcp.c has streams that are data sockets, link_message.c one that somebody else's transport carries.
 * Transfer k of a direction goes over stream k mod S. OPEN and tiny messages go over stream 0, in
 * order with its transfers. A frame, little-endian:
 *
 *   byte 0        4      6          8    16      20      24      28        32       40    44       48
 *        +--------+------+----------+----+-------+-------+-------+---------+--------+-----+--------+- - - - -
 *        | magic  | kind | row_high | op | order | slice | bytes | row_low | serial | crc | origin | payload
 *        +--------+------+----------+----+-------+-------+-------+---------+--------+-----+--------+- - - - -
 *
 * bytes: of the payload. serial: of a tiny message its tag; of a transfer its number, from 0. crc, origin: of a transfer's
 * payload, where the operation checks, as in rr_data; else 0.
 */
#ifndef RR_STREAM_EDGE_H
#define RR_STREAM_EDGE_H

#include <assert.h>
#include <sys/uio.h>

#include "far.h"
#include "link.h"
#include "pin.h"

#define RR_FRAME_MAGIC 0x46545252u /* "RRTF" */
#define RR_FRAMES_MAX 8u           /* of one stream, not yet wholly taken */
#define RR_DONE_MAX (RR_FRAMES_MAX * RR_FAR_STREAMS_MAX)

enum rr_frame_kind { RR_FRAME_OPEN = 1, RR_FRAME_DATA = 2, RR_FRAME_TINY = 3 };

struct rr_frame {
	uint32_t magic;
	uint16_t kind;
	uint16_t row_high; /* DATA with counts by pair: 1 + bytes of the row, 48 bits; else 0 */
	uint64_t op;
	uint32_t order;
	uint32_t slice;
	uint32_t bytes;
	uint32_t row_low;
	uint64_t serial;
	uint32_t crc;
	uint32_t origin;
};
_Static_assert(sizeof(struct rr_frame) == 48, "a frame's head is 48 bytes on the wire");

#define RR_ROW_MASK ((1ull << 48) - 1) /* what a frame carries of a row's size */

struct rr_open_body { /* payload of an OPEN frame */
	struct rr_open open;
	struct rr_descriptor descriptor;
};
#define RR_OPEN_BODY_BYTES (sizeof(struct rr_open) + sizeof(struct rr_descriptor)) /* without padding at the end */
_Static_assert(offsetof(struct rr_open_body, descriptor) == 64 && RR_OPEN_BODY_BYTES == 168, "an OPEN's payload is 168 bytes");

/* A frame on its way into the stream. */
struct rr_sending {
	struct rr_frame frame;
	struct iovec parts[1 + RR_PIECES_MAX]; /* parts[0] is the frame */
	uint32_t part, part_count;
	bool transfer;
	uint64_t number; /* of the transfer */
	uint8_t *own;    /* body that is ours to free: OPEN, tiny */
	struct rr_pin_range staging; /* kept for slices that were packed */
};

/* One stream, both directions. */
struct rr_stream {
	int socket; /* -1 until it may be used */
	struct rr_sending queue[RR_FRAMES_MAX];
	uint32_t first, count;
	/* receiving */
	struct rr_frame frame;
	uint32_t head_got, body_got;
};

struct rr_stream_edge;

/* How bytes get into a stream and out of it. */
struct rr_stream_io {
	/* Bytes moved from the front of `parts`, which is not empty; -EAGAIN: none now; else another -errno. */
	ssize_t (*write)(struct rr_stream_edge *edge, struct rr_stream *stream, const struct iovec *parts, uint32_t count);
	/* parts[0] or parts[1] may be empty, not both. 0: the stream has ended. */
	ssize_t (*read)(struct rr_stream_edge *edge, struct rr_stream *stream, const struct iovec parts[2]);
	/* Record the error of an edge whose stream has ended. */
	rr_status (*lost)(struct rr_stream_edge *edge);
};

struct rr_stream_link {
	struct rr_link link;
	struct rr_stream_edge *edge;
};

struct rr_stream_edge {
	struct rr_stream_link out, in;
	struct rr_link_ops ops;
	const struct rr_stream_io *io;
	struct rr_far *far;
	int32_t peer;
	uint32_t channel; /* of the edge; set when it is served */
	uint32_t stream_count, ends; /* ends: links not closed yet */
	uint64_t slot_bytes;
	struct rr_stream *streams;
	int lost_errno;
	uint64_t lost_ns; /* when a stream ended; 0: never */
	bool at_once;     /* why is known: nothing else is looked for */
	/* sender */
	uint64_t taken; /* transfers wholly in their streams, without a gap */
	bool done[RR_DONE_MAX];
	/* receiver */
	struct rr_pin_range bounce;
	struct rr_open_body open;
	uint64_t open_op; /* that `open` is of; 0: none */
	uint8_t *tiny[2]; /* payloads, by serial */
	bool tiny_there;
	uint32_t tiny_serial;
	uint32_t tiny_bytes;
	uint64_t tiny_tag;
};

static inline struct rr_stream_edge *rr_stream_edge_of(struct rr_link *link)
{
	return ((struct rr_stream_link *)link)->edge;
}

/* stream_edge.c */
/* Of a zeroed edge. ops: transport, describe, close, and progress if it has its own; the others are filled in. */
rr_status rr_stream_edge_init(struct rr_stream_edge *edge, struct rr_far *far, int32_t peer, uint32_t streams,
			      uint64_t slot_bytes, const struct rr_stream_io *io, const struct rr_link_ops *ops);
/* What the edge owns, but for its streams. */
void rr_stream_edge_clear(struct rr_stream_edge *edge);
void rr_stream_lose(struct rr_stream_edge *edge, int failed);
/* RR_AGAIN while the watch may still find out why a stream ended, then the link's error. */
rr_status rr_stream_lost(struct rr_stream_edge *edge);
/* stream_send.c */
rr_status rr_stream_open_post(struct rr_link *out, const struct rr_open *open, const struct rr_descriptor *descriptor);
rr_status rr_stream_reserve(struct rr_link *out, const struct rr_transfer *transfer, void **place);
void rr_stream_commit(struct rr_link *out, const struct rr_transfer *transfer);
void rr_stream_abort(struct rr_link *out);
uint64_t rr_stream_released(struct rr_link *out);
rr_status rr_stream_tiny_post(struct rr_link *out, uint64_t tag, const void *payload, uint32_t bytes);
rr_status rr_stream_push(struct rr_link *out);
/* stream_receive.c */
rr_status rr_stream_open_peek(struct rr_link *in, uint64_t op, const struct rr_open **open);
rr_status rr_stream_peek(struct rr_link *in, const struct rr_transfer *transfer, const void **data);
void rr_stream_release(struct rr_link *in, uint32_t bytes);
rr_status rr_stream_tiny_peek(struct rr_link *in, uint32_t serial, uint64_t *tag, const void **payload, uint32_t *bytes);

#endif
