/*
 * test_thread_end.c - the ends of communicators beside all else, meant for ThreadSanitizer: two ranks as threads, and
 * others that close, abort, free plans and works, and ask for facts while these call. Drawn by seed: argument 1.
 */
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "comm.h"
#include "test_pair.h"

enum { COUNT = 20000, ROUNDS = 12, READERS = 2, TEXTS = 3 };

static rr_comm *shared[WORLD];
static rr_plan *plans[WORLD];
static _Atomic int running;
static const char *const REASONS[TEXTS] = {"the first of several reasons, and a long one, so that two of them would mix", "B", "another"};

static unsigned draw(unsigned *seed, unsigned below)
{
	*seed = *seed * 1664525u + 1013904223u;
	return (*seed >> 8) % below;
}

static rr_plan *make_plan(rr_comm *comm, int rank)
{
	static const uint64_t offsets[2] = {0, COUNT};
	rr_schedule *schedule = pair_schedule(rank);
	rr_plan *plan = NULL;
	rr_plan_spec spec = {.collective = RR_ALL_REDUCE, .dtype = RR_FLOAT32, .redop = RR_SUM, .root = -1, .count = COUNT,
			     .scale = 1.0, .schedule = schedule, .chunk_offsets = offsets, .slice_bytes = 8192, .algorithm = "pair"};

	if (rr_plan_create(comm, &spec, &plan) < 0)
		plan = NULL;
	rr_schedule_free(schedule);
	return plan;
}

/* Makes both ranks' communicators, each with one more reference, and a plan each. */
static void *make(void *argument)
{
	int rank = *(int *)argument;
	rr_options options = {.timeout_ns = 60000000000ull};

	round_of[rank] = 0;
	expect(rr_comm_create(rank, WORLD, exchange, argument, &options, &shared[rank]) == RR_OK, "create");
	rr_comm_retain(shared[rank]);
	plans[rank] = make_plan(shared[rank], rank);
	expect(plans[rank] != NULL, "plan");
	return NULL;
}

static void make_both(void)
{
	static int ranks[WORLD] = {0, 1};
	pthread_t threads[WORLD];

	for (int r = 0; r < WORLD; r++)
		pthread_create(&threads[r], NULL, make, &ranks[r]);
	for (int r = 0; r < WORLD; r++)
		pthread_join(threads[r], NULL);
}

static int is_end(rr_status status)
{
	return status == RR_ERR_ABORTED || status == RR_ERR_CLOSED || status == RR_ERR_PEER_CLOSED;
}

/* Blocking and asynchronous calls, until one of them is ended. */
static void *call(void *argument)
{
	int rank = *(int *)argument;
	float *in = calloc(COUNT, sizeof(float)), *out = calloc(COUNT, sizeof(float));
	rr_status status = RR_OK;

	for (int i = 0; status == RR_OK; i++) {
		if (i % 2) {
			rr_extent input = {in, COUNT * sizeof(float)}, output = {out, COUNT * sizeof(float)};
			rr_work *work = NULL;
			status = rr_plan_start(plans[rank], &input, 1, &output, 1, 0, &work);
			if (status == RR_OK) {
				status = finish(work);
				expect(rr_work_free(work) == RR_OK, "the work is done");
			}
			continue;
		}
		status = rr_plan_run(plans[rank], in, out, 0);
		while (status == RR_AGAIN)
			status = rr_comm_resume(shared[rank]);
	}
	expect(is_end(status), "a call is ended by the end");
	rr_error error;
	rr_last_error(&error);
	if (status == RR_ERR_ABORTED) {
		int known = strstr(error.message, "closed with work in flight") != NULL;
		for (int t = 0; t < TEXTS; t++) {
			const char *colon = strchr(error.message, ':');
			known = known || (colon && strcmp(colon + 2, REASONS[t]) == 0);
		}
		expect(known, "one reason, whole");
	}
	free(in);
	free(out);
	return NULL;
}

static void *ask(void *argument)
{
	int rank = *(int *)argument;
	rr_status status = RR_OK;

	while (atomic_load(&running)) {
		rr_link_facts facts;
		rr_run_stats stats;
		rr_link_stats moved;
		char text[400];

		status = rr_comm_link_facts(shared[rank], 1 - rank, &facts);
		expect(status == RR_OK || status == RR_ERR_CLOSED, "facts");
		expect(status != RR_OK || strcmp(facts.transport, "shm") == 0, "whole facts");
		status = rr_comm_last_stats(shared[rank], &stats);
		expect(status == RR_OK || status == RR_ERR_CLOSED, "stats");
		status = rr_comm_last_link_stats(shared[rank], 1 - rank, &moved);
		expect(status == RR_OK || status == RR_ERR_CLOSED, "link stats");
		rr_comm_strangers(shared[rank], text, sizeof(text));
		rr_comm_note(shared[rank], text, sizeof(text));
		expect(rr_comm_node(shared[rank], 0) == 0, "node");
		usleep(200);
	}
	return NULL;
}

/* As a garbage collector's thread does, while others close. */
static void *plan_and_free(void *argument)
{
	int rank = *(int *)argument;

	while (atomic_load(&running)) {
		rr_plan *plan = make_plan(shared[rank], rank);
		usleep(100);
		rr_plan_free(plan);
	}
	return NULL;
}

struct end {
	int rank;
	int text; /* of REASONS; -1: close */
	unsigned after_us;
};

static void *end(void *argument)
{
	const struct end *how = argument;
	rr_status status;

	usleep(how->after_us);
	status = how->text < 0 ? rr_comm_close(shared[how->rank]) : rr_comm_abort(shared[how->rank], REASONS[how->text]);
	expect(status == RR_OK || status == RR_ERR_CLOSED, "the end");
	return NULL;
}

static void one_round(unsigned *seed)
{
	static int ranks[WORLD] = {0, 1};
	pthread_t callers[WORLD], askers[READERS], planner, enders[4];
	struct end ends[4] = {{0, 0, 0}, {0, 1, 0}, {(int)draw(seed, WORLD), 2, 0}, {(int)draw(seed, WORLD), -1, 0}};
	unsigned near_us = draw(seed, 8000);

	make_both();
	atomic_store(&running, 1);
	for (int r = 0; r < WORLD; r++)
		pthread_create(&callers[r], NULL, call, &ranks[r]);
	for (int i = 0; i < READERS; i++)
		pthread_create(&askers[i], NULL, ask, &ranks[i % WORLD]);
	pthread_create(&planner, NULL, plan_and_free, &ranks[ends[3].rank]);
	for (int i = 0; i < 4; i++) { /* in half of the rounds only a close: nobody aborts before it */
		ends[i].text = near_us % 2 ? -1 : ends[i].text;
		ends[i].after_us = near_us + draw(seed, 200);
		pthread_create(&enders[i], NULL, end, &ends[i]);
	}
	for (int i = 0; i < 4; i++)
		pthread_join(enders[i], NULL);
	for (int r = 0; r < WORLD; r++)
		pthread_join(callers[r], NULL);
	atomic_store(&running, 0);
	for (int i = 0; i < READERS; i++)
		pthread_join(askers[i], NULL);
	pthread_join(planner, NULL);
	for (int r = 0; r < WORLD; r++) {
		rr_status status = rr_comm_close(shared[r]);
		expect(status == RR_OK || status == RR_ERR_CLOSED, "close");
		expect(rr_comm_close(shared[r]) == RR_ERR_CLOSED, "close again");
		expect(rr_comm_abort(shared[r], "late") == RR_ERR_CLOSED, "abort of a closed one");
		expect(rr_plan_run_here(plans[r], NULL) < 0, "a plan of a closed one");
		if (r % 2)
			rr_plan_free(plans[r]); /* before and after the last reference of the caller's */
		rr_comm_release(shared[r]);
		if (!(r % 2))
			rr_plan_free(plans[r]);
	}
}

static void on_signal(int number)
{
	(void)number;
	expect(rr_comm_abort(shared[0], REASONS[1]) == RR_OK, "abort in a handler");
}

/* A signal's handler interrupts a call of its own thread: abort() leaves word, and the call ends so. */
static void abort_in_a_handler(void)
{
	static int rank = 0;
	struct sigaction action = {.sa_handler = on_signal};
	pthread_t caller;

	sigaction(SIGUSR1, &action, NULL);
	make_both();
	pthread_create(&caller, NULL, call, &rank); /* rank 1 never comes */
	usleep(100000);
	pthread_kill(caller, SIGUSR1);
	pthread_join(caller, NULL);
	for (int r = 0; r < WORLD; r++) {
		rr_plan_free(plans[r]);
		expect(rr_comm_close(shared[r]) == RR_OK, "close");
		rr_comm_release(shared[r]);
	}
}

/* An address is given again, a number is not. */
static void numbers_differ(void)
{
	uint64_t last = 0;

	for (int i = 0; i < 4; i++) {
		rr_comm *alone = NULL;
		expect(rr_comm_create(0, 1, NULL, NULL, NULL, &alone) == RR_OK, "a world of one");
		expect(alone->number > last, "a number never given before");
		last = alone->number;
		rr_comm_close(alone);
	}
}

int main(int argc, char **argv)
{
	unsigned seed = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 0) : 1;

	pthread_barrier_init(&meeting, NULL, WORLD);
	numbers_differ();
	abort_in_a_handler();
	for (int round = 0; round < ROUNDS; round++)
		one_round(&seed);
	printf("%s\n", failures ? "failed" : "passed");
	return failures != 0;
}
