/* test_trace.c - the ring of trace records, and what is noted of a link's transfers. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "trace.h"

#define WORLD 3

static uint64_t released_now[WORLD];

static uint64_t released(struct rr_link *link)
{
	return released_now[link->peer];
}

static const struct rr_link_ops ops = {.transport = "test", .released = released};
static struct rr_link links[WORLD] = {{.ops = &ops, .peer = 0}, {.ops = &ops, .peer = 1}, {.ops = &ops, .peer = 2}};
static struct rr_link *const out[WORLD] = {&links[0], &links[1], &links[2]};
static const uint32_t peers[2] = {1, 2}; /* links of channel 0 */

static struct rr_trace *make(uint64_t record_count)
{
	struct rr_trace *trace = NULL;
	rr_status status = rr_trace_make(WORLD, 1, record_count, &trace);

	assert(status == RR_OK);
	memset(released_now, 0, sizeof(released_now));
	links[1].sent = 0;
	links[2].sent = 0;
	return trace;
}

static void send(struct rr_trace *trace, int32_t peer, uint32_t slice)
{
	struct rr_transfer transfer = {.op = 7, .order = 2, .slice = slice, .bytes = 100 + slice, .mode = RR_MODE_SLOT};

	rr_trace_sent(trace, &links[peer], (uint32_t)peer, &transfer, 5, 0, 0);
	links[peer].sent++;
}

/* The oldest make room, in order, and each is counted. */
static void test_overflow(void)
{
	struct rr_trace *trace = make(5); /* rounded up to 8 */
	rr_trace_record records[16];

	for (uint32_t i = 0; i < 20; i++)
		rr_trace_operation(trace, i, 0, i, 1, false);
	assert(trace->lost == 12);
	assert(rr_trace_take(trace, records, 3) == 3);
	assert(records[0].op == 12 && records[2].op == 14);
	assert(rr_trace_take(trace, records, 16) == 5);
	assert(records[4].op == 19 && records[4].end_ns >= records[4].begin_ns);
	assert(rr_trace_take(trace, records, 16) == 0);
	rr_trace_operation(trace, 20, 0, 0, 1, false); /* what was taken is not lost again */
	assert(trace->lost == 12 && rr_trace_take(trace, records, 16) == 1);
	rr_trace_free(trace);
}

/* A SEND ends when its link counts it as released: not before, and per link in order. */
static void test_sends(void)
{
	struct rr_trace *trace = make(64);
	rr_trace_record records[64];

	for (uint32_t i = 0; i < 3; i++)
		send(trace, 1, i);
	send(trace, 2, 9);
	rr_trace_released(trace, out, peers, 2);
	assert(rr_trace_take(trace, records, 64) == 0);
	released_now[1] = 2;
	rr_trace_released(trace, out, peers, 2);
	assert(rr_trace_take(trace, records, 64) == 2);
	for (uint32_t i = 0; i < 2; i++)
		assert(records[i].kind == RR_TRACE_SEND && records[i].peer == 1 && records[i].slice == i &&
		       records[i].bytes == 100 + i && records[i].row == 5 && records[i].order == 2 && records[i].op == 7 &&
		       records[i].flags == 0 && records[i].end_ns >= records[i].begin_ns);
	rr_trace_left(trace, 7);
	assert(rr_trace_take(trace, records, 64) == 2);
	assert(records[0].slice == 2 && records[0].flags == RR_TRACE_LEFT);
	assert(records[1].peer == 2 && records[1].slice == 9 && records[1].flags == RR_TRACE_LEFT);
	assert(records[1].end_ns >= records[1].begin_ns);
	rr_trace_free(trace);
}

/* More in flight than the queue holds: the oldest are lost, and counted. */
static void test_flight(void)
{
	struct rr_trace *trace = make(2 * RR_TRACE_FLIGHT);
	rr_trace_record records[RR_TRACE_FLIGHT];

	for (uint32_t i = 0; i < RR_TRACE_FLIGHT + 3; i++)
		send(trace, 1, i);
	assert(trace->lost == 3);
	released_now[1] = RR_TRACE_FLIGHT + 3;
	rr_trace_released(trace, out, peers, 2);
	assert(rr_trace_take(trace, records, RR_TRACE_FLIGHT) == RR_TRACE_FLIGHT);
	assert(records[0].slice == 3 && records[RR_TRACE_FLIGHT - 1].slice == RR_TRACE_FLIGHT + 2);
	rr_trace_free(trace);
}

static struct rr_receive receives[2] = {{.peer = 1, .link = 1, .order = 0}, {.peer = 2, .link = 2, .order = 4}};
static uint32_t receives_from[WORLD] = {0, 1, 7};
static struct rr_row rows[2] = {{.action = RR_ACTION_REDUCE}, {.action = RR_ACTION_COPY, .receive_begin = 1, .receive_end = 2}};
static const struct rr_schedule schedule = {.rows = rows, .receives = receives, .receives_from = receives_from};

/* Asked many times, here once; the pair is forgotten with its release. */
static void test_waits(void)
{
	struct rr_trace *trace = make(64);
	struct rr_trace_place place = {.op = 3, .row = 1, .slice = 6};
	rr_trace_record records[2], record;
	uint64_t begin_ns = 0;

	rr_trace_asked(trace, 2, RR_MODE_SLOT);
	assert(trace->in[2].asked_ns == 0);
	rr_trace_asked(trace, 2, RR_MODE_CMA);
	uint64_t asked_ns = trace->in[2].asked_ns;
	assert(asked_ns);
	rr_trace_not_here(trace, 2);
	uint64_t here_ns = rr_trace_here(trace, 2, RR_MODE_CMA);
	assert(rr_trace_here(trace, 2, RR_MODE_CMA) == here_ns && here_ns >= asked_ns);
	rr_trace_begin(trace, &begin_ns, here_ns);
	assert(begin_ns == here_ns);
	rr_trace_slice(trace, &schedule, &place, 3, 50, begin_ns);
	assert(rr_trace_take(trace, records, 2) == 2);
	assert(records[0].kind == RR_TRACE_COPY && records[0].begin_ns == begin_ns && records[0].peer == -1);
	record = records[1];
	assert(record.kind == RR_TRACE_RECEIVE && record.begin_ns == asked_ns && record.detail == RR_MODE_CMA);
	assert(record.order == 4 + 3 * 7 && record.slice == 6 && record.bytes == 50 && record.peer == 2);
	assert(record.end_ns <= begin_ns);
	/* tracing began in between, and there was no pass: no times, no record */
	rr_trace_slice(trace, &schedule, &place, 3, 50, 0);
	assert(rr_trace_take(trace, &record, 1) == 0);
	rr_trace_no_credit(trace, 1);
	send(trace, 1, 0);
	assert(rr_trace_take(trace, &record, 1) == 1 && record.kind == RR_TRACE_CREDIT && record.bytes == 100);
	struct rr_transfer transfer = {.op = 7, .order = 2, .slice = 1, .bytes = 100, .mode = RR_MODE_SLOT};
	rr_trace_sent(trace, &links[1], 1, &transfer, 5, begin_ns, 0); /* with a copy into the slot */
	assert(rr_trace_take(trace, &record, 1) == 1 && record.kind == RR_TRACE_COPY && record.peer == 1);
	assert(record.begin_ns == begin_ns && record.order == 2);
	rr_trace_wait(trace, RR_TRACE_OPEN, 2);
	rr_trace_wait(trace, RR_TRACE_OPEN, 2);
	rr_trace_waited(trace, 3);
	rr_trace_waited(trace, 3);
	assert(rr_trace_take(trace, &record, 1) == 1 && record.kind == RR_TRACE_OPEN && record.peer == 2);
	assert(rr_trace_take(trace, &record, 1) == 0);
	rr_trace_free(trace);
}

/* Off: nothing is touched. */
static void test_off(void)
{
	struct rr_trace_place place = {0};
	uint64_t begin_ns = 0;

	rr_trace_asked(NULL, 2, RR_MODE_CMA);
	rr_trace_not_here(NULL, 2);
	rr_trace_here(NULL, 2, RR_MODE_SLOT);
	rr_trace_begin(NULL, &begin_ns, 1);
	rr_trace_slice(NULL, NULL, &place, 0, 1, 1);
	rr_trace_no_credit(NULL, 1);
	rr_trace_sent(NULL, &links[1], 1, NULL, 0, 1, 1);
	rr_trace_released(NULL, out, peers, 2);
	rr_trace_wait(NULL, RR_TRACE_OPEN, 1);
	rr_trace_waited(NULL, 1);
	rr_trace_operation(NULL, 1, 0, 0, 0, false);
	rr_trace_left(NULL, 1);
	assert(begin_ns == 0);
}

static void test_refused(void)
{
	struct rr_trace *trace = NULL;

	assert(rr_trace_make(WORLD, 1, RR_TRACE_RECORDS_MAX + 1, &trace) == RR_ERR_ARGUMENT);
	assert(trace == NULL);
}

int main(void)
{
	test_overflow();
	test_sends();
	test_flight();
	test_waits();
	test_off();
	test_refused();
	puts("trace: all well");
	return 0;
}
