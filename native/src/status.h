/*
 * status.h - how an error travels: decided once, where the cause is known, kept per thread.
 *
 * A function that fails calls rr_fail() (or rr_fail_at()) and returns the status; its callers pass
 * the status on and add nothing. The text is whole sentences for a person.
 */
#ifndef RR_STATUS_H
#define RR_STATUS_H

#include "rdmaring.h"

/* Record an error of this thread and return its status. */
rr_status rr_fail(rr_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* hints.c: what to do about an error that a site records by this format; "" where only its class knows. */
const char *rr_hint_of(rr_status status, const char *format);

/* The record of this thread, to add where (rank, peer, op, row) and a hint. Never NULL. */
rr_error *rr_error_here(void);

/* Start a record by hand: all members at "does not apply". */
void rr_error_clear(rr_error *error, rr_status status);

/* Make `error` this thread's record and return its status. */
rr_status rr_error_set(const rr_error *error);

#endif
