/*
 * verdict.h - why a communicator is stuck or lost.
 *
 *   page_read.c  a page -> rr_rank_seen
 *   verdict.c    records of all ranks -> verdict; pure
 *   verdict_slow.c the same, of ranks that get on
 *   judge_pace.c how busy this rank's edges are -> its page
 *   judge_time.c what others are asked before a time-out is judged
 *   judge.c      a communicator and its error -> verdict; and what this rank waits in -> its page
 *
 * The words of each class are made here only, so that all ranks and `rdmaring why` say the same.
 */
#ifndef RR_VERDICT_H
#define RR_VERDICT_H

#include <stdbool.h>

#include "page.h"

#define RR_QUIET_NS 500000000ull /* a rank in an operation that has not looked around for so long is at work, or not run */
#define RR_ELSEWHERE_NS 5000000000ull /* a process clears what it waits in when it goes on: this bounds a surprise */
#define RR_STALE_NS 1000000000ull /* what a rank of another node has told goes for so long: who waits tells again and again */

/* A page that the caller maps. */
void rr_page_seen(const struct rr_page *page, uint64_t now_ns, struct rr_rank_seen *out);

/* All members at "does not apply". */
void rr_verdict_clear(rr_verdict *verdict);
/* Class, rank, peer, op and collective, with the text that belongs to them. peer's record tells in which row it waits. */
void rr_verdict_set(rr_verdict *out, rr_verdict_kind kind, const rr_rank_seen *rank, const rr_rank_seen *peer, uint64_t op);
/* Whether another rank may know more of a rank of another node, or one that is asked now. */
bool rr_verdict_is_weak(const rr_verdict *verdict, const rr_rank_seen *seen, int32_t world);
/* "; " and words more of what it rests on. */
void rr_verdict_note(rr_verdict *verdict, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
