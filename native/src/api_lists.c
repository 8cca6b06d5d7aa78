/* api_lists.c - a communicator's lists, and works ordered with streams. */
#include "comm.h"
#include "order.h"
#include "status.h"
#include "stream_lists.h"

rr_status rr_comm_use_lists(rr_comm *comm, rr_lists *lists)
{
	rr_status status = rr_comm_begin(comm);

	if (status < 0)
		return status;
	if (comm->lists)
		status = rr_fail(RR_ERR_ARGUMENT, "rank %d's communicator has lists already", comm->rank);
	else if (!comm->device)
		status = rr_fail(RR_ERR_ARGUMENT, "rank %d's communicator has no device: rr_comm_use_device() comes first", comm->rank);
	else
		comm->lists = lists;
	rr_drive_leave(comm);
	return status;
}

rr_status rr_work_order(rr_work *work, void *stream)
{
	struct rr_comm *comm = work->comm;
	rr_status status = rr_comm_here(comm);

	if (status < 0)
		return status;
	if (!work->plan || !work->plan->listed)
		return rr_fail(RR_ERR_ARGUMENT, "the work is none of a plan with on_streams");
	if (rr_comm_here(work->comm) < 0)
		return RR_ERR_FORKED;
	if (rr_observe32(&work->state) == RR_WORK_DONE && work->status < 0)
		return rr_error_set(&work->error);
	if (!rr_comm_hold(comm)) /* the driver looks at its lists meanwhile, as ever */
		return rr_comm_closed(comm);
	status = comm->lists->ops->order(comm->lists, &work->emission, stream);
	rr_comm_let_go(comm);
	return status;
}
