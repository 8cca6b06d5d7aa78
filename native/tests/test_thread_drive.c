/*
 * test_thread_drive.c - one process, two ranks as threads: the progress thread, waits, blocking calls
 * and abort() from a third thread, meant for ThreadSanitizer.
 */
#include <unistd.h>

#include "test_pair.h"

enum { COUNT = 40000, ROUNDS = 30, WORKS = 4 };

static rr_comm *doomed[WORLD];
static int abort_returned; /* close() gives back the only reference */

static void many_works(rr_plan *plan, int rank, float *in, float out[WORKS][COUNT])
{
	rr_work *works[WORKS];

	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < COUNT; i++)
			in[i] = (float)(i + rank + round);
		for (int w = 0; w < WORKS; w++) {
			rr_extent input = {in, COUNT * sizeof(float)}, output = {out[w], COUNT * sizeof(float)};
			expect(rr_plan_start(plan, &input, 1, &output, 1, 0, &works[w]) == RR_OK, "start");
		}
		if (round % 3 == 0)
			usleep(300); /* leave it to the progress thread */
		for (int w = round % 2 ? WORKS - 1 : 0; w >= 0 && w < WORKS; w += round % 2 ? -1 : 1) {
			expect(finish(works[w]) == RR_OK, "wait");
			for (int i = 0; i < COUNT; i += 997)
				expect(out[w][i] == (float)(2 * (i + round) + 1), "sum");
			expect(rr_work_free(works[w]) == RR_OK, "free");
		}
		rr_status status = rr_plan_run(plan, in, out[0], 0);
		while (status == RR_AGAIN)
			status = rr_plan_run(plan, in, out[0], 0);
		expect(status == RR_OK, "blocking");
	}
}

static void *rank_main(void *argument)
{
	int rank = *(int *)argument;
	uint64_t offsets[2] = {0, COUNT};
	float *in = calloc(COUNT, sizeof(float));
	float(*out)[COUNT] = calloc(WORKS, sizeof(*out));
	rr_schedule *schedule = pair_schedule(rank);
	rr_options options = {.timeout_ns = 60000000000ull};
	rr_comm *comm = NULL;
	rr_plan *plan = NULL;
	rr_work *work = NULL;

	expect(rr_comm_create(rank, WORLD, exchange, argument, &options, &comm) == RR_OK, "create");
	rr_plan_spec spec = {.collective = RR_ALL_REDUCE, .dtype = RR_FLOAT32, .redop = RR_SUM, .root = -1, .count = COUNT,
			     .scale = 1.0, .schedule = schedule, .chunk_offsets = offsets, .slice_bytes = 8192,
			     .algorithm = "pair"};
	expect(rr_plan_create(comm, &spec, &plan) == RR_OK, "plan");
	many_works(plan, rank, in, out);
	pthread_barrier_wait(&meeting);
	__atomic_store_n(&doomed[rank], comm, __ATOMIC_RELEASE);
	pthread_barrier_wait(&meeting);
	if (rank == 0) { /* rank 1 never comes: the main thread aborts */
		rr_extent input = {in, COUNT * sizeof(float)}, output = {out[0], COUNT * sizeof(float)};
		expect(rr_plan_start(plan, &input, 1, &output, 1, 0, &work) == RR_OK, "start before abort");
		expect(finish(work) == RR_ERR_ABORTED, "aborted");
		rr_work_free(work);
	}
	while (!__atomic_load_n(&abort_returned, __ATOMIC_ACQUIRE))
		usleep(1000);
	rr_plan_free(plan);
	rr_schedule_free(schedule);
	rr_comm_close(comm);
	free(in);
	free(out);
	return NULL;
}

int main(void)
{
	pthread_t threads[WORLD];
	int ranks[WORLD] = {0, 1};

	pthread_barrier_init(&meeting, NULL, WORLD);
	for (int r = 0; r < WORLD; r++)
		pthread_create(&threads[r], NULL, rank_main, &ranks[r]);
	while (!__atomic_load_n(&doomed[0], __ATOMIC_ACQUIRE) || !__atomic_load_n(&doomed[1], __ATOMIC_ACQUIRE))
		usleep(1000);
	usleep(200000);
	expect(rr_comm_abort(doomed[0], "the test ends") == RR_OK, "abort");
	__atomic_store_n(&abort_returned, 1, __ATOMIC_RELEASE);
	for (int r = 0; r < WORLD; r++)
		pthread_join(threads[r], NULL);
	printf("%s\n", failures ? "failed" : "passed");
	return failures != 0;
}
