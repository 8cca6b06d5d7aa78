/*
 * shm_setup.c - how the ranks of a node map each other: steps 2 to 6 of hello.h; 4 and 5 are in shm_meet.c.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "clock.h"
#include "forked.h"
#include "order.h"
#include "process.h"
#include "shm.h"
#include "status.h"

#define SLOT_BYTES_MIN 4096u

enum { NOT_PROVEN = 1, TURNED_AWAY = 2 /* by a rank that failed before: its outcome holds the cause */ };

struct outcome { /* followed by world bytes: whose ordinary memory we can read */
	int32_t status;
	int32_t unproven; /* what claimed to be this node could not be reached, or was not it: NOT_PROVEN, TURNED_AWAY */
	char message[248];
};

static uint64_t budget_left(const rr_options *options)
{
	uint64_t used = rr_shm_bytes_used();

	return options->memory_budget_bytes > used ? options->memory_budget_bytes - used : 0;
}

/*
 * A process with more communicators has less left of its budget: all ranks of a node take what the poorest
 * can, and slots shrink until all links fit.
 */
static rr_status choose_slots(struct rr_shm *shm, const struct rr_hello *hellos)
{
	uint64_t slot_bytes = UINT64_MAX, left = UINT64_MAX;
	int32_t poorest = shm->rank;

	for (int32_t r = 0; r < shm->world; r++) {
		if (!rr_shm_has(shm, r))
			continue;
		slot_bytes = hellos[r].slot_bytes < slot_bytes ? hellos[r].slot_bytes : slot_bytes;
		poorest = hellos[r].left_bytes < left ? r : poorest;
		left = hellos[poorest].left_bytes;
	}
	for (;;) {
		rr_layout_set(&shm->layout, (uint32_t)shm->count, slot_bytes, hellos[shm->rank].slot_count);
		if (shm->layout.bytes <= left)
			return RR_OK;
		if (slot_bytes / 2 < SLOT_BYTES_MIN)
			return rr_fail(RR_ERR_NO_MEMORY,
				       "links to %d ranks need at least %llu bytes; of the budget of %llu (RDMARING_MEMORY_BUDGET) rank %d has %llu left",
				       shm->count - 1, (unsigned long long)shm->layout.bytes,
				       (unsigned long long)hellos[poorest].budget_bytes, poorest, (unsigned long long)left);
		slot_bytes /= 2;
	}
}

static rr_status make_segment(struct rr_shm *shm)
{
	rr_status status = rr_memory_available(shm->layout.bytes, "this rank's segment");
	struct rr_page *page;
	int failed;

	if (status < 0)
		return status;
	shm->memfd = RR_OWN(memfd_create("rdmaring-segment", MFD_CLOEXEC));
	if (shm->memfd < 0)
		return rr_fail(RR_ERR_SYSTEM, "memfd_create: %s", strerror(errno));
	failed = posix_fallocate(shm->memfd, 0, (off_t)shm->layout.bytes);
	if (failed)
		return rr_fail(RR_ERR_NO_MEMORY, "no room for a segment of %llu bytes: %s",
			       (unsigned long long)shm->layout.bytes, strerror(failed));
	page = rr_own_map(NULL, shm->layout.bytes, shm->memfd, RR_CHILD_EMPTY);
	if (page == MAP_FAILED)
		return rr_fail(RR_ERR_NO_MEMORY, "cannot map a segment of %llu bytes: %s",
			       (unsigned long long)shm->layout.bytes, strerror(errno));
	madvise(page, shm->layout.bytes, MADV_HUGEPAGE); /* where the kernel allows it for shared memory */
	page->magic = RR_PAGE_MAGIC;
	page->version = RR_PAGE_VERSION;
	page->world = (uint32_t)shm->world;
	page->rank = (uint32_t)shm->rank;
	page->pid = getpid();
	page->start_time = rr_process_start_time();
	page->pid_namespace = rr_process_pid_namespace();
	page->created_ns = rr_now_ns();
	memcpy(page->token, shm->token, sizeof(page->token));
	for (uint32_t i = 0; i < 2 * shm->layout.count; i++) /* before any peer maps it: nothing was released yet */
		rr_note64(&rr_page_consumed(page, &shm->layout, i)->value, shm->serial_start);
	shm->page = page;
	shm->peers[shm->rank].page = page;
	rr_shm_own_slots(shm, shm->rank);
	rr_shm_bytes_add((int64_t)shm->layout.bytes);
	return RR_OK;
}

/* Try what the link would do: read the peer's token out of its memory. */
static void probe_cma(struct rr_shm *shm, const struct rr_hello *hellos, int32_t r)
{
	struct rr_shm_peer *peer = &shm->peers[r];
	uint8_t token[RR_TOKEN_BYTES] = {0};
	struct iovec local = {.iov_base = token, .iov_len = sizeof(token)};
	struct iovec remote = {.iov_base = (void *)(uintptr_t)hellos[r].token_address, .iov_len = sizeof(token)};

	if (!shm->cma_wanted || !hellos[r].cma_wanted) {
		peer->cma_errno = ECANCELED;
		return;
	}
	if (process_vm_readv(peer->pid, &local, 1, &remote, 1, 0) == (ssize_t)sizeof(token) &&
	    memcmp(token, hellos[r].token, sizeof(token)) == 0)
		peer->cma = true;
	else
		peer->cma_errno = errno ? errno : EFAULT;
}

/* Of rank r; a world's bytes follow each, so they lie at any address. */
static struct outcome outcome_of(const char *all, size_t bytes, int32_t r)
{
	struct outcome outcome;

	memcpy(&outcome, all + (size_t)r * bytes, sizeof(outcome));
	return outcome;
}

/* Nodes that could not prove themselves come apart, on all ranks alike. */
static void take_apart(struct rr_shm *shm, const char *all, size_t bytes, int32_t *node, char *reason, size_t size)
{
	struct outcome other;
	int32_t next = shm->world; /* numbers that no node has */
	int32_t own = node[shm->rank];

	for (int32_t n = 0; n < shm->world; n++) {
		int32_t failed = 0; /* the first cause goes before what followed from it */
		for (int32_t r = 0; r < shm->world && failed != NOT_PROVEN; r++) {
			other = outcome_of(all, bytes, r);
			if (node[r] != n || !other.unproven)
				continue;
			failed = other.unproven;
			if (n == own)
				snprintf(reason, size, "rank %d: %.247s", r, other.message);
		}
		if (!failed)
			continue;
		for (int32_t r = 0; r < shm->world; r++) {
			if (node[r] != n)
				continue;
			node[r] = next++;
			if (n != own || r == shm->rank)
				continue;
			rr_shm_part(shm, r);
			shm->index[r] = RR_SHM_PARTED;
		}
	}
	if (reason[0])
		shm->count = 1; /* the segment keeps its layout: we have an index in it */
}

/* `bytes` of an outcome from every rank, or NULL. The caller frees it. */
static char *exchange_outcomes(struct rr_shm *shm, rr_exchange_fn exchange, void *user, rr_status *status, int32_t unproven)
{
	size_t bytes = sizeof(struct outcome) + (size_t)shm->world;
	char *mine = calloc(1, bytes);
	char *all = calloc((size_t)shm->world, bytes);
	struct outcome *own = (struct outcome *)(void *)mine;

	if (!mine || !all) {
		*status = rr_fail(RR_ERR_NO_MEMORY, "no memory for %d outcomes", shm->world);
		goto free_both;
	}
	own->status = unproven ? RR_OK : *status;
	own->unproven = unproven;
	if (*status < 0)
		snprintf(own->message, sizeof(own->message), "%.247s", rr_error_here()->message);
	for (int32_t r = 0; r < shm->world; r++)
		mine[sizeof(struct outcome) + (size_t)r] = shm->peers[r].cma;
	if (exchange(user, mine, bytes, all) != 0) {
		*status = rr_fail(RR_ERR_SETUP, "the exchange among the ranks failed");
		goto free_both;
	}
	if (unproven)
		*status = RR_OK;
	for (int32_t r = 0; r < shm->world; r++) {
		struct outcome other = outcome_of(all, bytes, r);
		if (other.status < 0 && *status >= 0)
			*status = rr_fail(RR_ERR_SETUP, "rank %d could not set up: %.247s", r, other.message);
		shm->peers[r].cma_of_us = all[(size_t)r * bytes + sizeof(struct outcome) + (size_t)shm->rank] != 0;
	}
	free(mine);
	return all;

free_both:
	free(mine);
	free(all);
	return NULL;
}

rr_status rr_shm_prepare(int32_t rank, int32_t world, const rr_options *options, struct rr_shm *shm,
			 struct rr_hello *hello, int *listener)
{
	memset(shm, 0, sizeof(*shm));
	shm->rank = rank;
	shm->world = world;
	shm->memfd = -1;
	shm->bell = -1;
	shm->cma_wanted = options->cma == 0;
	shm->serial_start = options->serial_start;
	shm->peers = calloc((size_t)world, sizeof(*shm->peers));
	shm->index = calloc((size_t)world, sizeof(*shm->index));
	if (!shm->peers || !shm->index)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for %d peers", world);
	for (int32_t r = 0; r < world; r++) {
		shm->index[r] = -1;
		shm->peers[r].socket = shm->peers[r].pidfd = shm->peers[r].bell = -1;
	}
	hello->cma_wanted = shm->cma_wanted;
	if (getrandom(shm->token, sizeof(shm->token), 0) != sizeof(shm->token))
		return rr_fail(RR_ERR_SYSTEM, "getrandom: %s", strerror(errno));
	memcpy(hello->token, shm->token, sizeof(hello->token));
	hello->token_address = (uint64_t)(uintptr_t)shm->token;
	for (size_t i = 0; i < RR_TOKEN_BYTES; i++)
		snprintf(hello->socket_name + 2 * i, 3, "%02x", hello->token[i] ^ 0x5a);
	hello->slot_bytes = options->slot_bytes;
	hello->slot_count = options->slot_count;
	hello->budget_bytes = options->memory_budget_bytes;
	hello->left_bytes = budget_left(options);
	if (world == 1)
		return RR_OK;
	*listener = rr_shm_listen(hello->socket_name, world);
	if (*listener < 0)
		return rr_fail(RR_ERR_SYSTEM, "cannot listen on a unix socket: %s", strerror(-*listener));
	return RR_OK;
}

rr_status rr_shm_alone(struct rr_shm *shm, const struct rr_hello *hello)
{
	shm->count = 1;
	shm->index[shm->rank] = 0;
	rr_status status = choose_slots(shm, hello);
	return status < 0 ? status : make_segment(shm);
}

static rr_status find_members(struct rr_shm *shm, const struct rr_hello *hellos, const int32_t *node)
{
	for (int32_t r = 0; r < shm->world; r++)
		if (node[r] == node[shm->rank])
			shm->index[r] = shm->count++;
	for (int32_t r = shm->rank + 1; r < shm->world; r++) /* they will connect to us, unless they end before */
		if (rr_shm_has(shm, r) && rr_process_life(hellos[r].pid, 0) != RR_LIFE_ENDED) /* else the number is another pid namespace's */
			rr_shm_watch_process(&shm->peers[r], hellos[r].pid);
	if (shm->count > RR_NODE_COUNT_MAX)
		return rr_fail(RR_ERR_UNSUPPORTED, "%d ranks on one node: at most %d are served", shm->count, RR_NODE_COUNT_MAX);
	rr_status status = choose_slots(shm, hellos);
	return status < 0 ? status : make_segment(shm);
}

/* Three quarters of what is left: in the last one all learn how it went. */
static uint64_t sockets_until_ns(uint64_t deadline_ns)
{
	uint64_t now = rr_now_ns();

	return now + (deadline_ns > now ? (deadline_ns - now) / 4 * 3 : 0);
}

rr_status rr_shm_join(struct rr_shm *shm, const struct rr_hello *hellos, int32_t *node, int listener, uint64_t deadline_ns,
		      rr_exchange_fn exchange, void *user, char *reason, size_t size)
{
	rr_status status = find_members(shm, hellos, node);
	rr_error own = *rr_error_here(); /* the cause, where it is ours */
	bool ours = status < 0;
	char *all = exchange_outcomes(shm, exchange, user, &status, 0);

	reason[0] = 0;
	free(all);
	if (status < 0)
		return ours ? rr_error_set(&own) : status;
	status = rr_shm_meet(shm, listener, hellos, sockets_until_ns(deadline_ns));
	int32_t unproven = status == RR_ERR_SETUP ? NOT_PROVEN : status == RR_ERR_LINK ? TURNED_AWAY : 0;
	for (int32_t r = 0; r < shm->world && status >= 0; r++)
		if (r != shm->rank && rr_shm_has(shm, r))
			probe_cma(shm, hellos, r);
	all = exchange_outcomes(shm, exchange, user, &status, unproven);
	if (status >= 0)
		take_apart(shm, all, sizeof(struct outcome) + (size_t)shm->world, node, reason, size);
	free(all);
	return status;
}
