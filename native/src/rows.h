/*
 * rows.h - one rank's table of a schedule: decoded, bounds checked, ready to be walked.
 *
 * The bytes are written by rdmaring/schedule/encode.py; docs/ALGORITHMS.md describes them. Nothing
 * from outside is believed: every index is checked here, once, so that the engine need not.
 */
#ifndef RR_ROWS_H
#define RR_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rdmaring.h"
#include "wire.h"

#define RR_RANK_MAGIC 0x31535252u /* "RRS1" */
#define RR_FILE_MAGIC 0x46535252u /* "RRSF" */
#define RR_ROWS_VERSION 2u
#define RR_WORLD_MAX 65536u
#define RR_TABLE_MAX (1u << 24) /* rows, receives, sends or dependencies of one rank */

enum rr_action { RR_ACTION_NONE = 0, RR_ACTION_COPY = 1, RR_ACTION_REDUCE = 2 };

enum rr_row_flag {
	RR_ROW_FIRST = 1,  /* the operand is the user's input */
	RR_ROW_LAST = 2,   /* the post-operation applies here */
	RR_ROW_TRANSIT = 4, /* dst is read by nothing but this row's sends */
	RR_ROW_WIDE = 8,    /* dst and its sends are float32, though the vector is of 16-bit floats */
	RR_ROW_TAKES_WIDE = 16 /* the receives are float32 */
};
#define RR_ROW_CHANNEL_SHIFT 16 /* of row.flags: above it stands the row's channel */

enum rr_after_kind { RR_AFTER_DONE = 0, RR_AFTER_RELEASED = 1 };

struct rr_receive {
	int32_t peer;
	int32_t source; /* the sender's buffer */
	uint32_t order; /* this is the order-th receive over that link; both by rr_schedule_bind() */
	uint32_t link;
};

struct rr_send {
	int32_t peer;
	int32_t lands;  /* the receiver's buffer if its row only lands the bytes, else -1 */
	uint32_t order; /* this is the order-th send over that link; both by rr_schedule_bind() */
	uint32_t link;
};

struct rr_after {
	int32_t row; /* an earlier one */
	int32_t kind;
};

struct rr_row {
	int32_t step;
	int32_t buffer;
	int32_t chunk_begin, chunk_end;
	int32_t cell;
	int32_t action;
	int32_t operand_buffer; /* -1: none */
	int32_t operand_cell;
	int32_t operand_at; /* place of the operand among the sources */
	int32_t flags;
	int32_t receive_begin, receive_end;
	int32_t send_begin, send_end;
	int32_t after_begin, after_end;
};

/* Of an all_to_all: the first row that handles a chunk which its rank neither gives nor gets. */
struct rr_forward {
	int32_t rank;
	uint32_t row;
	int32_t chunk; /* -1: there is no such row */
};

struct rr_schedule {
	int32_t collective;
	uint32_t world, rank;
	uint32_t chunk_count, step_count, cell_count, window;
	int32_t root; /* -1: none */
	uint64_t identity;
	uint32_t row_count, receive_count, send_count, after_count;
	struct rr_row *rows;
	struct rr_receive *receives;
	struct rr_send *sends;
	struct rr_after *afters;
	struct rr_forward forward; /* among this rank's rows; of a file among all ranks' */
	uint32_t link_count;     /* of the tables below; 0 before rr_schedule_bind() */
	uint32_t *sends_to;      /* [link_count] sends of one run over each link */
	uint32_t *receives_from; /* [link_count] */
};

static inline uint32_t rr_row_channel(const struct rr_row *row)
{
	return (uint32_t)row->flags >> RR_ROW_CHANNEL_SHIFT;
}

/* One more than the largest channel of this rank's rows. */
uint32_t rr_schedule_channel_count(const struct rr_schedule *schedule);

/*
 * Give every send and receive its link, and its place in the order of that link: the k-th send meets the k-th receive.
 * channels: [world] links of each edge; channel c of a row goes over link c modulo these, numbered
 * (that) * world + peer. NULL: one each.
 */
rr_status rr_schedule_bind(struct rr_schedule *schedule, const uint32_t *channels);

/* A deep copy, not bound; the caller frees it by rr_schedule_free(). NULL without memory. */
struct rr_schedule *rr_schedule_copy(const struct rr_schedule *schedule);

#endif
