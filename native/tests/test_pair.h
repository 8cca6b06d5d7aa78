/* test_pair.h - two ranks as threads of one process, and a schedule for two written by hand. */
#ifndef RR_TEST_PAIR_H
#define RR_TEST_PAIR_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rdmaring.h"
#include "rows.h"

enum { WORLD = 2 };

static pthread_barrier_t meeting;
static char *gathered[8];
static int round_of[WORLD]; /* 0 before a communicator is made */
static int failures;

static void expect(int condition, const char *what)
{
	if (!condition) {
		rr_error error;
		rr_last_error(&error);
		fprintf(stderr, "FAILED: %s (%s)\n", what, error.message);
		__atomic_fetch_add(&failures, 1, __ATOMIC_SEQ_CST);
	}
}

static int exchange(void *user, const void *mine, size_t bytes, void *all)
{
	int rank = *(int *)user;
	int round = round_of[rank]++;

	if (rank == 0)
		gathered[round] = calloc(WORLD, bytes);
	pthread_barrier_wait(&meeting);
	memcpy(gathered[round] + (size_t)rank * bytes, mine, bytes);
	pthread_barrier_wait(&meeting);
	memcpy(all, gathered[round], WORLD * bytes);
	pthread_barrier_wait(&meeting);
	if (rank == 0)
		free(gathered[round]);
	return 0;
}

/* Rank r's rows of a two-rank exchange, written by hand: send the input, add what comes, in rank order. */
static rr_schedule *pair_schedule(int rank)
{
	int32_t words[16 + 2 * 16 + 2 + 2] = {0};
	int32_t *row = words + 16;
	rr_schedule *schedule = NULL;

	words[0] = RR_RANK_MAGIC;
	words[1] = RR_ROWS_VERSION;
	words[2] = RR_ALL_REDUCE;
	words[3] = WORLD;
	words[4] = rank;
	words[5] = 1; /* chunk */
	words[6] = 1; /* step */
	words[7] = 2; /* rows */
	words[8] = 1; /* receive */
	words[9] = 1; /* send */
	words[12] = 77;
	words[14] = 2; /* window */
	words[15] = -1;
	row[1] = 0; /* INPUT is sent as it is */
	row[3] = 1;
	row[6] = -1;
	row[13] = 1;
	row[10] = row[11] = 0;
	row += 16;
	row[1] = 1; /* OUTPUT = INPUT + what comes; out of place, so nothing is waited for */
	row[3] = 1;
	row[5] = 2;
	row[8] = rank;
	row[9] = 1 | 2;
	row[11] = 1;
	row[12] = row[13] = 1;
	row += 16;
	row[0] = 1 - rank; /* receive: from the peer's INPUT */
	row[2] = 1 - rank; /* send: not landed */
	row[3] = -1;
	expect(rr_schedule_decode(words, sizeof(words), rank, &schedule) == RR_OK, "decode");
	return schedule;
}

static rr_status finish(rr_work *work)
{
	rr_status status;

	do
		status = rr_work_wait(work, 50000000);
	while (status == RR_AGAIN);
	return status;
}

#endif
