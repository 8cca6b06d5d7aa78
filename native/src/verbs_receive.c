/* verbs_receive.c - the receiving end of an edge: what arrived, OPEN, transfers, tiny messages; see verbs_edge.h. */
#include <arpa/inet.h>
#include <string.h>

#include "order.h"
#include "status.h"
#include "verbs_edge.h"

static void broken(struct rr_verbs_edge *edge, const char *what, uint32_t imm, uint32_t bytes)
{
	rr_fail(RR_ERR_PROTOCOL, "rank %d sent %s (0x%08x, %u bytes): is another version at the other end?", edge->peer, what,
		imm, bytes);
	rr_verbs_lose(edge);
}

static void open_arrived(struct rr_verbs_edge *edge, uint32_t number, uint32_t imm, uint32_t bytes)
{
	uint32_t at = number % RR_EDGE_OPENS;
	const struct rr_open *open = (const struct rr_open *)(edge->inbound + edge->opens_at + at * RR_EDGE_OPEN_BYTES);
	struct rr_descriptor descriptor;

	if (bytes != RR_EDGE_OPEN_USED) {
		broken(edge, "an OPEN of another size", imm, bytes);
		return;
	}
	edge->opens_got = number + 1;
	edge->open_ops[at] = rr_own64(&open->op);
	memcpy(&descriptor, open + 1, sizeof(descriptor));
	rr_far_told(edge->far, edge->peer, rr_own64(&open->op), &descriptor);
}

void rr_verbs_arrived(struct rr_verbs_edge *edge, const struct rr_ibv_wc *wc)
{
	uint32_t imm = ntohl(wc->imm_data), low = imm & RR_IMM_MASK;

	if (wc->opcode != RR_IBV_WC_RECV_RDMA_WITH_IMM || !(wc->wc_flags & RR_IBV_WC_WITH_IMM)) {
		broken(edge, "a message that is no write", (uint32_t)wc->opcode, wc->byte_len);
		return;
	}
	switch (imm >> RR_IMM_BITS) {
	case RR_IMM_DATA:
		if (((low - (uint32_t)edge->next) & RR_IMM_MASK) >= RR_RING_COUNT)
			broken(edge, "DATA beyond its credit", imm, wc->byte_len);
		else
			edge->arrived |= 1ull << low % RR_RING_COUNT;
		return;
	case RR_IMM_OPEN:
		open_arrived(edge, low, imm, wc->byte_len);
		return;
	case RR_IMM_TINY:
		if (wc->byte_len < sizeof(uint64_t) || wc->byte_len > RR_MAILBOX_BYTES + sizeof(uint64_t)) {
			broken(edge, "a tiny message of another size", imm, wc->byte_len);
			return;
		}
		edge->tiny_found[low & 1].check = 0; /* whatever came in the short form before is no longer the newest */
		edge->tiny_there[low & 1] = true;
		edge->tiny_got[low & 1] = low;
		edge->tiny_got_bytes[low & 1] = wc->byte_len - (uint32_t)sizeof(uint64_t);
		return;
	case RR_IMM_CREDIT:
		rr_verbs_take_credit(edge, low);
		return;
	case RR_IMM_BELL:
		return; /* this rank is awake, and looks */
	}
	broken(edge, "a message of no kind", imm, wc->byte_len);
}

rr_status rr_verbs_open_peek(struct rr_link *link, uint64_t op, const struct rr_open **open)
{
	struct rr_verbs_edge *edge = rr_verbs_edge_of(link);

	for (uint32_t i = 0; i < RR_EDGE_OPENS; i++) {
		const struct rr_open *line = (const struct rr_open *)(edge->inbound + edge->opens_at + i * RR_EDGE_OPEN_BYTES);
		if (edge->open_ops[i] != op)
			continue;
		*open = line;
		rr_verbs_moved(edge);
		return RR_OK;
	}
	return rr_verbs_waiting(edge);
}

static rr_status wrong_data(const struct rr_link *link, const struct rr_data *line, const struct rr_transfer *transfer)
{
	if (line->op == transfer->op && line->order == transfer->order && transfer->row_bytes &&
	    line->coordinate != transfer->row_bytes)
		return rr_link_row_differs(link, line->coordinate, transfer->row_bytes);
	return rr_fail(RR_ERR_PROTOCOL,
		       "rank %d sent op %llu row %u slice %u of %u bytes (mode %u), expected was op %llu row %u slice %u of %u bytes (mode %d)",
		       link->peer, (unsigned long long)line->op, line->order, line->slice, line->bytes, line->mode,
		       (unsigned long long)transfer->op, transfer->order, transfer->slice, transfer->bytes,
		       (int)transfer->mode);
}

rr_status rr_verbs_peek(struct rr_link *link, const struct rr_transfer *transfer, const void **data)
{
	struct rr_verbs_edge *edge = rr_verbs_edge_of(link);
	const struct rr_data *line;
	uint64_t offset;

	if (edge->failed || !(edge->arrived & 1ull << edge->next % RR_RING_COUNT))
		return rr_verbs_waiting(edge);
	line = rr_verbs_line(edge->inbound, edge->next);
	if (rr_own64(&line->serial) != edge->next + 1 || line->op != transfer->op || line->order != transfer->order ||
	    line->slice != transfer->slice || line->bytes != transfer->bytes || line->mode != (uint32_t)transfer->mode ||
	    (transfer->row_bytes && line->coordinate != transfer->row_bytes))
		return wrong_data(link, line, transfer);
	link->crc = line->crc;
	link->origin = line->origin;
	if (transfer->mode == RR_MODE_WRITE) {
		*data = transfer->landing;
		if (!*data)
			return wrong_data(link, line, transfer);
		return transfer->on_device ? rr_verbs_gdr_visible(edge, transfer) : RR_OK;
	}
	if (line->reserved[0] & RR_DATA_BESIDE) {
		*data = line + 1;
		return line->bytes <= RR_EDGE_BESIDE_BYTES ? RR_OK : wrong_data(link, line, transfer);
	}
	offset = (uint64_t)line->slot * RR_CACHE_LINE;
	if (offset + line->bytes > edge->slot_bytes * edge->slot_count)
		return wrong_data(link, line, transfer);
	*data = edge->inbound + edge->slots_at + offset;
	return RR_OK;
}

void rr_verbs_release(struct rr_link *link, uint32_t bytes)
{
	struct rr_verbs_edge *edge = rr_verbs_edge_of(link);
	const struct rr_data *line = rr_verbs_line(edge->inbound, edge->next);

	link->sent++;
	link->bytes += bytes;
	link->dirty = true;
	if (line->reserved[0] & RR_DATA_WANTED)
		edge->credit_due = true;
	edge->arrived &= ~(1ull << edge->next % RR_RING_COUNT);
	edge->flushed &= ~(1ull << edge->next % RR_RING_COUNT);
	edge->flushing &= ~(1ull << edge->next % RR_RING_COUNT);
	edge->next++;
	if (edge->next - edge->credits_given >= RR_RING_COUNT / 2)
		edge->credit_due = true;
	rr_verbs_moved(edge);
}

bool rr_verbs_tiny_look(struct rr_verbs_edge *edge, uint32_t serial)
{
	uint32_t which = serial & 1;
	struct rr_tiny_short *found = &edge->tiny_found[which];

	if (edge->state != RR_VERBS_UP && edge->state != RR_VERBS_MENDING)
		return false;
	if (found->tag >> 32 == serial && found->check)
		return true;
	_Atomic uint64_t *line = (_Atomic uint64_t *)(edge->inbound + edge->tinies_at + which * RR_EDGE_TINY_BYTES);
	if (rr_observe64(line) >> 32 != serial)
		return false;
	uint64_t words[RR_CACHE_LINE / sizeof(uint64_t)];
	for (uint32_t i = 0; i < RR_CACHE_LINE / sizeof(uint64_t); i++)
		words[i] = rr_observe64(&line[i]);
	if (words[7] != rr_tiny_check(words))
		return false;
	memcpy(found, words, sizeof(*found));
	return found->bytes <= RR_EDGE_SHORT_BYTES;
}

uint32_t rr_verbs_tiny_newest(struct rr_verbs_edge *edge, uint32_t which)
{
	const _Atomic uint64_t *line = (_Atomic uint64_t *)(edge->inbound + edge->tinies_at + which * RR_EDGE_TINY_BYTES);
	uint32_t here = (uint32_t)(rr_observe64(line) >> 32);
	uint32_t got = edge->tiny_there[which] ? edge->tiny_got[which] : 0;

	if (here && here % 2 == which && ((here - got) & RR_IMM_MASK) < RR_IMM_MASK / 2 && rr_verbs_tiny_look(edge, here))
		got = here;
	return got & RR_IMM_MASK;
}

/* The peer may have fallen asleep before ours came. */
static void ring(struct rr_verbs_edge *edge, uint32_t which)
{
	if (!(edge->tiny_short & 1u << which) || ++edge->tiny_waits < RR_EDGE_RING_PASSES)
		return;
	edge->tiny_short &= ~(1u << which); /* what still waits for room goes with IMM then */
	edge->bell_due |= !(edge->tiny_pending & 1u << which);
	edge->bell_serial = edge->tiny_serials[which];
	rr_verbs_send_waiting(edge);
}

rr_status rr_verbs_tiny_peek(struct rr_link *link, uint32_t serial, uint64_t *tag, const void **payload, uint32_t *bytes)
{
	struct rr_verbs_edge *edge = rr_verbs_edge_of(link);
	uint32_t which = serial & 1;
	const uint8_t *line;

	if (rr_verbs_tiny_look(edge, serial)) {
		*tag = edge->tiny_found[which].tag;
		*payload = edge->tiny_found[which].payload;
		*bytes = edge->tiny_found[which].bytes;
		rr_verbs_moved(edge);
		return RR_OK;
	}
	if (!edge->tiny_there[which] || edge->tiny_got[which] != (serial & RR_IMM_MASK)) {
		ring(edge, which);
		return rr_verbs_waiting(edge);
	}
	line = edge->inbound + edge->tinies_at + which * RR_EDGE_TINY_BYTES;
	memcpy(tag, line, sizeof(*tag));
	*payload = line + sizeof(*tag);
	*bytes = edge->tiny_got_bytes[which];
	rr_verbs_moved(edge);
	return RR_OK;
}
