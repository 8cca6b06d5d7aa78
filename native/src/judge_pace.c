/*
 * judge_pace.c - how busy the edges of this rank are, and whether it had the processor it wanted.
 *
 * Sampled whenever a waiting rank looks around, every few milliseconds, so that no slice pays for it. An edge is under way
 * while its bytes are not acknowledged, or its sender waits for credit. In a ring that one slow edge holds up, that edge is
 * so nearly always and the others hardly ever: they wait, too, but for what has not come.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include "clock.h"
#include "comm.h"
#include "order.h"

#define SPAN_MAX_NS (4 * RR_NS_PER_S) /* then all counts half */
#define SAMPLE_MAX_NS (50 * RR_NS_PER_MS) /* one look speaks for no more: between two the rank was at work, or in user code */
#define SCHEDULED_EVERY_NS (500 * RR_NS_PER_MS)
#define WHOLE 1000u

struct rr_pacing {
	uint64_t at_ns, span_ns, moved_ns;
	uint64_t progress; /* differs when bytes have moved */
	/* of the thread that drives */
	pid_t thread;
	uint64_t scheduled_at_ns, delay_ns; /* when that was read; waited for a processor since it began */
	uint32_t starved;
	uint64_t busy_ns[]; /* [world] */
};

void rr_judge_pace_end(struct rr_comm *comm)
{
	free(comm->pacing);
	comm->pacing = NULL;
}

/* What the scheduler says: ran, waited for a processor, turns. */
static bool read_delay(uint64_t *delay_ns)
{
	unsigned long long ran, waited;
	FILE *file = fopen("/proc/thread-self/schedstat", "r");

	if (!file)
		return false;
	int got = fscanf(file, "%llu %llu", &ran, &waited);
	fclose(file);
	*delay_ns = waited;
	return got == 2;
}

static void look_at_processor(struct rr_pacing *pacing, uint64_t now_ns)
{
	uint64_t delay_ns = 0, share;
	pid_t thread = (pid_t)syscall(SYS_gettid); /* gettid() came with glibc 2.30 */

	if (thread == pacing->thread && now_ns - pacing->scheduled_at_ns < SCHEDULED_EVERY_NS)
		return;
	if (!read_delay(&delay_ns)) {
		pacing->starved = RR_PACE_NOT_KNOWN;
		pacing->thread = thread;
		pacing->scheduled_at_ns = now_ns;
		return;
	}
	if (thread == pacing->thread) {
		share = (delay_ns - pacing->delay_ns) * WHOLE / (now_ns - pacing->scheduled_at_ns);
		share = share < WHOLE ? share : WHOLE;
		pacing->starved = pacing->starved == RR_PACE_NOT_KNOWN ? (uint32_t)share : (pacing->starved + (uint32_t)share) / 2;
	}
	pacing->thread = thread;
	pacing->scheduled_at_ns = now_ns;
	pacing->delay_ns = delay_ns;
}

/* Bytes under way to `peer`; *progress: what changes with every byte. */
static bool is_under_way(const struct rr_comm *comm, int32_t peer, const uint64_t waits[2], uint64_t *progress)
{
	rr_link_stats moved = rr_comm_moved(comm, peer);
	uint64_t outstanding = 0;

	for (uint32_t channel = 0; channel < comm->edge_channels[peer]; channel++) {
		struct rr_link *out = comm->engine.out[(size_t)channel * (size_t)comm->world + (size_t)peer];
		if (out->ops->outstanding && moved.sent_bytes)
			outstanding += out->ops->outstanding(out);
	}
	*progress = *progress * 31 + moved.sent_bytes + moved.received_bytes - outstanding;
	return outstanding || (waits[1] >> 56 == RR_WAIT_CREDIT && (int32_t)(uint32_t)waits[1] == peer);
}

static void decay(struct rr_pacing *pacing, int32_t world)
{
	pacing->span_ns /= 2;
	for (int32_t r = 0; r < world; r++)
		pacing->busy_ns[r] /= 2;
}

static void tell(struct rr_comm *comm, const struct rr_pacing *pacing)
{
	struct rr_pace *told = &comm->shm.page->pace;
	int32_t busiest = comm->rank == 0 ? comm->world - 1 : 0;

	for (int32_t r = 0; r < comm->world; r++)
		if (r != comm->rank && pacing->busy_ns[r] > pacing->busy_ns[busiest])
			busiest = r;
	uint64_t busy = pacing->span_ns ? pacing->busy_ns[busiest] * WHOLE / pacing->span_ns : 0;
	uint64_t far = !rr_shm_has(&comm->shm, busiest);
	rr_note64(&told->word, far << 63 | (uint64_t)(uint32_t)busiest << 32 | (busy < WHOLE ? busy : WHOLE) << 16 | pacing->starved);
	rr_note64(&told->span_ns, pacing->span_ns);
	rr_note64(&told->moved_ns, pacing->moved_ns);
	rr_publish64(&told->seen_ns, pacing->at_ns);
}

void rr_judge_pace(struct rr_comm *comm, const uint64_t waits[2], uint64_t now_ns)
{
	struct rr_pacing *pacing = comm->pacing;
	uint64_t progress = 0, since_ns, sample_ns;

	if (comm->world < 2)
		return;
	if (!pacing) {
		pacing = calloc(1, sizeof(*pacing) + (size_t)comm->world * sizeof(uint64_t));
		if (!pacing) /* without memory nothing is said of its pace */
			return;
		*pacing = (struct rr_pacing){.at_ns = now_ns, .moved_ns = now_ns, .starved = RR_PACE_NOT_KNOWN};
		comm->pacing = pacing;
	}
	since_ns = now_ns - pacing->at_ns;
	sample_ns = since_ns < SAMPLE_MAX_NS ? since_ns : SAMPLE_MAX_NS;
	for (int32_t r = 0; r < comm->world; r++)
		if (r != comm->rank && is_under_way(comm, r, waits, &progress))
			pacing->busy_ns[r] += sample_ns;
	if (progress != pacing->progress)
		pacing->moved_ns = now_ns;
	pacing->progress = progress;
	pacing->at_ns = now_ns;
	pacing->span_ns += since_ns;
	while (pacing->span_ns > SPAN_MAX_NS)
		decay(pacing, comm->world);
	look_at_processor(pacing, now_ns);
	tell(comm, pacing);
}
