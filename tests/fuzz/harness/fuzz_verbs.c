/*
 * fuzz_verbs.c - an edge over verbs whose peer writes what it likes: set-up messages, immediate words, and the memory
 * that was granted to it. The device is a table of functions that say yes.
 *
 * The input is a list of steps: a byte that says what, then what that step takes.
 */
#include <arpa/inet.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "far_inside.h"
#include "fuzz.h"
#include "order.h"
#include "verbs_edge.h"

#define SLOT_BYTES 4096u
#define STEPS_MAX 64

static int yes_modify(struct rr_ibv_qp *qp, struct rr_ibv_qp_attr *attributes, int mask)
{
	(void)qp, (void)attributes, (void)mask;
	return 0;
}

static int yes_send(struct rr_ibv_qp *qp, struct rr_ibv_send_wr *wr, struct rr_ibv_send_wr **bad)
{
	(void)qp, (void)wr, (void)bad;
	return 0;
}

static int yes_receive(struct rr_ibv_qp *qp, struct rr_ibv_recv_wr *wr, struct rr_ibv_recv_wr **bad)
{
	(void)qp, (void)wr, (void)bad;
	return 0;
}

static const struct rr_verbs device = {.modify_qp = yes_modify, .post_send = yes_send, .post_recv = yes_receive};

static void arrive(struct rr_verbs_edge *edge, struct fuzz_input *input)
{
	uint8_t kind = fuzz_byte(input);
	struct rr_ibv_wc wc = {.opcode = kind & 128 ? kind : RR_IBV_WC_RECV_RDMA_WITH_IMM, .wc_flags = RR_IBV_WC_WITH_IMM};

	wc.imm_data = htonl((uint32_t)(kind & 7) << RR_IMM_BITS | (fuzz_word(input) & RR_IMM_MASK));
	wc.byte_len = kind & 64 ? fuzz_word(input) : RR_EDGE_OPEN_USED;
	rr_verbs_arrived(edge, &wc);
}

static void take(struct rr_verbs_edge *edge, uint8_t what)
{
	static uint8_t landing[SLOT_BYTES];
	struct rr_link *in = &edge->in.link;
	struct rr_transfer transfer = {.op = 1, .order = what & 1, .slice = what >> 1 & 1, .bytes = what & 4 ? SLOT_BYTES : 64,
				       .mode = what & 8 ? RR_MODE_WRITE : RR_MODE_SLOT, .landing = what & 16 ? landing : NULL,
				       .row_bytes = what & 32 ? 65 : 0};
	const void *data;

	if (rr_verbs_peek(in, &transfer, &data) != RR_OK)
		return;
	memcpy(landing, data, transfer.bytes);
	rr_verbs_release(in, transfer.bytes);
}

static void tiny(struct rr_verbs_edge *edge, uint8_t what)
{
	static uint8_t room[RR_MAILBOX_BYTES];
	const void *payload;
	uint64_t tag;
	uint32_t bytes;

	if (rr_verbs_tiny_peek(&edge->in.link, 1 + what % 4, &tag, &payload, &bytes) == RR_OK && bytes <= sizeof(room))
		memcpy(room, payload, bytes);
}

static void set_up(struct rr_verbs_edge *edge, struct fuzz_input *input, bool right)
{
	struct rr_verbs_parameters told;

	fuzz_take(input, &told, sizeof(told));
	if (right) { /* all but what the input is to say */
		told.magic = RR_VERBS_MAGIC;
		told.qps = edge->settings.qps;
		told.slot_bytes = edge->slot_bytes;
		told.slot_count = edge->slot_count;
		told.bytes = edge->area_bytes;
		told.serial = (uint32_t)edge->serial_start;
		memcpy(told.gid, edge->pair.their_gid.gid, sizeof(told.gid));
	}
	rr_verbs_edge_ops.message(edge, &told, fuzz_byte(input) & 1 ? sizeof(told) : fuzz_word(input) % sizeof(told));
}

static void step(struct rr_verbs_edge *edge, struct fuzz_input *input)
{
	uint8_t what = fuzz_byte(input);
	const struct rr_open *open;

	switch (what % 8) {
	case 0: { /* the peer writes into what was granted to it */
		uint32_t at = fuzz_word(input) % (uint32_t)edge->area_bytes, bytes = fuzz_byte(input);
		bytes = bytes < edge->area_bytes - at ? bytes : (uint32_t)edge->area_bytes - at;
		fuzz_take(input, edge->inbound + at, bytes);
		return;
	}
	case 1: arrive(edge, input); return;
	case 2: take(edge, fuzz_byte(input)); return;
	case 3: tiny(edge, what >> 3); return;
	case 4: rr_verbs_open_peek(&edge->in.link, 1 + what % 3, &open); return;
	case 5: set_up(edge, input, what & 8); return;
	case 6: rr_verbs_take_credit(edge, fuzz_word(input) & RR_IMM_MASK); return;
	case 7: rr_verbs_released(&edge->out.link); return;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_input input = {data, size};
	struct rr_page *page = aligned_alloc(RR_CACHE_LINE, sizeof(*page));
	struct rr_edge *edges = calloc(2, sizeof(*edges));
	struct rr_far far = {.world = 2, .edges = edges};
	struct rr_verbs_edge *edge = calloc(1, sizeof(*edge));
	struct rr_ibv_mr region = {0};
	struct rr_ibv_qp pair = {0};
	struct rr_domain *domain = calloc(1, sizeof(*domain));

	memset(page, 0, sizeof(*page));
	rr_note32(&page->state, RR_PAGE_RUNNING);
	edges[1].page = page;
	edges[1].state = RR_EDGE_UP;
	edges[1].socket = -1; /* what is said to the peer goes nowhere */
	edge->far = &far;
	edge->verbs = &device;
	edge->peer = 1;
	edge->domain = domain;
	edge->settings.qps = 1;
	edge->slot_bytes = SLOT_BYTES;
	edge->slot_count = 2;
	edge->state = fuzz_byte(&input) & 1 ? RR_VERBS_UP : RR_VERBS_MADE;
	edge->inbound_mr = edge->outbound_mr = &region;
	edge->queues[0] = (struct rr_verbs_queue){.qp = &pair, .depth = RR_EDGE_SENDS, .inline_bytes = RR_EDGE_LINE_BYTES, .sge_max = 4};
	edge->in.edge = edge->out.edge = edge;
	edge->in.link.peer = edge->out.link.peer = 1;
	if (rr_verbs_memory(edge) != RR_OK)
		abort();
	for (int i = 0; i < STEPS_MAX && input.left && !edge->failed; i++)
		step(edge, &input);
	rr_pin_disown(&edge->areas);
	munmap(edge->inbound, 2 * edge->area_bytes);
	free(edge);
	free(domain);
	free(edges);
	free(page);
	return 0;
}
