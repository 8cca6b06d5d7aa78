/* rows.c - decodes and checks the tables of rows.h. */
#include "rows.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "status.h"

#define HEADER_BYTES 64u
#define FLAGS_MAX ((1 << RR_ROW_CHANNEL_SHIFT) - 1)
#define ROW_WORDS 16u
#define FILE_HEADER_BYTES 40u
#define FILE_BYTES_MAX (1ull << 32)

static uint32_t load32(const uint8_t *bytes)
{
	return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static uint64_t load64(const uint8_t *bytes)
{
	return load32(bytes) | (uint64_t)load32(bytes + 4) << 32;
}

static int32_t load_int(const uint8_t *bytes)
{
	return (int32_t)load32(bytes);
}

static uint32_t crc32_of(const uint8_t *bytes, size_t size)
{
	uint32_t crc = 0xffffffffu;

	for (size_t i = 0; i < size; i++) {
		crc ^= bytes[i];
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (0xedb88320u & (0u - (crc & 1u)));
	}
	return ~crc;
}

void rr_schedule_free(rr_schedule *schedule)
{
	if (!schedule)
		return;
	free(schedule->rows);
	free(schedule->receives);
	free(schedule->sends);
	free(schedule->afters);
	free(schedule->sends_to);
	free(schedule->receives_from);
	free(schedule);
}

uint32_t rr_schedule_chunk_count(const rr_schedule *schedule)
{
	return schedule->chunk_count;
}

uint32_t rr_schedule_channel_count(const struct rr_schedule *schedule)
{
	uint32_t count = 1;

	for (uint32_t r = 0; r < schedule->row_count; r++)
		count = rr_row_channel(&schedule->rows[r]) >= count ? rr_row_channel(&schedule->rows[r]) + 1 : count;
	return count;
}

static bool allocate(rr_schedule *schedule)
{
	schedule->rows = calloc((size_t)schedule->row_count + 1, sizeof(*schedule->rows));
	schedule->receives = calloc((size_t)schedule->receive_count + 1, sizeof(*schedule->receives));
	schedule->sends = calloc((size_t)schedule->send_count + 1, sizeof(*schedule->sends));
	schedule->afters = calloc((size_t)schedule->after_count + 1, sizeof(*schedule->afters));
	return schedule->rows && schedule->receives && schedule->sends && schedule->afters;
}

static rr_status decode_header(rr_schedule *schedule, const uint8_t *bytes, size_t size)
{
	if (size < HEADER_BYTES || load32(bytes) != RR_RANK_MAGIC)
		return rr_fail(RR_ERR_SCHEDULE, "these are not a rank's rows: no RRS1 mark in %zu bytes", size);
	if (load32(bytes + 4) != RR_ROWS_VERSION)
		return rr_fail(RR_ERR_SCHEDULE, "rows are of version %u, this build reads %u", load32(bytes + 4),
			       RR_ROWS_VERSION);
	schedule->collective = load_int(bytes + 8);
	schedule->world = load32(bytes + 12);
	schedule->rank = load32(bytes + 16);
	schedule->chunk_count = load32(bytes + 20);
	schedule->step_count = load32(bytes + 24);
	schedule->row_count = load32(bytes + 28);
	schedule->receive_count = load32(bytes + 32);
	schedule->send_count = load32(bytes + 36);
	schedule->after_count = load32(bytes + 40);
	schedule->cell_count = load32(bytes + 44);
	schedule->identity = load64(bytes + 48);
	schedule->window = load32(bytes + 56);
	schedule->root = load32(bytes + 60) == 0xffffffffu ? -1 : load_int(bytes + 60);
	if (schedule->world == 0 || schedule->world > RR_WORLD_MAX || schedule->rank >= schedule->world ||
	    schedule->chunk_count == 0 || schedule->chunk_count > RR_TABLE_MAX ||
	    schedule->row_count > RR_TABLE_MAX || schedule->receive_count > RR_TABLE_MAX ||
	    schedule->send_count > RR_TABLE_MAX || schedule->after_count > RR_TABLE_MAX ||
	    schedule->cell_count > RR_TABLE_MAX || schedule->window < 1 ||
	    schedule->collective < RR_ALL_REDUCE || schedule->collective > RR_SCATTER ||
	    schedule->root >= (int32_t)schedule->world || schedule->root < -1)
		return rr_fail(RR_ERR_SCHEDULE, "a count in the rows' header is out of range");
	uint64_t need = HEADER_BYTES + (uint64_t)schedule->row_count * ROW_WORDS * 4 +
			((uint64_t)schedule->receive_count + schedule->send_count + schedule->after_count) * 8;
	if (need != size)
		return rr_fail(RR_ERR_SCHEDULE, "rows need %llu bytes by their header, there are %zu",
			       (unsigned long long)need, size);
	return RR_OK;
}

static bool range_ok(int32_t begin, int32_t end, uint32_t count)
{
	return begin >= 0 && begin <= end && (uint32_t)end <= count;
}

static bool buffer_ok(int32_t buffer)
{
	return buffer >= 0 && buffer < RR_BUFFER_COUNT;
}

static bool cell_ok(const rr_schedule *schedule, int32_t buffer, int32_t cell)
{
	return cell >= 0 && (buffer != RR_SCRATCH || (uint32_t)cell < schedule->cell_count);
}

/* Only partial sums are float32, and only in scratch and on the way; what is read of local memory never is. */
static bool width_ok(const struct rr_row *row)
{
	if (!(row->flags & (RR_ROW_WIDE | RR_ROW_TAKES_WIDE)))
		return true;
	return row->action == RR_ACTION_REDUCE && row->operand_buffer != RR_SCRATCH &&
	       (row->buffer == RR_SCRATCH || !(row->flags & RR_ROW_WIDE));
}

/* Nobody writes another's input; what is float32 lands nowhere, for the vector is not. */
static bool lands_ok(const struct rr_row *row, int32_t lands)
{
	return lands == -1 || lands == RR_SCRATCH || (lands == RR_OUTPUT && !(row->flags & RR_ROW_WIDE));
}

static rr_status check_row(const rr_schedule *schedule, uint32_t index)
{
	const struct rr_row *row = &schedule->rows[index];
	bool operand = row->operand_buffer != -1;
	int64_t receives = (int64_t)row->receive_end - row->receive_begin; /* not checked yet: any two numbers */
	bool ok = row->step >= 0 && (uint32_t)row->step < schedule->step_count + 1 && buffer_ok(row->buffer) &&
		  range_ok(row->chunk_begin, row->chunk_end, schedule->chunk_count) &&
		  cell_ok(schedule, row->buffer, row->cell) && (!operand || buffer_ok(row->operand_buffer)) &&
		  (!operand || cell_ok(schedule, row->operand_buffer, row->operand_cell)) &&
		  range_ok(row->receive_begin, row->receive_end, schedule->receive_count) &&
		  range_ok(row->send_begin, row->send_end, schedule->send_count) &&
		  range_ok(row->after_begin, row->after_end, schedule->after_count) &&
		  (row->flags & FLAGS_MAX & ~(RR_ROW_FIRST | RR_ROW_LAST | RR_ROW_TRANSIT | RR_ROW_WIDE |
						   RR_ROW_TAKES_WIDE)) == 0 &&
		  rr_row_channel(row) < RR_CHANNELS_MAX;

	if (ok) {
		switch ((enum rr_action)row->action) {
		case RR_ACTION_NONE: ok = !operand && receives == 0; break;
		case RR_ACTION_COPY: ok = receives + (operand ? 1 : 0) == 1; break;
		case RR_ACTION_REDUCE: ok = receives + (operand ? 1 : 0) >= 2; break;
		}
		ok = ok && row->action >= RR_ACTION_NONE && row->action <= RR_ACTION_REDUCE &&
		     (row->action == RR_ACTION_NONE || row->buffer != RR_INPUT) && /* the input is the caller's */
		     (!operand || (row->operand_at >= 0 && row->operand_at <= receives)) && width_ok(row);
	}
	for (int32_t i = row->after_begin; ok && i < row->after_end; i++) {
		const struct rr_after *after = &schedule->afters[i];
		ok = after->row >= 0 && (uint32_t)after->row < index &&
		     (after->kind == RR_AFTER_DONE || after->kind == RR_AFTER_RELEASED);
	}
	if (!ok)
		return rr_fail(RR_ERR_SCHEDULE, "row %u of rank %u holds a value out of range", index,
			       schedule->rank);
	return RR_OK;
}

static rr_status check_peers(const rr_schedule *schedule)
{
	for (uint32_t r = 0; r < schedule->row_count; r++) {
		const struct rr_row *row = &schedule->rows[r];
		for (int32_t i = row->receive_begin; i < row->receive_end; i++) {
			const struct rr_receive *receive = &schedule->receives[i];
			if (receive->peer < 0 || (uint32_t)receive->peer >= schedule->world ||
			    (uint32_t)receive->peer == schedule->rank || !buffer_ok(receive->source) ||
			    ((row->flags & RR_ROW_TAKES_WIDE) && receive->source != RR_SCRATCH))
				return rr_fail(RR_ERR_SCHEDULE, "row %u receives from rank %d, buffer %d", r, receive->peer, receive->source);
		}
		for (int32_t i = row->send_begin; i < row->send_end; i++) {
			const struct rr_send *send = &schedule->sends[i];
			if (send->peer < 0 || (uint32_t)send->peer >= schedule->world ||
			    (uint32_t)send->peer == schedule->rank || !lands_ok(row, send->lands))
				return rr_fail(RR_ERR_SCHEDULE, "row %u sends to rank %d, to land in buffer %d", r, send->peer, send->lands);
		}
	}
	return RR_OK;
}

static struct rr_forward find_forward(const rr_schedule *schedule)
{
	for (uint32_t r = 0; r < schedule->row_count && schedule->collective == RR_ALL_TO_ALL; r++)
		for (int32_t c = schedule->rows[r].chunk_begin; c < schedule->rows[r].chunk_end; c++)
			if ((uint32_t)c / schedule->world != schedule->rank && (uint32_t)c % schedule->world != schedule->rank)
				return (struct rr_forward){(int32_t)schedule->rank, r, c};
	return (struct rr_forward){-1, 0, -1};
}

static void decode_tables(rr_schedule *schedule, const uint8_t *bytes)
{
	for (uint32_t r = 0; r < schedule->row_count; r++, bytes += (size_t)ROW_WORDS * 4) {
		int32_t words[ROW_WORDS];
		for (uint32_t w = 0; w < ROW_WORDS; w++)
			words[w] = load_int(bytes + (size_t)w * 4);
		_Static_assert(sizeof(struct rr_row) == sizeof(words), "a row is sixteen words in this order");
		memcpy(&schedule->rows[r], words, sizeof(words));
	}
	for (uint32_t i = 0; i < schedule->receive_count; i++, bytes += 8)
		schedule->receives[i] = (struct rr_receive){.peer = load_int(bytes), .source = load_int(bytes + 4)};
	for (uint32_t i = 0; i < schedule->send_count; i++, bytes += 8)
		schedule->sends[i] = (struct rr_send){.peer = load_int(bytes), .lands = load_int(bytes + 4)};
	for (uint32_t i = 0; i < schedule->after_count; i++, bytes += 8)
		schedule->afters[i] = (struct rr_after){load_int(bytes), load_int(bytes + 4)};
}

rr_status rr_schedule_decode(const void *bytes, size_t size, int32_t rank, rr_schedule **out)
{
	rr_schedule *schedule = calloc(1, sizeof(*schedule));
	rr_status status;

	if (!schedule)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for a schedule");
	status = decode_header(schedule, bytes, size);
	if (status < 0)
		goto free_schedule;
	if ((int32_t)schedule->rank != rank) {
		status = rr_fail(RR_ERR_SCHEDULE, "these are the rows of rank %u, not of rank %d", schedule->rank, rank);
		goto free_schedule;
	}
	if (!allocate(schedule)) {
		status = rr_fail(RR_ERR_NO_MEMORY, "no memory for %u rows", schedule->row_count);
		goto free_schedule;
	}
	decode_tables(schedule, (const uint8_t *)bytes + HEADER_BYTES);
	for (uint32_t r = 0; r < schedule->row_count && status >= 0; r++)
		status = check_row(schedule, r);
	if (status >= 0)
		status = check_peers(schedule);
	if (status < 0)
		goto free_schedule;
	schedule->forward = find_forward(schedule);
	*out = schedule;
	return RR_OK;

free_schedule:
	rr_schedule_free(schedule);
	return status;
}

static void *copy_array(const void *from, size_t count, size_t bytes)
{
	void *to = calloc(count + 1, bytes);

	if (to)
		memcpy(to, from, count * bytes);
	return to;
}

struct rr_schedule *rr_schedule_copy(const struct rr_schedule *from)
{
	struct rr_schedule *to = malloc(sizeof(*to));

	if (!to)
		return NULL;
	*to = *from;
	to->rows = copy_array(from->rows, from->row_count, sizeof(*to->rows));
	to->receives = copy_array(from->receives, from->receive_count, sizeof(*to->receives));
	to->sends = copy_array(from->sends, from->send_count, sizeof(*to->sends));
	to->afters = copy_array(from->afters, from->after_count, sizeof(*to->afters));
	to->sends_to = NULL;
	to->receives_from = NULL;
	to->link_count = 0;
	if (to->rows && to->receives && to->sends && to->afters)
		return to;
	rr_schedule_free(to);
	return NULL;
}

static uint32_t link_of(const struct rr_schedule *schedule, const struct rr_row *row, int32_t peer,
			const uint32_t *channels)
{
	return (channels ? rr_row_channel(row) % channels[peer] : 0) * schedule->world + (uint32_t)peer;
}

rr_status rr_schedule_bind(struct rr_schedule *schedule, const uint32_t *channels)
{
	uint32_t most = 1;

	for (uint32_t r = 0; channels && r < schedule->world; r++)
		most = channels[r] > most ? channels[r] : most;
	schedule->sends_to = calloc((size_t)schedule->world * most, sizeof(uint32_t));
	schedule->receives_from = calloc((size_t)schedule->world * most, sizeof(uint32_t));
	if (!schedule->sends_to || !schedule->receives_from)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for the links of %u ranks", schedule->world);
	schedule->link_count = schedule->world * most;
	for (uint32_t r = 0; r < schedule->row_count; r++) {
		const struct rr_row *row = &schedule->rows[r];
		for (int32_t i = row->receive_begin; i < row->receive_end; i++) {
			struct rr_receive *receive = &schedule->receives[i];
			receive->link = link_of(schedule, row, receive->peer, channels);
			receive->order = schedule->receives_from[receive->link]++;
		}
		for (int32_t i = row->send_begin; i < row->send_end; i++) {
			struct rr_send *send = &schedule->sends[i];
			send->link = link_of(schedule, row, send->peer, channels);
			send->order = schedule->sends_to[send->link]++;
		}
	}
	return RR_OK;
}

static rr_status read_whole(const char *path, uint8_t **bytes, size_t *size)
{
	rr_status status = RR_OK;
	FILE *file = fopen(path, "rb");
	long end;

	if (!file)
		return rr_fail(RR_ERR_SCHEDULE, "cannot open %s: %s", path, strerror(errno));
	if (fseek(file, 0, SEEK_END) != 0 || (end = ftell(file)) < 0 || fseek(file, 0, SEEK_SET) != 0 ||
	    (uint64_t)end > FILE_BYTES_MAX) {
		status = rr_fail(RR_ERR_SCHEDULE, "%s is not a file of a believable size", path);
		goto close_file;
	}
	*bytes = malloc((size_t)end + 1);
	if (!*bytes) {
		status = rr_fail(RR_ERR_NO_MEMORY, "no memory for %ld bytes of %s", end, path);
		goto close_file;
	}
	*size = fread(*bytes, 1, (size_t)end, file);
	if (*size != (size_t)end) {
		status = rr_fail(RR_ERR_SCHEDULE, "%s: read %zu of %ld bytes", path, *size, end);
		free(*bytes);
	}
close_file:
	fclose(file);
	return status;
}

/* One rank's table in the bytes of a file whose header and checksum are right. */
static rr_status decode_in_file(const char *path, const uint8_t *bytes, size_t size, int32_t rank, rr_schedule **out)
{
	uint64_t begin = load64(bytes + FILE_HEADER_BYTES + (uint64_t)rank * 8);
	uint64_t end = load64(bytes + FILE_HEADER_BYTES + (uint64_t)rank * 8 + 8);

	if (begin > end || end > size - 4)
		return rr_fail(RR_ERR_SCHEDULE, "%s: the rows of rank %d lie outside the file", path, rank);
	return rr_schedule_decode(bytes + begin, (size_t)(end - begin), rank, out);
}

/* What one rank cannot bind, all ranks refuse: so each looks at the rows of all. */
static rr_status find_forward_in_file(const char *path, const uint8_t *bytes, size_t size, rr_schedule *schedule)
{
	schedule->forward.chunk = -1;
	for (uint32_t r = 0; r < schedule->world && schedule->forward.chunk < 0; r++) {
		rr_schedule *other;
		rr_status status = decode_in_file(path, bytes, size, (int32_t)r, &other);
		if (status < 0)
			return status;
		schedule->forward = other->forward;
		rr_schedule_free(other);
	}
	return RR_OK;
}

rr_status rr_schedule_load(const char *path, int32_t rank, rr_schedule **out)
{
	uint8_t *bytes = NULL;
	size_t size = 0;
	rr_status status = read_whole(path, &bytes, &size);

	if (status < 0)
		return status;
	if (size < FILE_HEADER_BYTES + 12 || load32(bytes) != RR_FILE_MAGIC ||
	    load32(bytes + 4) != RR_ROWS_VERSION) {
		status = rr_fail(RR_ERR_SCHEDULE, "%s is not a schedule file of version %u", path, RR_ROWS_VERSION);
		goto free_bytes;
	}
	if (crc32_of(bytes, size - 4) != load32(bytes + size - 4)) {
		status = rr_fail(RR_ERR_SCHEDULE, "%s is damaged: its checksum does not match", path);
		goto free_bytes;
	}
	uint32_t world = load32(bytes + 8);
	if (rank < 0 || (uint32_t)rank >= world || world > RR_WORLD_MAX) {
		status = rr_fail(RR_ERR_ARGUMENT, "rank %d is not in %s, which is for %u ranks", rank, path, world);
		goto free_bytes;
	}
	if (FILE_HEADER_BYTES + ((uint64_t)world + 1) * 8 + 4 > size) {
		status = rr_fail(RR_ERR_SCHEDULE, "%s ends inside its index", path);
		goto free_bytes;
	}
	rr_schedule *schedule;
	status = decode_in_file(path, bytes, size, rank, &schedule);
	if (status < 0)
		goto free_bytes;
	if (schedule->world != world)
		status = rr_fail(RR_ERR_SCHEDULE, "%s is for %u ranks, its table of rank %d for %u", path, world, rank, schedule->world);
	if (status == RR_OK && schedule->collective == RR_ALL_TO_ALL)
		status = find_forward_in_file(path, bytes, size, schedule);
	if (status == RR_OK)
		*out = schedule;
	else
		rr_schedule_free(schedule);

free_bytes:
	free(bytes);
	return status;
}
