/*
 * trace.h - what the engine notes of each slice, while tracing is on.
 *
 * A ring of records a communicator; when it is full the oldest make room and are counted as lost. An
 * engine whose `trace` is NULL does nothing here: each call below is one test of a pointer.
 *
 *   RECEIVE    first asked ......... here                      (per link: the head transfer's two times)
 *   REDUCE               begin ... end                         (one pass over memory; COPY if nothing is added)
 *   SEND                         committed ....... released    (per link: a queue of those in flight)
 *   CREDIT                  no credit ... committed
 *   OPEN, DRAIN   one wait at a time: those phases look at their peers in order
 *
 * Knows links by link.h and rows by rows.h only. Threads: the driver of the communicator only.
 */
#ifndef RR_TRACE_H
#define RR_TRACE_H

#include <stdbool.h>

#include "clock.h"
#include "link.h"
#include "rdmaring.h"
#include "rows.h"

#define RR_TRACE_RECORDS_DEFAULT (1u << 17) /* 6 MiB */
#define RR_TRACE_RECORDS_MAX (1ull << 28)
#define RR_TRACE_FLIGHT 1024u /* sends in flight that a link's queue holds; a power of two */

/* One link out: the sends that are not released, oldest first. */
struct rr_trace_out {
	rr_trace_record *flight; /* [RR_TRACE_FLIGHT] made when first needed; end_ns holds the link's number */
	uint64_t head, tail;
	uint64_t credit_ns; /* since when the next slice waits for credit; 0: it does not */
};

/* One link in: the transfer at its head. */
struct rr_trace_in {
	uint64_t asked_ns, here_ns;
	enum rr_mode mode;
};

struct rr_trace {
	rr_trace_record *records;
	uint64_t room; /* a power of two */
	uint64_t written, taken;
	uint64_t lost;
	uint32_t world, link_count; /* links: channel * world + peer */
	struct rr_trace_out *out;   /* [link_count] */
	struct rr_trace_in *in;     /* [link_count] */
	uint64_t wait_ns; /* OPEN or DRAIN; 0: none */
	int32_t wait_peer;
	enum rr_trace_kind wait_kind;
};

/* Where in the schedule a record belongs. */
struct rr_trace_place {
	uint64_t op;
	uint32_t row;
	uint32_t slice;
};

/* record_count: at least so many; 0: the default. */
rr_status rr_trace_make(int32_t world, uint32_t channels, uint64_t record_count, struct rr_trace **out);
void rr_trace_free(struct rr_trace *trace);
/* The oldest records, at most `room` of them, and forget them. */
uint64_t rr_trace_take(struct rr_trace *trace, rr_trace_record *out, uint64_t room);

void rr_trace_note_operation(struct rr_trace *trace, uint64_t op, int32_t collective, uint64_t bytes,
			     uint64_t begin_ns, bool failed);
void rr_trace_note_wait(struct rr_trace *trace, enum rr_trace_kind kind, int32_t peer);
void rr_trace_note_waited(struct rr_trace *trace, uint64_t op);
uint64_t rr_trace_note_slice(struct rr_trace *trace, const struct rr_schedule *rows, const struct rr_trace_place *place,
			     uint32_t round, uint32_t bytes, uint64_t begin_ns);
void rr_trace_note_sent(struct rr_trace *trace, const struct rr_link *out, uint32_t link,
			const struct rr_transfer *transfer, uint32_t row, uint64_t copy_begin_ns, uint64_t now_ns);
void rr_trace_note_released(struct rr_trace *trace, struct rr_link *const *out, const uint32_t *links,
			    uint32_t link_total);
void rr_trace_note_left(struct rr_trace *trace, uint64_t op);

/* ---- the hooks: nothing but a test where tracing is off ---- */

static inline void rr_trace_operation(struct rr_trace *trace, uint64_t op, int32_t collective, uint64_t bytes,
				      uint64_t begin_ns, bool failed)
{
	if (trace)
		rr_trace_note_operation(trace, op, collective, bytes, begin_ns, failed);
}

/* OPEN, DRAIN: nothing can be done before `peer` has moved. */
static inline void rr_trace_wait(struct rr_trace *trace, enum rr_trace_kind kind, int32_t peer)
{
	if (trace)
		rr_trace_note_wait(trace, kind, peer);
}

static inline void rr_trace_waited(struct rr_trace *trace, uint64_t op)
{
	if (trace)
		rr_trace_note_waited(trace, op);
}

/* The transfer at the head of the link is not here yet. */
static inline void rr_trace_not_here(struct rr_trace *trace, uint32_t link)
{
	if (trace && !trace->in[link].asked_ns)
		trace->in[link].asked_ns = rr_now_ns();
}

/* Before a peek that may itself copy; where it can't, the moment it succeeds is all there is to know. */
static inline void rr_trace_asked(struct rr_trace *trace, uint32_t link, enum rr_mode mode)
{
	if (mode == RR_MODE_CMA || mode == RR_MODE_STREAM)
		rr_trace_not_here(trace, link);
}

/* It is here: since when; 0 where tracing is off. */
static inline uint64_t rr_trace_here(struct rr_trace *trace, uint32_t link, enum rr_mode mode)
{
	if (!trace)
		return 0;
	struct rr_trace_in *in = &trace->in[link];
	if (!in->here_ns) {
		in->here_ns = rr_now_ns();
		in->asked_ns = in->asked_ns ? in->asked_ns : in->here_ns;
		in->mode = mode;
	}
	return in->here_ns;
}

/* A pass over memory begins, if it has not begun: *begin_ns is 0 then. now_ns: the clock a moment ago, or 0. */
static inline void rr_trace_begin(struct rr_trace *trace, uint64_t *begin_ns, uint64_t now_ns)
{
	if (trace && !*begin_ns)
		*begin_ns = now_ns ? now_ns : rr_now_ns();
}

/* A row's slice is through its pass (begin_ns 0: it needed none), and its inputs go back. The clock, or 0. */
static inline uint64_t rr_trace_slice(struct rr_trace *trace, const struct rr_schedule *rows,
				      const struct rr_trace_place *place, uint32_t round, uint32_t bytes,
				      uint64_t begin_ns)
{
	return trace ? rr_trace_note_slice(trace, rows, place, round, bytes, begin_ns) : 0;
}

/* The next slice over the link finds no credit. */
static inline void rr_trace_no_credit(struct rr_trace *trace, uint32_t link)
{
	if (trace && !trace->out[link].credit_ns)
		trace->out[link].credit_ns = rr_now_ns();
}

/*
 * Called before commit(), which may move bytes. copy_begin_ns: a copy into the link ends now; 0: none. now_ns: the
 * clock a moment ago, or 0.
 */
static inline void rr_trace_sent(struct rr_trace *trace, const struct rr_link *out, uint32_t link,
				 const struct rr_transfer *transfer, uint32_t row, uint64_t copy_begin_ns, uint64_t now_ns)
{
	if (trace)
		rr_trace_note_sent(trace, out, link, transfer, row, copy_begin_ns, now_ns ? now_ns : rr_now_ns());
}

/* Once a pass: which sends have been released meanwhile. */
static inline void rr_trace_released(struct rr_trace *trace, struct rr_link *const *out, const uint32_t *links,
				     uint32_t link_total)
{
	if (trace)
		rr_trace_note_released(trace, out, links, link_total);
}

/* The operation ends here, well or not: what is open is closed, and marked RR_TRACE_LEFT. */
static inline void rr_trace_left(struct rr_trace *trace, uint64_t op)
{
	if (trace)
		rr_trace_note_left(trace, op);
}

#endif
