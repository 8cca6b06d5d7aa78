/*
 * page_read.c - a progress page as a record, from bytes that may come from anywhere: of another version, cut short, or
 * written to meanwhile. Nothing in them is believed without a bound.
 */
#include <stdio.h>
#include <string.h>

#include "page.h"
#include "status.h"

#define RR_WORLD_MAX (1u << 20) /* whoever claims more is no rank */

uint64_t rr_page_bytes(void)
{
	return sizeof(struct rr_page);
}

static void read_wait(uint64_t word, uint32_t *kind, int32_t *row, int32_t *peer)
{
	uint32_t at = (uint32_t)(word >> 32) & 0xffffffu;

	*kind = (uint32_t)(word >> 56) <= RR_WAIT_RECEIVE ? (uint32_t)(word >> 56) : RR_WAIT_NOTHING;
	*row = at == 0xffffffu ? -1 : (int32_t)at;
	*peer = *kind ? (int32_t)(uint32_t)word : -1;
}

static void read_call(const struct rr_page *page, uint64_t entry, struct rr_rank_seen *out)
{
	struct rr_descriptor called = page->descriptors[(entry & 0xff) % RR_DESCRIPTOR_COUNT], other;

	called.algorithm[sizeof(called.algorithm) - 1] = 0;
	other = called;
	other.count = ~called.count; /* else how it is cut would be told */
	out->descriptor = called.hash;
	out->collective = called.collective;
	rr_descriptor_text(&called, &other, out->call, sizeof(out->call));
}

static void read_verdict(const struct rr_page *page, struct rr_rank_seen *out)
{
	out->verdict = page->error.verdict;
	out->verdict.transport[sizeof(out->verdict.transport) - 1] = 0;
	out->verdict.text[sizeof(out->verdict.text) - 1] = 0;
	out->verdict.evidence[sizeof(out->verdict.evidence) - 1] = 0;
}

/* Of the rank whose data it waits for. */
static void read_lack(const struct rr_page *page, struct rr_rank_seen *out)
{
	uint64_t lacks = rr_own64(&page->waiting.lacks);
	int32_t peer = (int32_t)(uint32_t)lacks - 1;

	out->lacks_peer = -1;
	if (!lacks || out->wait_kind[0] != RR_WAIT_DATA || out->wait_peer[0] != peer)
		return;
	out->lacks_peer = peer;
	out->lacks = (uint32_t)(lacks >> 32);
}

static uint64_t age_of(uint64_t seen_ns, uint64_t now_ns);

static void read_pace(const struct rr_page *page, uint64_t now_ns, struct rr_rank_seen *out)
{
	uint64_t word = rr_own64(&page->pace.word);
	uint32_t starved = (uint32_t)word & 0xffffu;

	out->pace_age_ns = age_of(rr_own64(&page->pace.seen_ns), now_ns);
	out->pace_moved_ns = age_of(rr_own64(&page->pace.moved_ns), now_ns);
	out->pace_span_ns = rr_own64(&page->pace.span_ns);
	out->pace_peer = out->pace_age_ns == UINT64_MAX ? -1 : (int32_t)(word >> 32 & 0x7fffffff);
	out->pace_far = (int32_t)(word >> 63);
	out->busy_permille = (int32_t)(word >> 16 & 0xffff);
	out->starved_permille = starved == RR_PACE_NOT_KNOWN ? -1 : (int32_t)starved;
}

/* Clocks of two processes may be read in the other order. */
static uint64_t age_of(uint64_t seen_ns, uint64_t now_ns)
{
	return !seen_ns ? UINT64_MAX : now_ns > seen_ns ? now_ns - seen_ns : 0;
}

void rr_page_seen(const struct rr_page *page, uint64_t now_ns, struct rr_rank_seen *out)
{
	uint64_t newest = 0;

	memset(out, 0, sizeof(*out));
	out->known = 1;
	out->rank = (int32_t)page->rank;
	out->world = (int32_t)page->world;
	out->pid = page->pid;
	out->page_state = (int32_t)rr_observe32(&page->state);
	out->comm = page->comm;
	out->process = page->process;
	out->start_time = page->start_time;
	out->pid_namespace = page->pid_namespace;
	out->op_done = rr_observe64(&page->op_done);
	out->position = rr_own64(&page->position);
	out->collective = -1;
	for (uint32_t i = 0; i < RR_ENTRY_COUNT; i++) {
		uint64_t entry = rr_observe64(&page->entries[i]);
		newest = entry >> 8 > newest >> 8 ? entry : newest;
	}
	out->op_entered = newest >> 8;
	if (newest)
		read_call(page, newest, out);
	if (rr_own64(&page->waiting.op) == out->op_entered && out->op_entered > out->op_done)
		for (int side = 0; side < 2; side++)
			read_wait(rr_own64(&page->waiting.waits[side]), &out->wait_kind[side], &out->wait_row[side],
				  &out->wait_peer[side]);
	else
		for (int side = 0; side < 2; side++)
			read_wait(0, &out->wait_kind[side], &out->wait_row[side], &out->wait_peer[side]);
	read_lack(page, out);
	uint64_t seen_ns = rr_own64(&page->waiting.seen_ns);
	uint64_t since_ns = rr_own64(&page->waiting.since_ns);
	out->quiet_ns = age_of(seen_ns, now_ns);
	out->waited_ns = seen_ns > since_ns ? seen_ns - since_ns : 0;
	int32_t row;
	uint32_t kind;
	read_wait(rr_own64(&page->elsewhere.wait), &kind, &row, &out->else_peer);
	out->else_kind = (int32_t)kind;
	out->else_comm = rr_own64(&page->elsewhere.comm);
	out->else_op = rr_own64(&page->elsewhere.op);
	out->else_process = rr_own64(&page->elsewhere.process);
	out->else_quiet_ns = age_of(rr_own64(&page->elsewhere.seen_ns), now_ns);
	read_pace(page, now_ns, out);
	if (out->page_state == RR_PAGE_FAILED)
		read_verdict(page, out);
}

int32_t rr_page_read(const void *bytes, uint64_t size, uint64_t now_ns, rr_rank_seen *out)
{
	struct rr_page page;

	if (size < sizeof(page))
		return -1;
	memcpy(&page, bytes, sizeof(page));
	if (page.magic != RR_PAGE_MAGIC)
		return -1;
	if (page.version != RR_PAGE_VERSION)
		return -2;
	if (page.rank >= page.world || page.world > RR_WORLD_MAX || page.pid <= 0)
		return -1;
	rr_page_seen(&page, now_ns, out);
	return 0;
}
