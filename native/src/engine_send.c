/*
 * engine_send.c - the send part of a slice. Where credit is at hand it is reserved before the pass, which
 * then fills it; what has none goes later, from dst.
 */
#include "engine_slice.h"

static enum rr_mode send_mode(const struct rr_open_row *work, const struct rr_send *send)
{
	struct rr_engine *engine = work->engine;
	bool lands = send->lands >= 0 && send->lands != RR_SCRATCH;

	return rr_mode_choose(engine->out[send->link], &engine->open.place[work->row->buffer],
			      lands ? &engine->peer_places[send->peer][send->lands] : NULL);
}

/* Where the bytes lie here, for links that send from there. */
static void fill_pieces(const struct rr_open_row *work, uint64_t offset, struct rr_transfer *transfer)
{
	struct rr_buffer *buffer = &work->engine->buffers[work->row->buffer];
	uint64_t coordinate = rr_slice_coordinate(work, work->row->buffer, work->row->cell, offset);
	uint32_t count = 0;

	for (uint64_t done = 0; done < transfer->bytes; count++) {
		uint64_t run = transfer->bytes - done;
		if (count == RR_PIECES_MAX) {
			transfer->piece_count = 0;
			return;
		}
		transfer->pieces[count].iov_base = rr_slice_address(buffer, coordinate + done, &run);
		transfer->pieces[count].iov_len = run;
		done += run;
	}
	transfer->piece_count = count;
}

static void fill_transfer(const struct rr_open_row *work, const struct rr_send *send, uint32_t number,
			  uint64_t offset, uint32_t bytes, struct rr_transfer *transfer)
{
	enum rr_mode mode = send_mode(work, send);
	int32_t buffer = mode == RR_MODE_WRITE ? send->lands : work->row->buffer;

	/* Not by one initializer: that would clear the pieces, too. */
	transfer->op = work->engine->op;
	transfer->order = send->order + (uint32_t)work->round * work->plan->rows->sends_to[send->link];
	transfer->slice = number;
	transfer->bytes = bytes * rr_slice_width(work->row);
	transfer->row_bytes = rr_slice_row_bytes(work);
	transfer->mode = mode;
	transfer->landing = NULL;
	transfer->buffer = (enum rr_buffer_id)buffer;
	transfer->coordinate = rr_slice_coordinate(work, buffer, work->row->cell, offset);
	transfer->copied = work->row->action == RR_ACTION_COPY;
	transfer->implied = !work->plan->check && rr_mode_implied(mode, buffer);
	transfer->crc = 0;
	transfer->origin = 0;
	transfer->alike = 1;
	transfer->given = NULL;
	transfer->piece_count = 0;
	transfer->on_device = work->plan->device != NULL;
	/* Of a device's memory a NIC may read what it could register; the other links read none of it. */
	enum rr_link_kind kind = work->engine->out[send->link]->kind;
	if (kind == RR_LINK_RDMA || (kind != RR_LINK_MAPPED && !work->plan->device))
		fill_pieces(work, offset, transfer);
}

/* A reserve that is not committed is given back. */
void rr_slice_abort(const struct rr_open_row *work, uint64_t fused)
{
	for (uint32_t i = 0; fused; i++, fused >>= 1) {
		struct rr_link *out = work->engine->out[work->plan->rows->sends[(uint32_t)work->row->send_begin + i].link];
		if (fused & 1)
			out->ops->abort(out);
	}
}

/* Reserve wherever there is credit; what has none goes later, from dst. */
rr_status rr_slice_reserve(const struct rr_open_row *work, struct rr_slice *slice)
{
	struct rr_engine *engine = work->engine;
	const struct rr_row *row = work->row;
	uint32_t count = (uint32_t)(row->send_end - row->send_begin);
	const void *given = NULL;
	bool all = true, cell_past = false;

	slice->target_count = 1; /* dst */
	for (uint32_t i = 0; i < count && i < RR_SENDS_FUSED_MAX; i++) {
		uint32_t at = (uint32_t)row->send_begin + i;
		const struct rr_send *send = &work->plan->rows->sends[at];
		struct rr_link *out = engine->out[send->link];
		struct rr_transfer transfer;
		void *place = NULL;

		fill_transfer(work, send, slice->number, slice->offset, slice->bytes, &transfer);
		if (rr_engine_send(engine, work->round, at)->sent != slice->number ||
		    engine->rows_sent[send->link] != transfer.order) {
			all = false;
			continue;
		}
		transfer.alike = count - i;
		transfer.given = given;
		rr_status status = out->ops->reserve(out, &transfer, &place);
		if (status < 0)
			return status;
		if (status == RR_AGAIN) {
			all = false;
			continue;
		}
		cell_past = cell_past || (out->past && transfer.mode == RR_MODE_SOURCE);
		if (!place)
			all = false; /* the peer will read dst itself */
		else if (place != given) { /* else a target already */
			slice->targets[slice->target_count++] = place;
			slice->past = rr_slice_past(out, &transfer);
		}
		given = transfer.mode == RR_MODE_SLOT ? place : given;
		slice->fused |= 1ull << i;
	}
	/* A copy into scratch, for peers that read it there: like a slot, but for who it belongs to. */
	if (cell_past && slice->target_count == 1)
		slice->past = true;
	/* What is checked is checked against dst: it is stored then. */
	slice->store = !slice->landed && !((row->flags & RR_ROW_TRANSIT) && all && count <= RR_SENDS_FUSED_MAX && !work->plan->check);
	return RR_OK;
}

/* Out of dst. Unless what lies there has an origin that is known, it is the rank's own. */
static rr_status sum_dst(const struct rr_open_row *work, uint64_t offset, uint32_t bytes, struct rr_sums *sums)
{
	enum rr_buffer_id buffer = (enum rr_buffer_id)work->row->buffer;
	uint64_t begin = rr_slice_coordinate(work, buffer, work->row->cell, offset);
	uint64_t total = (uint64_t)bytes * rr_slice_width(work->row);

	sums->crc = rr_origin_memory(work, buffer, begin, total);
	sums->origin = sums->crc;
	return rr_origin_sum(work, buffer, begin, total, &sums->origin);
}

rr_status rr_slice_result(const struct rr_open_row *work, uint64_t fused, uint32_t number, struct rr_sums *sums)
{
	enum rr_buffer_id buffer = (enum rr_buffer_id)work->row->buffer;
	uint64_t offset = rr_slice_offset(work, number), begin = rr_slice_coordinate(work, buffer, work->row->cell, offset);
	uint32_t bytes = rr_slice_bytes(work, offset);
	uint64_t total = (uint64_t)bytes * rr_slice_width(work->row);
	rr_status status;

	if (!work->plan->kept[work->index]) /* so it has no sends, either */
		return rr_origin_overwrite(work, buffer, begin, total, true);
	if (rr_slice_passes_on(work))
		return fused ? sum_dst(work, offset, bytes, sums) : RR_OK;
	status = rr_origin_keep(work, buffer, begin, total, &sums->crc);
	sums->origin = sums->crc;
	return status;
}

static void commit_transfer(struct rr_send_state *sent, struct rr_link *out, const struct rr_transfer *transfer)
{
	if (sent->sent == 0)
		sent->first = out->sent;
	if (transfer->mode == RR_MODE_SOURCE || transfer->mode == RR_MODE_CMA)
		out->held_end = out->sent + 1;
	/* A far link raises it itself, in commit(): it knows whether it sends from our memory. */
	out->ops->commit(out, transfer);
	sent->sent++;
}

void rr_slice_commit(const struct rr_open_row *work, uint64_t fused, uint32_t number, const struct rr_sums *sums, uint64_t now_ns)
{
	struct rr_engine *engine = work->engine;
	uint64_t offset = rr_slice_offset(work, number);
	uint32_t bytes = rr_slice_bytes(work, offset);

	for (uint32_t i = 0; fused; i++, fused >>= 1) {
		if (!(fused & 1))
			continue;
		uint32_t at = (uint32_t)work->row->send_begin + i;
		const struct rr_send *send = &work->plan->rows->sends[at];
		struct rr_send_state *sent = rr_engine_send(engine, work->round, at);
		struct rr_transfer transfer;

		fill_transfer(work, send, number, offset, bytes, &transfer);
		transfer.crc = sums->crc;
		transfer.origin = sums->origin;
		rr_trace_sent(engine->trace, engine->out[send->link], send->link, &transfer, work->index, 0, now_ns);
		commit_transfer(sent, engine->out[send->link], &transfer);
	}
}

/* ---- from dst ---- */

/* dst into the reserved place, over each stretch that lies in one piece. */
static rr_status copy_out(const struct rr_open_row *work, uint64_t offset, uint32_t bytes, void *place, bool past,
			  rr_token *token)
{
	struct rr_engine *engine = work->engine;
	const struct rr_row *row = work->row;
	uint32_t width = rr_slice_width(row);

	for (uint64_t done = 0; done < bytes;) {
		uint64_t run = bytes - done;
		const void *source = rr_slice_address(&engine->buffers[row->buffer],
						      rr_slice_coordinate(work, row->buffer, row->cell, offset + done), &run);
		void *target = (char *)place + done * width;
		struct rr_combine copy = {.dst = &target, .dst_count = 1, .src = &source, .src_count = 1,
					  .count = run / work->plan->element_bytes * width, .past_last = past,
					  .dtype = (uint8_t)work->plan->descriptor.dtype};
		rr_status status = engine->device->ops->combine(engine->device, work->plan->pass, &copy, token);
		if (status < 0)
			return status;
		done += run;
	}
	return RR_OK;
}

/* One slice of dst to one peer. RR_AGAIN: no credit, not this row's turn, or the copy is under way. */
static rr_status send_slice(const struct rr_open_row *work, uint32_t at)
{
	struct rr_engine *engine = work->engine;
	const struct rr_send *send = &work->plan->rows->sends[at];
	struct rr_send_state *sent = rr_engine_send(engine, work->round, at);
	struct rr_link *out = engine->out[send->link];
	uint64_t offset = rr_slice_offset(work, sent->sent);
	uint32_t bytes = rr_slice_bytes(work, offset);
	struct rr_transfer transfer;
	struct rr_sums sums = {0};
	void *place = NULL;
	rr_status status;

	fill_transfer(work, send, sent->sent, offset, bytes, &transfer);
	if (!sent->pending) {
		if (engine->rows_sent[send->link] != transfer.order)
			return RR_AGAIN;
		status = transfer.implied ? RR_OK : out->ops->reserve(out, &transfer, &place);
		if (status != RR_OK) {
			engine->waiting_peer = send->peer;
			rr_engine_waits(engine, true, RR_WAIT_CREDIT, send->peer);
			rr_trace_no_credit(engine->trace, send->link);
			return status;
		}
		sent->token = 0;
		sent->begin_ns = 0;
		if (place)
			rr_trace_begin(engine->trace, &sent->begin_ns, 0);
		status = place ? copy_out(work, offset, bytes, place, rr_slice_past(out, &transfer), &sent->token) : RR_OK;
		if (status < 0) {
			out->ops->abort(out);
			return status;
		}
		sent->pending = true;
		engine->passes_under_way++;
	}
	status = engine->device->ops->ready(engine->device, sent->token);
	if (status == RR_OK && work->plan->check)
		status = sum_dst(work, offset, bytes, &sums);
	if (status < 0 && !transfer.implied)
		out->ops->abort(out);
	if (status != RR_OK)
		return status;
	engine->passes_under_way--;
	sent->pending = false;
	transfer.crc = sums.crc;
	transfer.origin = sums.origin;
	rr_trace_sent(engine->trace, out, send->link, &transfer, work->index, sent->begin_ns, 0);
	commit_transfer(sent, out, &transfer);
	return RR_OK;
}

rr_status rr_slice_send_rest(const struct rr_open_row *work, uint32_t at, bool *moved)
{
	struct rr_send_state *sent = rr_engine_send(work->engine, work->round, at);
	rr_status status = RR_OK;

	while (sent->sent < work->state->done) {
		status = send_slice(work, at);
		if (status != RR_OK)
			return status;
		*moved = true;
	}
	return RR_OK;
}
