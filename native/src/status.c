/* status.c - names of statuses, and the error record of each thread. */
#include "status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local rr_error error_here;

const char *rr_status_name(rr_status status)
{
	switch (status) {
	case RR_OK: return "ok";
	case RR_AGAIN: return "again";
	case RR_ERR_ARGUMENT: return "argument";
	case RR_ERR_NO_MEMORY: return "no memory";
	case RR_ERR_UNSUPPORTED: return "unsupported";
	case RR_ERR_SCHEDULE: return "schedule";
	case RR_ERR_LINK: return "link";
	case RR_ERR_PROTOCOL: return "protocol";
	case RR_ERR_CORRUPT: return "corrupt";
	case RR_ERR_TIMEOUT: return "timeout";
	case RR_ERR_PEER_DIED: return "peer died";
	case RR_ERR_PEER_FAILED: return "peer failed";
	case RR_ERR_PEER_CLOSED: return "peer closed";
	case RR_ERR_ABORTED: return "aborted";
	case RR_ERR_MISMATCH: return "mismatch";
	case RR_ERR_CLOSED: return "closed";
	case RR_ERR_FORKED: return "forked";
	case RR_ERR_SYSTEM: return "system";
	case RR_ERR_SETUP: return "setup";
	case RR_ERR_DEVICE: return "device";
	}
	return "invalid";
}

const char *rr_collective_name(int32_t collective)
{
	switch ((rr_collective)collective) {
	case RR_ALL_REDUCE: return "all_reduce";
	case RR_REDUCE_SCATTER: return "reduce_scatter";
	case RR_ALL_GATHER: return "all_gather";
	case RR_BROADCAST: return "broadcast";
	case RR_REDUCE: return "reduce";
	case RR_BARRIER: return "barrier";
	case RR_ALL_TO_ALL: return "all_to_all";
	case RR_GATHER: return "gather";
	case RR_SCATTER: return "scatter";
	}
	return "invalid";
}

void rr_error_clear(rr_error *error, rr_status status)
{
	memset(error, 0, sizeof(*error));
	error->status = status;
	error->rank = -1;
	error->peer = -1;
	error->row = -1;
	error->op = -1;
}

rr_status rr_fail(rr_status status, const char *format, ...)
{
	va_list arguments;

	rr_error_clear(&error_here, status);
	va_start(arguments, format);
	vsnprintf(error_here.message, sizeof(error_here.message), format, arguments);
	va_end(arguments);
	snprintf(error_here.hint, sizeof(error_here.hint), "%s", rr_hint_of(status, format));
	return status;
}

rr_error *rr_error_here(void)
{
	return &error_here;
}

rr_status rr_error_set(const rr_error *error)
{
	error_here = *error;
	return (rr_status)error->status;
}

void rr_last_error(rr_error *out)
{
	*out = error_here;
}
