/*
 * embed.c - rdmaring in a C program: rdmaring.h and librdmaring, no Python.
 *
 *   embed SCHEDULE_FILE COUNT
 *
 * Two processes all-reduce COUNT float32 elements by the schedule that `rdmaring schedule ring -n 2
 * --save SCHEDULE_FILE` has written. The ranks find each other over a socket pair; a job of many
 * ranks would use its own launcher's means in exchange().
 */
#include <rdmaring.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORLD = 2 };

struct meeting {
	int rank;
	int socket;
};

static int move_all(int fd, char *bytes, size_t size, int sending)
{
	while (size) {
		ssize_t moved = sending ? write(fd, bytes, size) : read(fd, bytes, size);
		if (moved <= 0)
			return -1;
		bytes += moved;
		size -= (size_t)moved;
	}
	return 0;
}

/* Called by rr_comm_create(): everyone's bytes, in rank order. */
static int exchange(void *user, const void *mine, size_t bytes, void *all)
{
	const struct meeting *meeting = user;
	char *parts = all;
	char *own = parts + (size_t)meeting->rank * bytes;
	char *other = parts + (size_t)(1 - meeting->rank) * bytes;

	for (size_t i = 0; i < bytes; i++)
		own[i] = ((const char *)mine)[i];
	return move_all(meeting->socket, own, bytes, 1) || move_all(meeting->socket, other, bytes, 0);
}

static int failed(const char *what)
{
	rr_error error;

	rr_last_error(&error);
	fprintf(stderr, "%s: %s: %s\n", what, rr_status_name((rr_status)error.status), error.message);
	return 1;
}

static int run_rank(const struct meeting *meeting, const char *path, uint64_t count)
{
	rr_comm *comm = NULL;
	rr_schedule *schedule = NULL;
	rr_plan *plan = NULL;
	void *memory = NULL;
	int code = 1;

	if (rr_comm_create(meeting->rank, WORLD, exchange, (void *)meeting, NULL, &comm) != RR_OK)
		return failed("rr_comm_create");
	if (rr_schedule_load(path, meeting->rank, &schedule) != RR_OK) {
		failed("rr_schedule_load");
		goto close_comm;
	}
	uint64_t chunk_offsets[WORLD + 1] = {0, count / 2, count};
	if (rr_schedule_chunk_count(schedule) != WORLD) {
		fprintf(stderr, "%s has %u chunks, expected %d\n", path, rr_schedule_chunk_count(schedule), WORLD);
		goto free_schedule;
	}
	rr_plan_spec spec = {.collective = RR_ALL_REDUCE, .dtype = RR_FLOAT32, .redop = RR_SUM, .root = -1,
			     .count = count, .scale = 1.0, .schedule = schedule, .chunk_offsets = chunk_offsets,
			     .algorithm = "ring"};
	if (rr_plan_create(comm, &spec, &plan) != RR_OK) {
		failed("rr_plan_create");
		goto free_schedule;
	}
	if (rr_memory_alloc(count * sizeof(float), &memory) != RR_OK) {
		failed("rr_memory_alloc");
		goto free_plan;
	}
	float *vector = memory;
	for (uint64_t i = 0; i < count; i++)
		vector[i] = (float)(i % 1000) + (float)meeting->rank;
	rr_status status = rr_plan_run(plan, vector, vector, 0);
	while (status == RR_AGAIN)
		status = rr_comm_resume(comm);
	if (status != RR_OK) {
		failed("all-reduce");
		goto free_memory;
	}
	code = 0;
	for (uint64_t i = 0; i < count; i++)
		if (vector[i] != 2 * (float)(i % 1000) + 1)
			code = 1;
	rr_run_stats stats;
	rr_comm_last_stats(comm, &stats);
	printf("rank %d: %s, %llu steps, %llu bytes sent\n", meeting->rank, code ? "wrong" : "right",
	       (unsigned long long)stats.steps, (unsigned long long)stats.sent_bytes);
free_memory:
	rr_memory_free(memory);
free_plan:
	rr_plan_free(plan);
free_schedule:
	rr_schedule_free(schedule);
close_comm:
	rr_comm_close(comm);
	return code;
}

int main(int argc, char **argv)
{
	int pair[2], code, child_status = 0;
	pid_t child;

	if (argc != 3) {
		fprintf(stderr, "usage: embed SCHEDULE_FILE COUNT\n");
		return 2;
	}
	uint64_t count = strtoull(argv[2], NULL, 10);
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
		return 2;
	child = fork();
	if (child < 0)
		return 2;
	struct meeting meeting = {.rank = child == 0, .socket = pair[child == 0]};
	code = run_rank(&meeting, argv[1], count);
	fflush(stdout);
	if (child == 0)
		_exit(code);
	waitpid(child, &child_status, 0);
	return code || child_status;
}
