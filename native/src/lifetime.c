/*
 * lifetime.c - who may be inside a communicator, and its end.
 *
 * Its driver is the gate: a call takes it (rr_comm_begin()) before it looks at anything that close() gives back, and
 * close() is the last driver, for good. What is read beside the driver has a lock of its own, and is counted
 * (rr_comm_hold()). The struct itself, with what never changes in it, stays until its last reference is released: a call
 * that comes too late finds the gate shut, and nothing freed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "clock.h"
#include "comm.h"
#include "forked.h"
#include "memory.h"
#include "order.h"
#include "status.h"

#define NAP_NS 50000u
#define TOLD UINT64_MAX /* abort_wanted: the reason is written; before, the number of the thread that writes it */

static void nap(void)
{
	nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
}

/* ---- the gate ---- */

rr_status rr_comm_here(const struct rr_comm *comm)
{
	if (comm->process_mark == rr_forked_mark())
		return RR_OK;
	rr_fail(RR_ERR_FORKED, "rank %d's communicator is used in a child process of the one that made it", comm->rank);
	rr_error_here()->rank = comm->rank;
	strcpy(rr_error_here()->hint, "make a communicator in the child (rdmaring.init), or start workers by spawn instead of fork");
	return RR_ERR_FORKED;
}

rr_status rr_comm_closed(const struct rr_comm *comm)
{
	rr_fail(RR_ERR_CLOSED, "the communicator of rank %d is closed", comm->rank);
	rr_error_here()->rank = comm->rank;
	return RR_ERR_CLOSED;
}

rr_status rr_comm_begin_lost(struct rr_comm *comm)
{
	rr_status status = rr_comm_here(comm);

	if (status >= 0)
		status = rr_drive_take(comm);
	if (status < 0 || !rr_own32(&comm->ending))
		return status;
	rr_drive_leave(comm); /* to the thread that closes it */
	return rr_comm_closed(comm);
}

rr_status rr_comm_begin(struct rr_comm *comm)
{
	rr_status status = rr_comm_begin_lost(comm);

	if (status >= 0 && comm->failed) {
		status = rr_error_set(&comm->failure);
		rr_drive_leave(comm);
	}
	return status;
}

bool rr_comm_hold(struct rr_comm *comm)
{
	if (comm->process_mark != rr_forked_mark())
		return false;
	atomic_fetch_add_explicit(&comm->holders, 1, memory_order_seq_cst); /* pairs with wait_for_others() */
	if (!atomic_load_explicit(&comm->ending, memory_order_seq_cst))
		return true;
	rr_comm_let_go(comm);
	return false;
}

void rr_comm_let_go(struct rr_comm *comm)
{
	atomic_fetch_sub_explicit(&comm->holders, 1, memory_order_release);
}

/* ---- references ---- */

rr_status rr_comm_retain(rr_comm *comm)
{
	atomic_fetch_add_explicit(&comm->references, 1, memory_order_relaxed);
	return RR_OK;
}

void rr_comm_release(rr_comm *comm)
{
	if (!comm || atomic_fetch_sub_explicit(&comm->references, 1, memory_order_acq_rel) != 1)
		return;
	free(comm->sent_before);
	free(comm->received_before);
	free(comm->link_stats);
	rr_run_forget_lists(&comm->call);
	free(comm->node);
	free(comm->edge_channels);
	free(comm->pages);
	free(comm->not_verbs);
	free(comm);
}

/* ---- abort ---- */

/* The first reason stays; when this returns it is written, unless this is a signal's handler in the thread that writes it. */
static void want_abort(struct rr_comm *comm, const char *reason)
{
	uint64_t held = 0, own = rr_drive_thread();

	if (atomic_compare_exchange_strong_explicit(&comm->abort_wanted, &held, own, memory_order_acq_rel, memory_order_acquire)) {
		strncat(comm->abort_reason, reason ? reason : "no reason given", sizeof(comm->abort_reason) - 1);
		rr_publish64(&comm->abort_wanted, TOLD); /* pairs with rr_comm_doomed() */
		return;
	}
	while (held != TOLD && held != own) {
		nap();
		held = rr_observe64(&comm->abort_wanted);
	}
}

const char *rr_comm_doomed(const struct rr_comm *comm)
{
	if (rr_observe64(&comm->abort_wanted) == TOLD)
		return comm->abort_reason;
	return rr_own32(&comm->ending) && rr_own32(&comm->unfinished) ? "closed with work in flight" : NULL;
}

rr_status rr_comm_abort(rr_comm *comm, const char *reason)
{
	rr_status status = rr_comm_here(comm);

	if (status < 0)
		return status;
	want_abort(comm, reason);
	if (rr_drives_here(comm))
		return RR_OK; /* a signal's handler, or a transport's callback: the call around it looks next */
	status = rr_comm_begin_lost(comm);
	if (status < 0)
		return status;
	rr_watch_look(comm);
	rr_drive_leave(comm);
	return RR_OK;
}

/* ---- the end ---- */

static void close_links(struct rr_comm *comm, struct rr_link **links)
{
	for (int32_t r = 0; links && r < comm->world; r++)
		if (links[r])
			links[r]->ops->close(links[r]);
	free(links);
}

void rr_comm_give_back(struct rr_comm *comm)
{
	rr_engine_free(&comm->engine);
	close_links(comm, comm->message_out);
	close_links(comm, comm->message_in);
	rr_message_free(comm);
	rr_far_close(comm->far);
	rr_trace_free(comm->trace);
	rr_shm_close(&comm->shm);
	if (comm->transport_library)
		dlclose(comm->transport_library);
	if (comm->scratch)
		rr_memory_free(comm->scratch);
	free(comm->kept);
	if (comm->device_scratch)
		comm->device->ops->free(comm->device, comm->device_scratch);
	if (comm->device)
		rr_device_put(comm->device);
}

/* Those that wait for the driver, or hold it otherwise, see that it ends. */
static void wait_for_others(struct rr_comm *comm)
{
	while (atomic_load_explicit(&comm->callers, memory_order_seq_cst) || atomic_load_explicit(&comm->holders, memory_order_seq_cst))
		nap();
}

void rr_comm_end(struct rr_comm *comm)
{
	rr_watch_look(comm); /* ends what is in flight */
	rr_judge_end(comm);  /* before anything of it goes: a driver of another communicator may look at it */
	rr_drive_forget(comm);
	wait_for_others(comm);
	if (!comm->failed) {
		rr_publish32(&comm->shm.page->state, RR_PAGE_CLOSED);
		rr_comm_wake_all(comm);
		if (comm->far)
			rr_far_tell_end(comm->far);
	}
	comm->strangers = comm->far ? rr_far_strangers(comm->far, comm->stranger, sizeof(comm->stranger)) : 0;
	rr_comm_give_back(comm);
	rr_drive_shut(comm);
	rr_comm_release(comm); /* its maker's */
}

rr_status rr_comm_close(rr_comm *comm)
{
	uint32_t open = RR_OPEN;

	if (!atomic_compare_exchange_strong_explicit(&comm->ending, &open, RR_ENDS, memory_order_seq_cst, memory_order_seq_cst))
		return rr_comm_closed(comm);
	if (rr_comm_here(comm) < 0) /* its parent's, of which a thread may have been inside at the fork: what it left is no whole */
		return RR_OK;
	if (rr_drives_here(comm)) {
		rr_note32(&comm->ending, RR_ENDS_HERE); /* a transport's callback: the call around it ends, and is the last */
		return RR_OK;
	}
	rr_drive_take_last(comm);
	rr_comm_end(comm);
	return RR_OK;
}
