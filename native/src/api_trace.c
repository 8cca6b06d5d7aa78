/* api_trace.c - rr_trace_*: tracing of one communicator, on and off. */
#include "comm.h"
#include "status.h"
#include "trace.h"

rr_status rr_trace_start(rr_comm *comm, uint64_t record_count)
{
	struct rr_trace *made = NULL;
	rr_status status = rr_comm_begin(comm);

	if (status < 0)
		return status;
	if (comm->engine.trace)
		status = rr_fail(RR_ERR_ARGUMENT, "this communicator is traced already: call rr_trace_stop() first");
	else
		status = rr_trace_make(comm->world, comm->options.channels, record_count, &made);
	if (status >= 0) {
		rr_trace_free(comm->trace);
		comm->trace = made;
		comm->engine.trace = made;
	}
	rr_drive_leave(comm);
	return status;
}

/* A lost communicator's records tell how it came to be lost. */
rr_status rr_trace_stop(rr_comm *comm)
{
	rr_status status = rr_comm_begin_lost(comm);

	if (status < 0)
		return status;
	comm->engine.trace = NULL;
	rr_drive_leave(comm);
	return RR_OK;
}

rr_status rr_trace_read(rr_comm *comm, rr_trace_record *out, uint64_t room, uint64_t *count, uint64_t *lost)
{
	rr_status status = rr_comm_begin_lost(comm);

	if (status < 0)
		return status;
	if (comm->trace) {
		*count = rr_trace_take(comm->trace, out, room);
		*lost = comm->trace->lost;
	} else {
		status = rr_fail(RR_ERR_ARGUMENT, "this communicator was never traced: call rr_trace_start() first");
	}
	rr_drive_leave(comm);
	return status;
}
