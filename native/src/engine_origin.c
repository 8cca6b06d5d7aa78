/* engine_origin.c - see engine_origin.h. */
#include "engine_origin.h"

#include <stdlib.h>
#include <string.h>

#include "crc.h"
#include "engine_slice.h"
#include "status.h"

#define PIECES_MAX (UINT32_MAX - 1) /* as many as 1 + index can say */

/* ---- room ---- */

static rr_status cells_for(struct rr_origins *origins, enum rr_buffer_id buffer, uint64_t bytes)
{
	uint64_t count = bytes / RR_ORIGIN_GRID + 1;

	if (count > origins->cell_room[buffer]) {
		free(origins->cells[buffer]);
		origins->cells[buffer] = malloc(count * sizeof(uint32_t));
		origins->cell_room[buffer] = origins->cells[buffer] ? count : 0;
	}
	origins->cell_count[buffer] = origins->cells[buffer] ? count : 0;
	if (!origins->cells[buffer])
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for the sums of %llu bytes", (unsigned long long)bytes);
	memset(origins->cells[buffer], 0, count * sizeof(uint32_t));
	return RR_OK;
}

rr_status rr_origin_start(struct rr_origins *origins, const struct rr_plan *plan)
{
	uint64_t vector = plan->chunk_offsets[plan->rows->chunk_count];
	bool noted[RR_BUFFER_COUNT] = {false};
	rr_status status = RR_OK;

	origins->used = 0;
	origins->spare = 0;
	origins->chunks = plan->chunk_offsets;
	origins->chunk_count = plan->rows->chunk_count;
	for (uint32_t r = 0; r < plan->rows->row_count; r++)
		noted[plan->rows->rows[r].buffer] |= plan->kept[r];
	for (int b = RR_OUTPUT; b < RR_BUFFER_COUNT && status == RR_OK; b++) {
		origins->cell_count[b] = 0;
		if (noted[b])
			status = cells_for(origins, (enum rr_buffer_id)b, b == RR_SCRATCH ? plan->scratch_bytes : vector);
	}
	return status;
}

void rr_origin_free(struct rr_origins *origins)
{
	for (int b = 0; b < RR_BUFFER_COUNT; b++)
		free(origins->cells[b]);
	free(origins->pieces);
	memset(origins, 0, sizeof(*origins));
}

static bool meet(const struct rr_row *a, const struct rr_row *b)
{
	return a->chunk_begin < b->chunk_end && b->chunk_begin < a->chunk_end;
}

/* Does the later row read what the earlier one left in its dst? */
static bool reads(const struct rr_row *later, const struct rr_row *earlier)
{
	bool scratch = earlier->buffer == RR_SCRATCH;
	bool sends = later->action == RR_ACTION_NONE && later->send_end > later->send_begin && later->buffer == earlier->buffer;

	if (sends && (scratch ? later->cell == earlier->cell : meet(later, earlier)))
		return true;
	return later->operand_buffer == earlier->buffer &&
	       (scratch ? later->operand_cell == earlier->cell : meet(later, earlier));
}

bool *rr_origin_kept(const struct rr_schedule *rows)
{
	bool *kept = calloc((size_t)rows->row_count + 1, sizeof(*kept));

	for (uint32_t s = 0; kept && s < rows->row_count; s++) {
		const struct rr_row *later = &rows->rows[s];
		if (later->action != RR_ACTION_NONE && later->buffer != RR_INPUT)
			kept[s] = kept[s] || later->send_end > later->send_begin;
		if (later->action == RR_ACTION_NONE ? later->buffer == RR_INPUT : later->operand_buffer < RR_OUTPUT)
			continue;
		for (uint32_t r = 0; r < s; r++)
			if (rows->rows[r].action != RR_ACTION_NONE && rows->rows[r].buffer != RR_INPUT)
				kept[r] = kept[r] || reads(later, &rows->rows[r]);
	}
	return kept;
}

/* ---- pieces ---- */

/* 1 + its index; 0: no memory. */
static uint32_t new_piece(struct rr_origins *origins)
{
	if (origins->spare) {
		uint32_t made = origins->spare;
		origins->spare = origins->pieces[made - 1].next;
		return made;
	}
	if (origins->used == origins->room) {
		uint32_t room = origins->room ? origins->room * 2 : 256;
		struct rr_origin_piece *more =
			origins->room < PIECES_MAX / 2 ? realloc(origins->pieces, room * sizeof(*more)) : NULL;
		if (!more) {
			rr_fail(RR_ERR_NO_MEMORY, "no memory for %u sums", room);
			return 0;
		}
		origins->pieces = more;
		origins->room = room;
	}
	return ++origins->used;
}

/* Forget what begins before `end`, from *link on. */
static void take_out(struct rr_origins *origins, uint32_t *link, uint64_t end)
{
	struct rr_origin_piece *pieces = origins->pieces;

	while (*link && pieces[*link - 1].begin < end) {
		uint32_t covered = *link;
		*link = pieces[covered - 1].next;
		pieces[covered - 1].next = origins->spare;
		origins->spare = covered;
	}
}

/* Where in its cell's list the first piece is that ends behind `begin`. */
static uint32_t *first_behind(struct rr_origins *origins, enum rr_buffer_id buffer, uint64_t begin)
{
	struct rr_origin_piece *pieces = origins->pieces;
	uint32_t *link = &origins->cells[buffer][begin / RR_ORIGIN_GRID];

	while (*link && pieces[*link - 1].begin + pieces[*link - 1].bytes <= begin)
		link = &pieces[*link - 1].next;
	return link;
}

/* Insert what lies in one cell; what it covers, in part or wholly, is forgotten. */
static rr_status put(struct rr_origins *origins, enum rr_buffer_id buffer, uint64_t begin, uint32_t bytes, uint32_t crc)
{
	uint32_t made = new_piece(origins); /* may move the pieces */
	uint32_t *link;

	if (!made)
		return RR_ERR_NO_MEMORY;
	link = first_behind(origins, buffer, begin);
	take_out(origins, link, begin + bytes);
	origins->pieces[made - 1] = (struct rr_origin_piece){.begin = begin, .bytes = bytes, .crc = crc, .next = *link};
	*link = made;
	return RR_OK;
}

/* How far the piece goes that begins here: to the cell's end, or the chunk's. */
static uint64_t piece_end(const struct rr_origins *origins, enum rr_buffer_id buffer, uint64_t begin)
{
	uint64_t end = (begin / RR_ORIGIN_GRID + 1) * RR_ORIGIN_GRID;
	uint32_t low = 0, high = origins->chunk_count;

	if (buffer != RR_OUTPUT)
		return end;
	while (high - low > 1) { /* the last chunk that begins here, or before */
		uint32_t middle = low + (high - low) / 2;
		if (origins->chunks[middle] <= begin)
			low = middle;
		else
			high = middle;
	}
	return origins->chunks[high] > begin && origins->chunks[high] < end ? origins->chunks[high] : end;
}

rr_status rr_origin_note(struct rr_origins *origins, enum rr_buffer_id buffer, uint64_t begin, const void *data, uint64_t bytes,
			 uint32_t *crc)
{
	*crc = 0;
	for (uint64_t done = 0; done < bytes;) {
		uint64_t left = piece_end(origins, buffer, begin + done) - (begin + done);
		uint32_t run = (uint32_t)(left < bytes - done ? left : bytes - done);
		uint32_t part = rr_crc32c(0, (const char *)data + done, run);
		rr_status status = put(origins, buffer, begin + done, run, part);
		if (status < 0)
			return status;
		*crc = rr_crc32c_join(*crc, part, run);
		done += run;
	}
	return RR_OK;
}

/* ---- read again ---- */

uint32_t rr_origin_memory(const struct rr_open_row *work, enum rr_buffer_id buffer, uint64_t begin, uint64_t bytes)
{
	uint32_t crc = 0;

	for (uint64_t done = 0; done < bytes;) {
		uint64_t run = bytes - done;
		const void *from = rr_slice_address(&work->engine->buffers[buffer], begin + done, &run);
		crc = rr_crc32c(crc, from, run);
		done += run;
	}
	return crc;
}

rr_status rr_origin_keep(const struct rr_open_row *work, enum rr_buffer_id buffer, uint64_t begin, uint64_t bytes, uint32_t *crc)
{
	rr_status status = RR_OK;

	*crc = 0;
	for (uint64_t done = 0; done < bytes && status == RR_OK;) {
		uint64_t run = bytes - done;
		const void *from = rr_slice_address(&work->engine->buffers[buffer], begin + done, &run);
		uint32_t part;
		status = rr_origin_note(&work->engine->origins, buffer, begin + done, from, run, &part);
		if (status == RR_OK)
			*crc = rr_crc32c_join(*crc, part, run);
		done += run;
	}
	return status;
}

/* This rank itself found it, and is the one to be looked at. */
static rr_status damaged(const struct rr_open_row *work, enum rr_buffer_id buffer, uint64_t begin, uint64_t bytes,
			 uint32_t found, uint32_t kept)
{
	work->engine->waiting_peer = work->engine->rank;
	return rr_fail(RR_ERR_CORRUPT,
		       "the memory of rank %d changed between landing or computing and reading again: bytes %llu to %llu of its %s, which step %d reads (chunk %d), CRC32C %08x, kept was %08x",
		       work->engine->rank, (unsigned long long)begin, (unsigned long long)(begin + bytes),
		       buffer == RR_SCRATCH ? "scratch memory" : "output", work->row->step, work->row->chunk_begin, found, kept);
}

/* Two pieces out of one, if together they are still what it was; *found: what they are. */
static rr_status split(const struct rr_open_row *work, enum rr_buffer_id buffer, uint32_t whole, uint64_t at, uint32_t *found)
{
	struct rr_origins *origins = &work->engine->origins;
	struct rr_origin_piece was = origins->pieces[whole - 1];
	uint32_t before = (uint32_t)(at - was.begin), behind = was.bytes - before;
	uint32_t first = rr_origin_memory(work, buffer, was.begin, before), second = rr_origin_memory(work, buffer, at, behind);

	*found = rr_crc32c_join(first, second, behind);
	if (*found != was.crc)
		return RR_AGAIN;
	uint32_t made = new_piece(origins);
	if (!made)
		return RR_ERR_NO_MEMORY;
	origins->pieces[made - 1] = (struct rr_origin_piece){.begin = at, .bytes = behind, .crc = second, .next = was.next};
	origins->pieces[whole - 1] =
		(struct rr_origin_piece){.begin = was.begin, .bytes = before, .crc = first, .next = made};
	return RR_OK;
}

static rr_status cut(const struct rr_open_row *work, enum rr_buffer_id buffer, uint32_t whole, uint64_t at)
{
	struct rr_origin_piece was = work->engine->origins.pieces[whole - 1];
	uint32_t found;
	rr_status status = split(work, buffer, whole, at, &found);

	return status == RR_AGAIN ? damaged(work, buffer, was.begin, was.bytes, found, was.crc) : status;
}

/* A piece that lies over a border of what is overwritten. What landed there already has changed it: nothing reads it any more. */
static rr_status part_at(const struct rr_open_row *work, enum rr_buffer_id buffer, uint64_t at)
{
	struct rr_origins *origins = &work->engine->origins;
	uint32_t *link, found;
	rr_status status;

	if (at / RR_ORIGIN_GRID >= origins->cell_count[buffer])
		return RR_OK;
	link = first_behind(origins, buffer, at);
	if (!*link || origins->pieces[*link - 1].begin >= at)
		return RR_OK;
	status = split(work, buffer, *link, at, &found);
	if (status == RR_AGAIN) {
		take_out(origins, first_behind(origins, buffer, at), at);
		status = RR_OK;
	}
	return status;
}

rr_status rr_origin_overwrite(const struct rr_open_row *work, enum rr_buffer_id buffer, uint64_t begin, uint64_t bytes, bool forget)
{
	struct rr_origins *origins = &work->engine->origins;
	uint64_t end = begin + bytes;
	rr_status status = bytes ? part_at(work, buffer, begin) : RR_OK;

	if (status == RR_OK && bytes)
		status = part_at(work, buffer, end);
	for (uint64_t at = begin; forget && status == RR_OK && at < end; at = (at / RR_ORIGIN_GRID + 1) * RR_ORIGIN_GRID)
		if (at / RR_ORIGIN_GRID < origins->cell_count[buffer])
			take_out(origins, first_behind(origins, buffer, at), end);
	return status;
}

/* Join to *crc what is kept of [*at, end), and of what nothing is kept, what lies there now. */
static rr_status join_cell(const struct rr_open_row *work, enum rr_buffer_id buffer, uint64_t cell, uint64_t end, uint64_t *at,
			   uint32_t *crc, bool *known)
{
	struct rr_origins *origins = &work->engine->origins;
	uint32_t next;

	for (uint32_t piece = origins->cells[buffer][cell]; piece; piece = next) {
		struct rr_origin_piece *this = &origins->pieces[piece - 1];
		uint64_t first = this->begin < *at ? *at : end;
		rr_status status = RR_OK;

		next = this->next;
		if (this->begin + this->bytes <= *at)
			continue;
		if (this->begin >= end)
			break;
		if (this->begin < *at || this->begin + this->bytes > end) {
			status = cut(work, buffer, piece, first);
			next = origins->pieces[piece - 1].next;
			this = &origins->pieces[piece - 1];
		}
		if (status < 0)
			return status;
		if (this->begin < *at) /* its second half comes next */
			continue;
		if (this->begin > *at)
			*crc = rr_crc32c_join(*crc, rr_origin_memory(work, buffer, *at, this->begin - *at), this->begin - *at);
		*crc = rr_crc32c_join(*crc, this->crc, this->bytes);
		*at = this->begin + this->bytes;
		*known = true;
	}
	return RR_OK;
}

static rr_status find(const struct rr_open_row *work, enum rr_buffer_id buffer, uint64_t begin, uint64_t bytes, uint32_t *crc,
		      bool *known)
{
	struct rr_origins *origins = &work->engine->origins;
	uint64_t at = begin, end = begin + bytes, cell = begin / RR_ORIGIN_GRID;
	uint32_t found = 0;
	bool any = false;

	*known = false;
	for (uint64_t c = cell; c < origins->cell_count[buffer] && c * RR_ORIGIN_GRID < end; c++)
		any = any || origins->cells[buffer][c];
	if (!any) /* as mostly: nothing is read for nothing */
		return RR_OK;
	for (; cell < origins->cell_count[buffer] && cell * RR_ORIGIN_GRID < end; cell++) {
		rr_status status = join_cell(work, buffer, cell, end, &at, &found, known);
		if (status < 0)
			return status;
	}
	if (!*known)
		return RR_OK;
	if (at < end)
		found = rr_crc32c_join(found, rr_origin_memory(work, buffer, at, end - at), end - at);
	*crc = found;
	return RR_OK;
}

rr_status rr_origin_sum(const struct rr_open_row *work, enum rr_buffer_id buffer, uint64_t begin, uint64_t bytes, uint32_t *crc)
{
	bool known;

	return find(work, buffer, begin, bytes, crc, &known);
}

rr_status rr_origin_compare(const struct rr_open_row *work, enum rr_buffer_id buffer, uint64_t begin, uint64_t bytes)
{
	uint32_t kept = 0, found;
	bool known;
	rr_status status = find(work, buffer, begin, bytes, &kept, &known);

	if (status < 0 || !known)
		return status;
	found = rr_origin_memory(work, buffer, begin, bytes);
	return found == kept ? RR_OK : damaged(work, buffer, begin, bytes, found, kept);
}
