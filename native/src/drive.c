/*
 * drive.c - who makes progress.
 *
 * A communicator has one driver at a time: whoever has set its `driver`. A blocking call or a wait
 * drives its own; the process's one progress thread drives the others, and lives only while
 * asynchronous work is outstanding (and sleeps for a moment after the last). `callers` counts who waits to drive: the thread stands back for
 * them, and a driver that leaves wakes it if work is left.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#include "clock.h"
#include "comm.h"
#include "order.h"
#include "status.h"

#define NAP_NS 50000u                     /* with several idle communicators: none has the only bell */
#define STAND_BACK_NS (20 * RR_NS_PER_MS) /* a leaving caller signals; this only bounds a surprise */
#define LINGER_NS (100 * RR_NS_PER_MS)    /* asleep, with nothing to do: a new thread costs more than a wake-up */

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t list_news = PTHREAD_COND_INITIALIZER;
static struct rr_comm *list; /* communicators with outstanding asynchronous work */
static struct rr_comm *thread_inside; /* the one the thread is working on */
static uint64_t thread_number;        /* rr_drive_thread() of it */
static bool thread_runs;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

/* In a child nothing of this is usable: the progress thread is gone, the pages are the parent's. */
static void after_fork_in_child(void)
{
	pthread_mutex_init(&list_lock, NULL);
	pthread_cond_init(&list_news, NULL);
	list = NULL;
	thread_inside = NULL;
	thread_runs = false;
}

static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, after_fork_in_child);
}

void rr_drive_watch_forks(void)
{
	pthread_once(&fork_once, watch_forks);
}

uint64_t rr_drive_thread(void)
{
	return (uint64_t)(uintptr_t)pthread_self();
}

bool rr_drives_here(const struct rr_comm *comm)
{
	return rr_own64(&comm->driver) == rr_drive_thread();
}

bool rr_drive_try(struct rr_comm *comm)
{
	uint64_t free = 0;

	return atomic_compare_exchange_strong_explicit(&comm->driver, &free, rr_drive_thread(), memory_order_acquire,
						       memory_order_relaxed);
}

/* The driver may sleep on our bell. Until `callers` is counted down, or by who closes it, nothing is given back. */
static void wake_driver(struct rr_comm *comm)
{
	struct timespec nap = {.tv_nsec = NAP_NS};

	rr_shm_wake(&comm->shm, comm->rank);
	nanosleep(&nap, NULL);
}

static rr_status wait_for_driver(struct rr_comm *comm)
{
	bool taken = false;

	if (rr_drives_here(comm))
		return rr_fail(RR_ERR_ARGUMENT, "a call is in flight on this communicator, and this one comes from inside it (a transport's callback, or a signal's handler): only close and abort may");
	atomic_fetch_add_explicit(&comm->callers, 1, memory_order_seq_cst);
	/* pairs with rr_comm_end(): it sees us, or we see it */
	while (!atomic_load_explicit(&comm->ending, memory_order_seq_cst) && !(taken = rr_drive_try(comm)))
		wake_driver(comm);
	atomic_fetch_sub_explicit(&comm->callers, 1, memory_order_seq_cst);
	return taken ? RR_OK : rr_comm_closed(comm);
}

/* Uncontended, as a blocking call without asynchronous work is: one locked operation. */
rr_status rr_drive_take(struct rr_comm *comm)
{
	return rr_drive_try(comm) ? RR_OK : wait_for_driver(comm);
}

void rr_drive_take_last(struct rr_comm *comm)
{
	while (!rr_drive_try(comm))
		wake_driver(comm);
}

static void leave(struct rr_comm *comm)
{
	if (rr_own32(&comm->ending) == RR_ENDS_HERE) /* written by this thread */
		rr_comm_end(comm);
	else
		rr_publish64(&comm->driver, 0); /* pairs with rr_drive_try() */
}

void rr_drive_leave(struct rr_comm *comm)
{
	bool left = rr_own32(&comm->unfinished) != 0;

	leave(comm);
	if (left) {
		pthread_mutex_lock(&list_lock);
		pthread_cond_signal(&list_news);
		pthread_mutex_unlock(&list_lock);
	}
}

void rr_drive_shut(struct rr_comm *comm)
{
	rr_publish64(&comm->driver, RR_DRIVER_LAST);
}

bool rr_drive_is_shut(const struct rr_comm *comm)
{
	return rr_observe64(&comm->driver) == RR_DRIVER_LAST; /* pairs with rr_drive_shut() */
}

static bool work_done(struct rr_work *work)
{
	return rr_observe32(&work->state) == RR_WORK_DONE;
}

static rr_status ended(const struct rr_work *work)
{
	return work->status < 0 ? rr_error_set(&work->error) : RR_OK;
}

rr_status rr_drive_held(struct rr_comm *comm, struct rr_work *work, uint64_t until_ns)
{
	struct rr_page *page = comm->shm.page;
	struct rr_wait wait;

	rr_wait_start(&wait, &comm->spin, rr_comm_yields(comm), rr_comm_sleeper(comm));
	while (!work_done(work)) {
		bool moved = false;
		rr_operation_progress(comm, &moved);
		if (work_done(work))
			break;
		if (moved && !rr_comm_doomed(comm)) {
			rr_wait_moved(&wait, page);
			if (comm->shm.crowded && !comm->far) /* what is to come next depends on ranks that wait for this processor */
				sched_yield();
			continue;
		}
		if (!moved) {
			wait.awake = comm->engine.passes_under_way > 0;
			if (!rr_wait_step(&wait, page))
				continue;
			if (comm->far)
				rr_far_crowded(comm->far, wait.crowded);
		}
		rr_watch_look(comm);
		if (rr_now_ns() >= until_ns)
			break;
	}
	rr_wait_stop(&wait, page);
	return work_done(work) ? ended(work) : RR_AGAIN;
}

rr_status rr_drive(struct rr_comm *comm, struct rr_work *work, uint64_t until_ns)
{
	const struct timespec nap = {.tv_nsec = NAP_NS};
	rr_status status;

	if (rr_own32(&comm->callers)) /* who has just driven lets those pass that wait */
		nanosleep(&nap, NULL);
	status = rr_drive_take(comm);
	if (status == RR_ERR_CLOSED) { /* who closes it ends the work, whose buffers are in use until then */
		while (!work_done(work))
			nanosleep(&nap, NULL);
		return ended(work);
	}
	if (status < 0)
		return status;
	status = rr_drive_held(comm, work, until_ns);
	rr_drive_leave(comm);
	return status;
}

/* ---- the progress thread ---- */

static void list_append(struct rr_comm *comm)
{
	struct rr_comm **link = &list;

	while (*link)
		link = &(*link)->thread_next;
	comm->thread_next = NULL;
	*link = comm;
}

static bool list_remove(struct rr_comm *comm)
{
	struct rr_comm **link = &list;

	while (*link && *link != comm)
		link = &(*link)->thread_next;
	if (!*link)
		return false;
	*link = comm->thread_next;
	return true;
}

/* One pass over one communicator; `alone`: its bell may be slept on. *last: the number of the one that `wait` was begun for. */
static bool pass(struct rr_comm *comm, struct rr_wait *wait, uint64_t *last, bool alone)
{
	bool moved = false;

	if (rr_own32(&comm->callers) || !rr_drive_try(comm))
		return false;
	if (comm->number != *last)
		rr_wait_start(wait, &comm->spin, rr_comm_yields(comm), rr_comm_sleeper(comm));
	*last = comm->number;
	rr_operation_progress(comm, &moved);
	bool left = rr_own32(&comm->unfinished) != 0;
	if (moved)
		rr_wait_moved(wait, comm->shm.page);
	else if (left && alone) {
		wait->awake = comm->engine.passes_under_way > 0;
		if (rr_wait_step(wait, comm->shm.page))
			rr_watch_look(comm);
	} else if (left) {
		rr_watch_look(comm);
	}
	if (!alone || !rr_own32(&comm->unfinished) || rr_own32(&comm->callers))
		rr_wait_stop(wait, comm->shm.page);
	leave(comm);
	return moved;
}

/* Off the list if nothing is left to do. Under the list's lock. */
static void retire(struct rr_comm *comm)
{
	atomic_store_explicit(&comm->listed, 0, memory_order_seq_cst);
	/* pairs with rr_drive_hand_over(): one of us sees the other's store */
	if (atomic_load_explicit(&comm->unfinished, memory_order_seq_cst))
		atomic_store_explicit(&comm->listed, 1, memory_order_seq_cst);
	else if (list_remove(comm))
		rr_comm_release(comm);
}

static void wait_for_news(uint64_t ns)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += (long)ns;
	until.tv_sec += until.tv_nsec / (long)RR_NS_PER_S;
	until.tv_nsec %= (long)RR_NS_PER_S;
	pthread_cond_timedwait(&list_news, &list_lock, &until);
}

static void stand_back(bool callers)
{
	struct timespec nap = {.tv_nsec = NAP_NS};

	if (callers) {
		wait_for_news(STAND_BACK_NS);
		return;
	}
	pthread_mutex_unlock(&list_lock);
	nanosleep(&nap, NULL);
	pthread_mutex_lock(&list_lock);
}

static void *progress_thread(void *unused)
{
	struct rr_wait wait;
	uint64_t last = 0;

	(void)unused;
	pthread_mutex_lock(&list_lock);
	thread_number = rr_drive_thread();
	while (list) {
		struct rr_comm *comm = list;
		bool alone = !comm->thread_next, moved, callers;

		list_remove(comm); /* each in turn; it keeps its reference */
		list_append(comm);
		thread_inside = comm;
		rr_comm_retain(comm);
		pthread_mutex_unlock(&list_lock);
		moved = pass(comm, &wait, &last, alone);
		callers = rr_own32(&comm->callers) || rr_own64(&comm->driver);
		pthread_mutex_lock(&list_lock);
		if (rr_own32(&comm->unfinished) == 0)
			retire(comm);
		thread_inside = NULL;
		rr_comm_release(comm);
		if (!moved && list && (callers || !alone))
			stand_back(callers && alone);
		if (!list)
			wait_for_news(LINGER_NS);
	}
	thread_runs = false;
	pthread_mutex_unlock(&list_lock);
	return NULL;
}

rr_status rr_drive_hand_over(struct rr_comm *comm)
{
	pthread_attr_t attributes;
	pthread_t thread;
	int failed = 0;

	if (atomic_load_explicit(&comm->listed, memory_order_seq_cst)) /* pairs with retire() */
		return RR_OK;
	pthread_mutex_lock(&list_lock);
	if (!rr_own32(&comm->listed)) {
		list_append(comm);
		rr_comm_retain(comm);
		atomic_store_explicit(&comm->listed, 1, memory_order_seq_cst);
		pthread_cond_signal(&list_news);
	}
	if (!thread_runs) {
		pthread_attr_init(&attributes);
		pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
		failed = pthread_create(&thread, &attributes, progress_thread, NULL);
		pthread_attr_destroy(&attributes);
		thread_runs = !failed;
	}
	pthread_mutex_unlock(&list_lock);
	if (failed)
		return rr_fail(RR_ERR_SYSTEM, "cannot start the progress thread: %s", strerror(failed));
	return RR_OK;
}

void rr_drive_forget(struct rr_comm *comm)
{
	pthread_mutex_lock(&list_lock);
	if (list_remove(comm))
		rr_comm_release(comm);
	while (thread_inside == comm && thread_number != rr_drive_thread()) {
		pthread_mutex_unlock(&list_lock);
		wake_driver(comm);
		pthread_mutex_lock(&list_lock);
	}
	pthread_mutex_unlock(&list_lock);
}
