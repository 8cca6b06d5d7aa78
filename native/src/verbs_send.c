/* verbs_send.c - the sending end of an edge: reserve, commit, OPEN, tiny messages; see verbs_edge.h. */
#include <string.h>

#include "gdr.h"
#include "memory.h"
#include "order.h"
#include "status.h"
#include "verbs_edge.h"

/* ---- OPEN ---- */

/* Where peers reach our buffers: an address and a key instead of a region of this process. */
static rr_status translate(struct rr_verbs_edge *edge, const struct rr_open *ours, struct rr_open *told)
{
	for (int b = 0; b < RR_BUFFER_COUNT; b++) {
		const struct rr_registration *registration;

		told->place[b] = (struct rr_place){0};
		if (ours->place[b].reach != RR_REACH_REGION && ours->place[b].reach != RR_REACH_DEVICE)
			continue; /* ordinary memory: nobody reaches it from another node */
		rr_status status = rr_domain_register(edge->domain, ours->place[b].region, &registration);
		if (status < 0)
			return status;
		if (!registration)
			continue; /* GPU memory that this NIC cannot reach: through slots */
		if (ours->place[b].reach == RR_REACH_DEVICE)
			edge->in.link.granted |= 1u << b;
		told->place[b].base = (uint64_t)(uintptr_t)registration->address + ours->place[b].base;
		told->place[b].region = registration->mr->rkey;
		told->place[b].reach = RR_REACH_REGION;
	}
	return RR_OK;
}

static struct rr_open *newest_open(const struct rr_verbs_edge *edge)
{
	return (struct rr_open *)(edge->outbound + edge->opens_at + (edge->opens_sent - 1) % RR_EDGE_OPENS * RR_EDGE_OPEN_BYTES);
}

void rr_verbs_granted(const struct rr_verbs_edge *edge, struct rr_place places[RR_BUFFER_COUNT])
{
	memset(places, 0, sizeof(places[0]) * RR_BUFFER_COUNT);
	if (edge->opens_sent)
		memcpy(places, newest_open(edge)->place, sizeof(places[0]) * RR_BUFFER_COUNT);
}

rr_status rr_verbs_grant_again(struct rr_verbs_edge *edge)
{
	for (uint32_t b = 0; edge->opens_sent && b < RR_BUFFER_COUNT; b++) {
		struct rr_place *told = &newest_open(edge)->place[b];
		const struct rr_place *ours = &edge->granted[b];
		const struct rr_registration *registration;
		struct rr_gdr_region gpu;

		if (told->reach != RR_REACH_REGION)
			continue;
		if (!rr_memory_lives(ours->region) && !rr_gdr_by_id(ours->region, &gpu))
			continue; /* freed since the operation ended: nobody asks for it */
		rr_status status = rr_domain_register(edge->domain, ours->region, &registration);
		if (status < 0)
			return status;
		if (!registration)
			return rr_fail(RR_ERR_LINK, "device %s does not reach the GPU memory that the operation under way uses",
				       edge->rail.device);
		told->base = (uint64_t)(uintptr_t)registration->address + ours->base;
		told->region = registration->mr->rkey;
	}
	return RR_OK;
}

void rr_verbs_post_open(struct rr_verbs_edge *edge, uint32_t number)
{
	rr_verbs_post_line(edge, 0, edge->opens_at + number % RR_EDGE_OPENS * RR_EDGE_OPEN_BYTES, RR_EDGE_OPEN_USED,
			   rr_imm(RR_IMM_OPEN, number), NULL, false);
}

rr_status rr_verbs_open_post(struct rr_link *link, const struct rr_open *open, const struct rr_descriptor *descriptor)
{
	struct rr_verbs_edge *edge = rr_verbs_edge_of(link);
	rr_status status = rr_verbs_join(edge);

	if (status != RR_OK)
		return status;
	if (!rr_verbs_send_again(edge) || !rr_verbs_room(edge, 0, 1))
		return RR_AGAIN;
	uint32_t number = edge->opens_sent;
	uint64_t offset = edge->opens_at + number % RR_EDGE_OPENS * RR_EDGE_OPEN_BYTES;
	struct rr_open *told = (struct rr_open *)(edge->outbound + offset);
	edge->in.link.granted = 0;
	status = translate(edge, open, told);
	if (status < 0) {
		rr_error_here()->peer = edge->peer;
		return status;
	}
	rr_note64(&told->op, rr_own64(&open->op));
	told->descriptor = open->descriptor;
	memcpy(told + 1, descriptor, sizeof(*descriptor));
	memcpy(edge->granted, open->place, sizeof(edge->granted));
	edge->opens_sent++;
	rr_verbs_post_open(edge, number);
	rr_verbs_moved(edge);
	return RR_OK;
}

/* ---- transfers ---- */

static uint64_t in_flight(const struct rr_verbs_edge *edge)
{
	return edge->serial - edge->credited;
}

static bool inlined(const struct rr_verbs_queue *queue, const struct rr_transfer *transfer)
{
	return transfer->bytes <= queue->inline_bytes && !transfer->on_device; /* the processor reads what goes inline */
}

/* Whether the bytes can go from where they lie: as part of the request, or out of registered memory. */
static rr_status can_send_pieces(struct rr_verbs_edge *edge, const struct rr_transfer *transfer, bool *out)
{
	const struct rr_verbs_queue *queue = &edge->queues[edge->serial % edge->settings.qps];

	*out = transfer->piece_count > 0 && transfer->piece_count <= queue->sge_max;
	if (inlined(queue, transfer))
		return RR_OK;
	for (uint32_t i = 0; *out && i < transfer->piece_count; i++) {
		const struct rr_registration *registration;
		rr_status status = rr_domain_find(edge->domain, transfer->pieces[i].iov_base, transfer->pieces[i].iov_len,
						  &registration);
		if (status < 0)
			return status;
		*out = registration != NULL;
	}
	return RR_OK;
}

rr_status rr_verbs_reserve(struct rr_link *link, const struct rr_transfer *transfer, void **place)
{
	struct rr_verbs_edge *edge = rr_verbs_edge_of(link);
	uint32_t queue = (uint32_t)(edge->serial % edge->settings.qps);
	bool from_pieces;

	*place = NULL;
	rr_status status = rr_verbs_join(edge); /* a message has no OPEN that brings the edge up */
	if (status != RR_OK)
		return status;
	if (!rr_verbs_send_again(edge))
		return RR_AGAIN;
	if (transfer->bytes > edge->slot_bytes)
		return rr_fail(RR_ERR_PROTOCOL, "a slice of %u bytes for slots of %llu", transfer->bytes,
			       (unsigned long long)edge->slot_bytes);
	if (transfer->mode == RR_MODE_WRITE && edge->places[transfer->buffer].reach != RR_REACH_REGION)
		return rr_fail(RR_ERR_PROTOCOL, "rank %d granted no memory that the operation writes", link->peer);
	if (in_flight(edge) >= RR_RING_COUNT || !rr_verbs_room(edge, queue, 2 + (queue == 0 ? RR_EDGE_SENDS_KEPT : 0)))
		return RR_AGAIN;
	edge->reserved_slot = 0;
	if (transfer->mode == RR_MODE_SLOT && transfer->bytes <= RR_EDGE_BESIDE_BYTES) {
		edge->way = RR_WAY_BESIDE;
		*place = rr_verbs_line(edge->outbound, edge->serial) + 1;
		return RR_OK;
	}
	status = can_send_pieces(edge, transfer, &from_pieces);
	if (status < 0)
		return status;
	edge->way = from_pieces ? RR_WAY_PIECES : RR_WAY_STAGED;
	/* Staging mirrors the peer's slots, so one credit serves both, also where the bytes go to granted memory. */
	if (!(from_pieces && transfer->mode == RR_MODE_WRITE)) {
		if (!rr_slot_claim(&edge->room, transfer->bytes, &edge->reserved))
			return RR_AGAIN;
		edge->reserved_slot = (uint32_t)(edge->reserved.offset / RR_CACHE_LINE);
	}
	if (!from_pieces)
		*place = edge->outbound + edge->slots_at + (uint64_t)edge->reserved_slot * RR_CACHE_LINE;
	return RR_OK;
}

static struct rr_verbs_kept *kept_of(struct rr_verbs_edge *edge, uint64_t serial)
{
	return &edge->kept[serial % RR_RING_COUNT];
}

/* Scatter-gather list of a payload. False: memory without a key, which reserve() ruled out. */
static bool fill_pieces(struct rr_verbs_edge *edge, const struct rr_verbs_kept *kept, bool in_request, struct rr_ibv_sge *sges)
{
	for (uint32_t i = 0; i < kept->piece_count; i++) {
		const struct rr_registration *registration = NULL;
		const struct iovec *piece = &kept->pieces[i];

		sges[i] = (struct rr_ibv_sge){.addr = (uint64_t)(uintptr_t)piece->iov_base, .length = (uint32_t)piece->iov_len};
		if (in_request)
			continue;
		if (rr_domain_find(edge->domain, piece->iov_base, piece->iov_len, &registration) < 0 || !registration)
			return false;
		sges[i].lkey = registration->mr->lkey;
	}
	return true;
}

/* The payload's own request, to go before the line. held: the device reads our caller's memory after this call. */
static bool fill_payload(struct rr_verbs_edge *edge, const struct rr_verbs_kept *kept, const struct rr_verbs_queue *queue,
			 struct rr_ibv_send_wr *wr, struct rr_ibv_sge *sges, bool *held)
{
	uint64_t slot = edge->slots_at + (uint64_t)kept->slot * RR_CACHE_LINE;
	/* What is staged lies in host memory, whatever it was before. */
	bool in_request = kept->bytes <= queue->inline_bytes && (kept->way == RR_WAY_STAGED || !kept->on_device);

	*wr = (struct rr_ibv_send_wr){.sg_list = sges, .num_sge = 1, .opcode = RR_IBV_WR_RDMA_WRITE,
				      .send_flags = in_request ? RR_IBV_SEND_INLINE : 0};
	if (kept->mode == RR_MODE_WRITE) {
		wr->wr.rdma.remote_addr = edge->places[kept->buffer].base + kept->coordinate;
		wr->wr.rdma.rkey = edge->places[kept->buffer].region;
	} else {
		wr->wr.rdma.remote_addr = edge->peer_address + slot;
		wr->wr.rdma.rkey = edge->peer_key;
	}
	if (kept->way == RR_WAY_STAGED) {
		sges[0] = (struct rr_ibv_sge){.addr = (uint64_t)(uintptr_t)(edge->outbound + slot), .length = kept->bytes,
					      .lkey = edge->outbound_mr->lkey};
		return true;
	}
	wr->num_sge = (int)kept->piece_count;
	*held = !in_request;
	return kept->piece_count <= queue->sge_max && fill_pieces(edge, kept, in_request, sges);
}

bool rr_verbs_post_transfer(struct rr_verbs_edge *edge, uint64_t serial)
{
	const struct rr_verbs_kept *kept = kept_of(edge, serial);
	struct rr_data *line = rr_verbs_line(edge->outbound, serial);
	uint32_t queue = (uint32_t)(serial % edge->settings.qps);
	bool beside = kept->way == RR_WAY_BESIDE, held = false;
	struct rr_ibv_sge sges[RR_PIECES_MAX];
	struct rr_ibv_send_wr payload;

	if (!beside && !fill_payload(edge, kept, &edge->queues[queue], &payload, sges, &held)) {
		if (edge->failovers)
			rr_fail(RR_ERR_LINK, "device %s cannot send what was begun over another (%s): it takes %u pieces a request",
				edge->rail.device, edge->moved, edge->queues[queue].sge_max);
		else
			rr_fail(RR_ERR_ARGUMENT, "registered memory was freed while an operation uses it");
		rr_verbs_lose(edge);
		return false;
	}
	rr_verbs_post_line(edge, queue, (uint64_t)((uint8_t *)line - edge->outbound),
			   (uint32_t)sizeof(*line) + (beside ? kept->bytes : 0),
			   rr_imm(RR_IMM_DATA, serial), beside ? NULL : &payload, held);
	edge->request_of[serial % RR_RING_COUNT] = held ? edge->queues[queue].posted : 0;
	return true;
}

/* Half of what there is in use, or too little left for the largest slice wherever it may begin. */
static bool runs_low(const struct rr_verbs_edge *edge)
{
	uint64_t whole = edge->slot_bytes * edge->slot_count;
	uint64_t left = rr_slot_ring_free(&edge->room);

	return left < 2 * edge->slot_bytes || left < whole / 2 || in_flight(edge) >= RR_RING_COUNT / 2;
}

void rr_verbs_abort(struct rr_link *link)
{
	struct rr_verbs_edge *edge = rr_verbs_edge_of(link);

	rr_slot_abort(&edge->room, &edge->reserved);
}

void rr_verbs_commit(struct rr_link *link, const struct rr_transfer *transfer)
{
	struct rr_verbs_edge *edge = rr_verbs_edge_of(link);
	struct rr_data *line = rr_verbs_line(edge->outbound, edge->serial);
	struct rr_verbs_kept *kept = kept_of(edge, edge->serial);

	if (edge->failed) {
		rr_verbs_abort(link);
		return;
	}
	kept->way = edge->way;
	kept->mode = transfer->mode;
	kept->bytes = transfer->bytes;
	kept->on_device = transfer->on_device;
	kept->slot = edge->reserved_slot;
	kept->buffer = (uint32_t)transfer->buffer;
	kept->coordinate = transfer->coordinate;
	kept->piece_count = edge->way == RR_WAY_PIECES ? transfer->piece_count : 0;
	memcpy(kept->pieces, transfer->pieces, kept->piece_count * sizeof(kept->pieces[0]));
	rr_slot_commit(&edge->room, &edge->reserved, edge->serial);
	edge->serial++;
	line->op = transfer->op;
	line->order = transfer->order;
	line->slice = transfer->slice;
	line->bytes = transfer->bytes;
	line->released = 0;
	line->mode = transfer->mode;
	line->slot = edge->reserved_slot;
	line->coordinate = transfer->row_bytes ? transfer->row_bytes : transfer->coordinate;
	line->crc = transfer->crc;
	line->origin = transfer->origin;
	memset(line->reserved, 0, sizeof(line->reserved));
	line->reserved[0] = (uint8_t)((kept->way == RR_WAY_BESIDE ? RR_DATA_BESIDE : 0) | (runs_low(edge) ? RR_DATA_WANTED : 0));
	rr_note64(&line->serial, edge->serial);
	if (!rr_verbs_post_transfer(edge, edge->serial - 1))
		return;
	link->sent++;
	if (link->held_end || edge->request_of[(edge->serial - 1) % RR_RING_COUNT])
		link->held_end = link->sent;
	link->bytes += transfer->bytes;
	link->dirty = true;
	rr_verbs_moved(edge);
}

void rr_verbs_take_credit(struct rr_verbs_edge *edge, uint32_t low)
{
	uint32_t more = (low - (uint32_t)edge->credited) & RR_IMM_MASK;

	if (more > in_flight(edge)) {
		rr_fail(RR_ERR_PROTOCOL, "rank %d released more than it was sent", edge->peer);
		rr_verbs_lose(edge);
		return;
	}
	edge->credited += more;
	rr_slot_release(&edge->room, edge->credited);
}

/* The sooner of the peer's credit and the end of our requests; what was copied is released at once. */
uint64_t rr_verbs_released(struct rr_link *link)
{
	struct rr_verbs_edge *edge = rr_verbs_edge_of(link);

	while (edge->sent_whole != edge->serial &&
	       ((int64_t)(edge->credited - edge->sent_whole) > 0 ||
		edge->queues[edge->sent_whole % edge->settings.qps].completed >=
			edge->request_of[edge->sent_whole % RR_RING_COUNT]))
		edge->sent_whole++;
	return edge->sent_whole - edge->serial_start;
}

/* ---- tiny messages, and what waits ---- */

/* Of a line that has its tag and payload. */
static void make_short(struct rr_tiny_short *line, uint32_t bytes)
{
	memset(line->payload + bytes, 0, RR_EDGE_SHORT_BYTES - bytes);
	line->bytes = bytes;
	line->zero = 0;
	line->check = rr_tiny_check((const uint64_t *)line);
}

rr_status rr_verbs_tiny_post(struct rr_link *link, uint64_t tag, const void *payload, uint32_t bytes)
{
	struct rr_verbs_edge *edge = rr_verbs_edge_of(link);
	uint32_t serial = (uint32_t)(tag >> 32), which = serial & 1;
	rr_status status = rr_verbs_memory(edge);
	uint8_t *line;

	if (status < 0)
		return status;
	if (bytes > RR_MAILBOX_BYTES)
		return rr_fail(RR_ERR_PROTOCOL, "a tiny message of %u bytes: at most %u", bytes, RR_MAILBOX_BYTES);
	if (edge->tiny_pending & 1u << which)
		return RR_AGAIN;
	line = edge->outbound + edge->tinies_at + which * RR_EDGE_TINY_BYTES;
	memcpy(line, &tag, sizeof(tag));
	memcpy(line + sizeof(tag), payload, bytes);
	edge->tiny_bytes[which] = bytes;
	edge->tiny_serials[which] = serial;
	edge->tiny_pending |= 1u << which;
	edge->tiny_short &= ~(1u << which);
	edge->tiny_waits = 0;
	if (bytes <= RR_EDGE_SHORT_BYTES && edge->state == RR_VERBS_UP && edge->queues[0].inline_bytes >= RR_CACHE_LINE &&
	    !(edge->tiny_there[which] && edge->tiny_got[which] == (serial & RR_IMM_MASK)) && !rr_verbs_tiny_look(edge, serial)) {
		make_short((struct rr_tiny_short *)line, bytes);
		edge->tiny_short |= 1u << which;
	}
	status = rr_verbs_join(edge);
	if (status < 0)
		return status;
	rr_verbs_send_waiting(edge);
	return RR_OK;
}

static void send_tiny(struct rr_verbs_edge *edge, uint32_t which)
{
	uint64_t offset = edge->tinies_at + which * RR_EDGE_TINY_BYTES;

	edge->tiny_pending &= ~(1u << which);
	if (edge->tiny_short & 1u << which)
		rr_verbs_post_line(edge, 0, offset, RR_CACHE_LINE, 0, NULL, false);
	else
		rr_verbs_post_line(edge, 0, offset, edge->tiny_bytes[which] + (uint32_t)sizeof(uint64_t),
				   rr_imm(RR_IMM_TINY, edge->tiny_serials[which]), NULL, false);
	rr_verbs_moved(edge);
}

void rr_verbs_send_waiting(struct rr_verbs_edge *edge)
{
	if (edge->state != RR_VERBS_UP || edge->failed || !rr_verbs_send_again(edge))
		return;
	if (edge->tiny_pending == 3) { /* both before the edge was up: the older first */
		uint32_t older = (int32_t)(edge->tiny_serials[1] - edge->tiny_serials[0]) > 0 ? 0 : 1;
		if (rr_verbs_room(edge, 0, 1))
			send_tiny(edge, older);
	}
	for (uint32_t which = 0; which < 2; which++)
		if (edge->tiny_pending & 1u << which && rr_verbs_room(edge, 0, 1))
			send_tiny(edge, which);
	if (edge->bell_due && rr_verbs_room(edge, 0, 1)) {
		edge->bell_due = false;
		rr_verbs_post_line(edge, 0, 0, 0, rr_imm(RR_IMM_BELL, edge->bell_serial), NULL, false);
	}
	if (edge->credit_due && rr_verbs_room(edge, 0, 1)) {
		edge->credit_due = false;
		edge->credits_given = edge->next;
		rr_verbs_post_line(edge, 0, 0, 0, rr_imm(RR_IMM_CREDIT, edge->next), NULL, false);
	}
}
