/*
 * engine_origin.h - what the bytes of an operation were where they came from: sums that travel with them.
 *
 * With check="crc" a transfer carries two sums: of the bytes as this hop's sender read them, and of the bytes as their
 * origin had them. Here a rank keeps the latter of what landed or was computed in its OUTPUT and SCRATCH and is read
 * there again: by a later send, or as an operand. So what its memory does to them in between is noticed by whoever
 * gets them, and named: the hop's sum is right, and the origin's is not.
 *
 * A piece is an interval that lies in one cell of a grid of RR_ORIGIN_GRID bytes, fixed in the buffer's coordinates, and in one
 * chunk, so that no row overwrites a part of a piece whose rest another row still reads. A send
 * that cuts elsewhere than its receive did joins the sums of whole pieces. A piece that it cuts is summed anew, both
 * sides: if they give the piece's sum together, each is right.
 *
 * What nothing is noted of is this rank's own: its INPUT, and what lay in OUTPUT before.
 */
#ifndef RR_ENGINE_ORIGIN_H
#define RR_ENGINE_ORIGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rdmaring.h"
#include "wire.h"

#define RR_ORIGIN_GRID 16384u

struct rr_plan;
struct rr_schedule;
struct rr_open_row;

struct rr_origin_piece {
	uint64_t begin; /* coordinate in its buffer */
	uint32_t bytes;
	uint32_t crc;
	uint32_t next; /* 1 + index of the next one of the same cell, by coordinate; 0: none */
};

struct rr_origins {
	uint32_t *cells[RR_BUFFER_COUNT]; /* 1 + index of the first piece in each; of INPUT there are none */
	uint64_t cell_count[RR_BUFFER_COUNT], cell_room[RR_BUFFER_COUNT];
	const uint64_t *chunks; /* [chunk_count + 1] the plan's, in OUTPUT */
	uint32_t chunk_count;
	struct rr_origin_piece *pieces;
	uint32_t used, room, spare; /* spare: 1 + index of the first that is free again */
};

/* Forget what was noted, and have room for an operation of the plan, which checks. */
rr_status rr_origin_start(struct rr_origins *origins, const struct rr_plan *plan);
void rr_origin_free(struct rr_origins *origins);

/* [row_count] whether what a row lands or computes is read from its dst again. NULL without memory. */
bool *rr_origin_kept(const struct rr_schedule *rows);

/*
 * The row is about to overwrite these bytes, or its peer has begun to: what is kept of the bytes beside them is kept apart. With
 * `forget`: they are overwritten, and nothing is kept of them.
 */
rr_status rr_origin_overwrite(const struct rr_open_row *work, enum rr_buffer_id buffer, uint64_t begin, uint64_t bytes, bool forget);
/* The sum of `bytes` at data, kept as what lies from coordinate `begin` of a buffer on. */
rr_status rr_origin_note(struct rr_origins *origins, enum rr_buffer_id buffer, uint64_t begin, const void *data, uint64_t bytes,
			 uint32_t *crc);
/* The same of what lies there in the memory of the row's rank. */
rr_status rr_origin_keep(const struct rr_open_row *work, enum rr_buffer_id buffer, uint64_t begin, uint64_t bytes, uint32_t *crc);
/* The sum of what lies there, and nothing kept. */
uint32_t rr_origin_memory(const struct rr_open_row *work, enum rr_buffer_id buffer, uint64_t begin, uint64_t bytes);
/*
 * What the sum of these bytes of the row's rank was where they came from. *crc stays as it is where nothing is kept of any of them.
 * RR_ERR_CORRUPT: a piece had to be cut, and is no longer what it was.
 */
rr_status rr_origin_sum(const struct rr_open_row *work, enum rr_buffer_id buffer, uint64_t begin, uint64_t bytes, uint32_t *crc);
/* RR_ERR_CORRUPT: these bytes, which the row is about to read, are no longer what was kept of them. */
rr_status rr_origin_compare(const struct rr_open_row *work, enum rr_buffer_id buffer, uint64_t begin, uint64_t bytes);

#endif
