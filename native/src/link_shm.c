/*
 * link_shm.c - one direction of an edge inside a node.
 *
 * The sender's segment holds a ring of DATA lines and a ring of payload bytes for each receiver; the
 * receiver's segment holds one counter a sender, of transfers it has released. So each line has one
 * writer. A DATA line is published by its serial; credit is room in both rings.
 *
 *   sender's segment    ring: [DATA][DATA]...[DATA]     serial = 1 + number of the transfer
 *                       slots: |slice|slice|  free  |   at DATA.slot * 64; or, with RR_SLOT_COMMON, in those that
 *                                                       several receivers read (shm_common.h)
 *   receiver's segment  consumed[sender] = number of transfers released
 */
#define _GNU_SOURCE
#include "link_shm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "apart.h"
#include "order.h"
#include "slot_ring.h"
#include "status.h"

/* A peer's buffer as this end reaches it: where coordinate 0 lies, and what may be touched. */
struct reach {
	struct rr_place place;
	uint64_t zero;      /* address of coordinate 0, modulo 2^64: here for a region, there for CMA */
	uint64_t low, high; /* addresses of the mapping; 0, 2^64-1 for CMA: the kernel checks */
};

struct link_shm {
	struct rr_link link;
	struct rr_shm *shm;
	struct rr_data *ring;
	uint8_t *slots;
	uint64_t slots_bytes;
	uint8_t *common;     /* the slots of all receivers; NULL on a link of messages */
	struct rr_consumed *consumed;
	uint64_t serial;        /* next transfer */
	uint64_t serial_start;  /* of the first transfer */
	struct reach reach[RR_BUFFER_COUNT];
	struct link_shm *other; /* the edge's other direction; NULL: not told */
	/* sender */
	struct rr_slot_ring room;      /* of the slots */
	struct rr_slot_claim reserved; /* of the transfer that is filled now */
	uint32_t reserved_slot;        /* where it lies, for DATA */
	int64_t reserved_common; /* number of a common slot, or -1: none */
	/* receiver */
	uint8_t *bounce;
	enum { FILLED_NOT, FILLED_FOR_US, FILLED_FOR_SEVERAL } filled; /* the payload peeked last, by the sender (apart.h) */
	bool fetched; /* the transfer at `serial` is in the bounce buffer or its landing */
};

static struct link_shm *self(struct rr_link *link)
{
	return (struct link_shm *)link;
}

/* ---- OPEN: one line in the sender's page serves all its links ---- */

static rr_status shm_open_post(struct rr_link *link, const struct rr_open *open, const struct rr_descriptor *descriptor)
{
	struct rr_shm *shm = self(link)->shm;
	struct rr_open *line;
	uint64_t op = rr_own64(&open->op);

	(void)descriptor; /* it lies in our page */
	line = &shm->page->opens[op % RR_ENTRY_COUNT];
	if (rr_own64(&line->op) != op) {
		if (op >= shm->open_limit) {
			uint64_t done = UINT64_MAX;
			for (int32_t r = 0; r < shm->world; r++) {
				uint64_t theirs = r == shm->rank || !rr_shm_has(shm, r)
							  ? UINT64_MAX
							  : rr_observe64(&shm->peers[r].page->op_done);
				done = theirs < done ? theirs : done;
			}
			shm->open_limit = done + 1 + RR_ENTRY_COUNT;
			if (op >= shm->open_limit)
				return RR_AGAIN;
		}
		line->descriptor = open->descriptor;
		memcpy(line->place, open->place, sizeof(line->place));
		rr_publish64(&line->op, op); /* pairs with shm_open_peek() */
	}
	link->dirty = true;
	return RR_OK;
}

static rr_status shm_open_peek(struct rr_link *link, uint64_t op, const struct rr_open **open)
{
	struct link_shm *this = self(link);
	const struct rr_open *line = &this->shm->peers[link->peer].page->opens[op % RR_ENTRY_COUNT];

	if (rr_observe64(&line->op) != op) /* pairs with shm_open_post() */
		return RR_AGAIN;
	*open = line;
	return RR_OK;
}

static rr_status shm_open_accept(struct rr_link *link, const struct rr_open *open)
{
	struct link_shm *this = self(link);

	for (int b = 0; b < RR_BUFFER_COUNT; b++) {
		const struct rr_place *place = &open->place[b];
		struct reach *reach = &this->reach[b];
		struct rr_mapping mapping;

		if (memcmp(&reach->place, place, sizeof(*place)) == 0)
			continue;
		if (place->reach == RR_REACH_REGION) {
			rr_status status = rr_shm_mapping(this->shm, link->peer, place->region, &mapping);
			if (status < 0) {
				/* The peer may have left this operation, which needed nothing of this rank any more
				 * (its chunk is empty, say), and freed the region. A use of it is an error then. */
				*reach = (struct reach){.low = 1};
				continue;
			}
			reach->low = (uint64_t)(uintptr_t)mapping.address;
			reach->high = reach->low + mapping.bytes;
			reach->zero = reach->low + place->base;
		} else {
			reach->low = 0;
			reach->high = UINT64_MAX;
			reach->zero = place->base;
		}
		reach->place = *place;
	}
	return RR_OK;
}

/* The peer's memory for a transfer, or NULL if it would lie outside what the peer registered. */
static void *reach_address(const struct reach *reach, uint64_t coordinate, uint32_t bytes)
{
	uint64_t address = reach->zero + coordinate;

	if (address < reach->low || address > reach->high || bytes > reach->high - address)
		return NULL;
	return (void *)(uintptr_t)address;
}

/* For this end to touch: only what it has mapped. A peer may change its OPEN after the mode was computed from it. */
static void *mapped_address(const struct reach *reach, uint64_t coordinate, uint32_t bytes)
{
	return reach->place.reach == RR_REACH_REGION ? reach_address(reach, coordinate, bytes) : NULL;
}

/* ---- sender ---- */

/* What the receiver's counter said when it was heard of last. */
static uint64_t released_serial(const struct link_shm *this)
{
	return this->serial_start + this->link.released_seen;
}

/* The receiver has told that it released so many. */
static void take_released(struct link_shm *this, uint64_t released)
{
	if (released == released_serial(this))
		return;
	rr_slot_release(&this->room, released);
	this->link.released_seen = released - this->serial_start;
}

/* What a DATA line of the other direction tells of it. */
static bool take_told(struct link_shm *this, const struct rr_data *line)
{
	int32_t more = (int32_t)(line->released - (uint32_t)released_serial(this));

	if (more <= 0)
		return false;
	take_released(this, released_serial(this) + (uint32_t)more);
	return true;
}

/* A line that is about to be loaded anyway may tell it: then the counter's own, a cache miss, need not be. */
static bool told_by_next_line(struct link_shm *this)
{
	const struct link_shm *other = this->other;
	const struct rr_data *line;

	if (!other)
		return false;
	line = &other->ring[other->serial % RR_RING_COUNT];
	return rr_observe64(&line->serial) == other->serial + 1 && take_told(this, line); /* pairs with shm_commit() */
}

static uint64_t shm_released(struct rr_link *link)
{
	struct link_shm *this = self(link);

	if (!told_by_next_line(this))
		take_released(this, rr_observe64(&this->consumed->value)); /* pairs with shm_release() */
	return link->released_seen;
}

static bool take_room(struct link_shm *this, uint32_t bytes)
{
	if (!rr_slot_claim(&this->room, bytes, &this->reserved))
		return false;
	this->reserved_slot = (uint32_t)(this->reserved.offset / RR_CACHE_LINE);
	return true;
}

/* The slot that another link was given for the same bytes; or a new one, for the links that follow. */
static bool take_common(struct link_shm *this, const struct rr_transfer *transfer, void **place)
{
	if (!this->common)
		return false;
	if (rr_common_join(this->shm, transfer->given, &this->reserved_common))
		*place = (void *)(uintptr_t)transfer->given;
	else if (transfer->alike > 1) {
		this->reserved_common = rr_common_take(this->shm, transfer->bytes, place);
		this->link.past = this->reserved_common >= 0 && rr_apart_look_common(this->shm, transfer->bytes);
	}
	if (this->reserved_common < 0)
		return false;
	this->reserved_slot = RR_SLOT_COMMON | (uint32_t)((uint64_t)((uint8_t *)*place - this->common) / RR_CACHE_LINE);
	return true;
}

static int64_t in_flight(const struct link_shm *this)
{
	return (int64_t)(this->serial - released_serial(this));
}

static rr_status shm_reserve(struct rr_link *link, const struct rr_transfer *transfer, void **place)
{
	struct link_shm *this = self(link);

	if (in_flight(this) >= RR_RING_COUNT) {
		shm_released(link);
		if (in_flight(this) >= RR_RING_COUNT)
			return RR_AGAIN;
	}
	switch (transfer->mode) {
	case RR_MODE_SOURCE:
		link->past = transfer->copied && transfer->buffer == RR_SCRATCH && rr_apart_look(this->shm, link->peer, transfer->bytes);
		*place = NULL;
		return RR_OK;
	case RR_MODE_CMA:
		*place = NULL;
		return RR_OK;
	case RR_MODE_WRITE:
		*place = mapped_address(&this->reach[transfer->buffer], transfer->coordinate, transfer->bytes);
		if (!*place)
			return rr_fail(RR_ERR_PROTOCOL, "rank %d granted less memory than the operation writes", link->peer);
		return RR_OK;
	case RR_MODE_STREAM:
		break;
	case RR_MODE_SLOT:
		if (take_common(this, transfer, place))
			return RR_OK;
		if (!take_room(this, transfer->bytes)) {
			shm_released(link);
			if (!take_room(this, transfer->bytes))
				return RR_AGAIN;
		}
		*place = this->slots + (uint64_t)this->reserved_slot * RR_CACHE_LINE;
		link->past = rr_apart_look(this->shm, link->peer, transfer->bytes);
		return RR_OK;
	}
	return rr_fail(RR_ERR_PROTOCOL, "no such mode: %d", (int)transfer->mode);
}

static void shm_commit(struct rr_link *link, const struct rr_transfer *transfer)
{
	struct link_shm *this = self(link);
	struct rr_data *line = &this->ring[this->serial % RR_RING_COUNT];

	link->sent++;
	link->bytes += transfer->bytes;
	if (transfer->implied) {
		this->serial++;
		return;
	}
	rr_slot_commit(&this->room, &this->reserved, this->serial);
	line->op = transfer->op;
	line->order = transfer->order;
	line->slice = transfer->slice;
	line->bytes = transfer->bytes;
	line->mode = transfer->mode;
	line->slot = this->reserved_slot;
	line->coordinate = transfer->row_bytes ? transfer->row_bytes : transfer->coordinate;
	line->crc = transfer->crc;
	line->origin = transfer->origin;
	line->released = this->other ? (uint32_t)this->other->serial : 0;
	this->serial++;
	if (this->reserved_common >= 0)
		rr_common_commit(this->shm, this->reserved_common, link->peer, this->serial);
	this->reserved_common = -1;
	rr_publish64(&line->serial, this->serial); /* pairs with shm_peek() */
	link->dirty = true;
}

static void shm_abort(struct rr_link *link)
{
	struct link_shm *this = self(link);

	rr_slot_abort(&this->room, &this->reserved);
	if (this->reserved_common >= 0)
		rr_common_abort(this->shm, this->reserved_common);
	this->reserved_common = -1;
}

/* ---- receiver ---- */

static rr_status wrong_data(const struct rr_link *link, const struct rr_data *line,
			    const struct rr_transfer *transfer)
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

/* Have the kernel copy the slice, straight to where it lands if it only lands. */
static rr_status fetch(struct link_shm *this, const struct rr_transfer *transfer, uint64_t coordinate, const void **data)
{
	const struct rr_shm_peer *peer = &this->shm->peers[this->link.peer];
	void *to = transfer->landing;

	if (!to) {
		if (!this->bounce && posix_memalign((void **)&this->bounce, 4096, this->shm->layout.slot_bytes) != 0)
			return rr_fail(RR_ERR_NO_MEMORY, "no memory for a bounce buffer");
		to = this->bounce;
	}
	*data = to;
	if (this->fetched)
		return RR_OK;
	struct iovec local = {.iov_base = to, .iov_len = transfer->bytes};
	struct iovec remote = {.iov_base = reach_address(&this->reach[transfer->buffer], coordinate, transfer->bytes),
			       .iov_len = transfer->bytes};
	ssize_t got = process_vm_readv(peer->pid, &local, 1, &remote, 1, 0);
	if (got != (ssize_t)transfer->bytes)
		return rr_fail(RR_ERR_LINK, "reading %u bytes of rank %d's memory (process_vm_readv, pid %d): %s",
			       transfer->bytes, this->link.peer, peer->pid, got < 0 ? strerror(errno) : "cut short");
	this->fetched = true;
	return RR_OK;
}

/* Where the payload lies, or NULL if the line says something impossible. */
static const uint8_t *payload_of(const struct link_shm *this, const struct rr_data *line)
{
	uint64_t at = (uint64_t)(line->slot & ~RR_SLOT_COMMON) * RR_CACHE_LINE;
	const uint8_t *slots = line->slot & RR_SLOT_COMMON ? this->common : this->slots;

	return slots && at + line->bytes <= this->slots_bytes ? slots + at : NULL;
}

/* Of the vector's own coordinates both ends know the same; only cells of scratch are where their owner says. */
static bool is_elsewhere(const struct rr_data *line, const struct rr_transfer *transfer)
{
	bool in_place = transfer->mode == RR_MODE_SOURCE || transfer->mode == RR_MODE_CMA;

	if (transfer->row_bytes)
		return line->coordinate != transfer->row_bytes;
	return in_place && transfer->buffer != RR_SCRATCH && line->coordinate != transfer->coordinate;
}

static rr_status shm_peek(struct rr_link *link, const struct rr_transfer *transfer, const void **data)
{
	struct link_shm *this = self(link);
	const struct rr_data *line = &this->ring[this->serial % RR_RING_COUNT];

	if (transfer->implied && transfer->mode == RR_MODE_CMA)
		return fetch(this, transfer, transfer->coordinate, data);
	if (transfer->implied) {
		this->filled = this->shm->layout.count >= RR_STAGED_RANKS_MIN ? FILLED_FOR_US : FILLED_NOT; /* it may be staged */
		*data = mapped_address(&this->reach[transfer->buffer], transfer->coordinate, transfer->bytes);
		return *data ? RR_OK : rr_fail(RR_ERR_PROTOCOL, "rank %d registered less memory than its input", link->peer);
	}
	if (rr_observe64(&line->serial) != this->serial + 1) /* pairs with shm_commit() */
		return RR_AGAIN;
	if (line->op != transfer->op || line->order != transfer->order || line->slice != transfer->slice ||
	    line->bytes != transfer->bytes || line->mode != (uint32_t)transfer->mode || is_elsewhere(line, transfer))
		return wrong_data(link, line, transfer);
	link->crc = line->crc;
	link->origin = line->origin;
	if (this->other)
		take_told(this->other, line);
	switch (transfer->mode) {
	case RR_MODE_SLOT:
		this->filled = line->slot & RR_SLOT_COMMON ? FILLED_FOR_SEVERAL : FILLED_FOR_US;
		*data = payload_of(this, line);
		return *data ? RR_OK : wrong_data(link, line, transfer);
	case RR_MODE_SOURCE:
		this->filled = transfer->buffer == RR_SCRATCH ? FILLED_FOR_US : FILLED_NOT;
		*data = mapped_address(&this->reach[transfer->buffer], line->coordinate, line->bytes);
		return *data ? RR_OK : wrong_data(link, line, transfer);
	case RR_MODE_WRITE:
		*data = transfer->landing;
		return RR_OK;
	case RR_MODE_CMA:
		return fetch(this, transfer, line->coordinate, data);
	case RR_MODE_STREAM:
		break;
	}
	return wrong_data(link, line, transfer);
}

static void shm_release(struct rr_link *link, uint32_t bytes)
{
	struct link_shm *this = self(link);

	link->sent++;
	link->bytes += bytes;
	if (this->filled != FILLED_NOT)
		rr_apart_answer(this->shm, link->peer, this->filled == FILLED_FOR_SEVERAL, bytes);
	this->filled = FILLED_NOT;
	this->fetched = false;
	this->serial++;
	rr_publish64(&this->consumed->value, this->serial); /* pairs with shm_released() */
	link->dirty = true;
}

/* ---- both ---- */

static void shm_flush(struct rr_link *link)
{
	rr_shm_wake(self(link)->shm, link->peer);
}

static void shm_close(struct rr_link *link)
{
	free(self(link)->bounce);
	free(link);
}

static void shm_describe(struct rr_link *link, rr_link_facts *facts)
{
	facts->line_ps = self(link)->shm->peers[link->peer].apart.line_ps;
}

static const struct rr_link_ops shm_ops = {
	.transport = "shm",
	.open_post = shm_open_post,
	.open_peek = shm_open_peek,
	.open_accept = shm_open_accept,
	.reserve = shm_reserve,
	.commit = shm_commit,
	.abort = shm_abort,
	.released = shm_released,
	.peek = shm_peek,
	.release = shm_release,
	.flush = shm_flush,
	.describe = shm_describe,
	.close = shm_close,
};

rr_status rr_link_shm_open(struct rr_shm *shm, int32_t peer, bool outgoing, bool messages, struct rr_link **out)
{
	struct link_shm *this = calloc(1, sizeof(*this));
	struct rr_page *sender = outgoing ? shm->page : shm->peers[peer].page;
	struct rr_page *receiver = outgoing ? shm->peers[peer].page : shm->page;
	uint32_t to = (uint32_t)shm->index[outgoing ? peer : shm->rank];
	uint32_t from = (uint32_t)shm->index[outgoing ? shm->rank : peer];

	if (!this)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for a link to rank %d", peer);
	this->link.ops = &shm_ops;
	this->link.peer = peer;
	this->link.cma = outgoing ? shm->peers[peer].cma_of_us : shm->peers[peer].cma;
	this->shm = shm;
	this->ring = rr_page_ring(sender, &shm->layout, (messages ? shm->layout.count : 0) + to);
	this->slots = messages ? rr_page_message_slots(sender, &shm->layout, to) : rr_page_slots(sender, &shm->layout, to);
	this->common = messages ? NULL : rr_page_slots(sender, &shm->layout, from);
	this->reserved_common = -1;
	this->slots_bytes = messages ? shm->layout.message_bytes : shm->layout.link_bytes;
	rr_slot_ring_init(&this->room, this->slots_bytes);
	this->consumed = rr_page_consumed(receiver, &shm->layout, (messages ? shm->layout.count : 0) + from);
	this->serial_start = shm->serial_start;
	this->serial = shm->serial_start;
	*out = &this->link;
	return RR_OK;
}

void rr_link_shm_pair(struct rr_link *out, struct rr_link *in)
{
	self(out)->other = self(in);
	self(in)->other = self(out);
}
