/*
 * shm_setup.c - how the ranks of a node find and map each other.
 *
 *   1 exchange   who am I, where do I listen, what is my token, how large may slots be  (rendezvous)
 *   2 segment    made with the smallest slots that any rank asked for
 *   3 exchange   how that went                                       (rendezvous)
 *   4 sockets    each rank connects to all lower ones; both ends send their segment's descriptor
 *   5 proof      the mapped page holds the token told in 1: the same node, whatever names say
 *   6 exchange   how it went, and whose ordinary memory can be read  (rendezvous)
 *
 * A rank that fails goes on to the next exchange, so that all fail together and name it.
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
#include "order.h"
#include "shm.h"
#include "status.h"

#define SETUP_TIMEOUT_NS (60 * RR_NS_PER_S) /* of the sockets' part: all ranks are known to be there */
#define NODE_WORLD_MAX 512                  /* ranks of one node: a socket and a segment a pair */
#define SLOT_BYTES_MIN 4096u

struct hello {
	uint32_t wire_version;
	uint32_t page_version;
	int32_t status;
	int32_t pid;
	uint64_t slot_bytes;
	uint32_t slot_count;
	uint32_t cma_wanted;
	uint64_t token_address; /* where the token lies in that process, for the probe of CMA */
	uint8_t token[16];
	char boot_id[40];
	char socket_name[40];
	char message[256];
};

struct introduction { /* the first message on a pair's socket, with the segment's descriptor */
	int32_t rank;
	uint8_t token[16];
};

struct outcome { /* followed by world bytes: whose ordinary memory we can read */
	int32_t status;
	char message[252];
};

static uint64_t process_start_time(void)
{
	char text[1024];
	uint64_t ticks = 0;
	FILE *file = fopen("/proc/self/stat", "r");

	if (!file)
		return 0;
	if (fgets(text, sizeof(text), file)) {
		/* Field 22; fields are counted after the ")" that ends the command's name. */
		char *field = strrchr(text, ')');
		for (int skip = 2; field && skip < 22; skip++)
			field = strchr(field + 1, ' ');
		if (field)
			ticks = strtoull(field + 1, NULL, 10);
	}
	fclose(file);
	return ticks;
}

static void read_boot_id(char *text, size_t size)
{
	const char *given = getenv("RDMARING_HOST_ID");
	FILE *file;

	memset(text, 0, size);
	if (given && *given) {
		snprintf(text, size, "%s", given);
		return;
	}
	file = fopen("/proc/sys/kernel/random/boot_id", "r");
	if (!file)
		return;
	if (fgets(text, (int)size, file))
		text[strcspn(text, "\n")] = 0;
	fclose(file);
}

/* Slots shrink until all links of all communicators fit the process's budget. */
static rr_status choose_slots(const rr_options *options, int32_t world, struct rr_layout *layout)
{
	uint64_t used = rr_shm_bytes_used();
	uint64_t budget = options->memory_budget_bytes > used ? options->memory_budget_bytes - used : 0;
	uint64_t slot_bytes = options->slot_bytes;

	for (;;) {
		rr_layout_set(layout, (uint32_t)world, slot_bytes, options->slot_count);
		if (layout->bytes <= budget)
			return RR_OK;
		if (slot_bytes / 2 < SLOT_BYTES_MIN)
			return rr_fail(RR_ERR_NO_MEMORY,
				       "links to %d ranks need at least %llu bytes; of the budget of %llu (RDMARING_MEMORY_BUDGET) %llu are left",
				       world - 1, (unsigned long long)layout->bytes,
				       (unsigned long long)options->memory_budget_bytes, (unsigned long long)budget);
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
	shm->memfd = memfd_create("rdmaring-segment", MFD_CLOEXEC);
	if (shm->memfd < 0)
		return rr_fail(RR_ERR_SYSTEM, "memfd_create: %s", strerror(errno));
	failed = posix_fallocate(shm->memfd, 0, (off_t)shm->layout.bytes);
	if (failed)
		return rr_fail(RR_ERR_NO_MEMORY, "no room for a segment of %llu bytes: %s",
			       (unsigned long long)shm->layout.bytes, strerror(failed));
	page = mmap(NULL, shm->layout.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, shm->memfd, 0);
	if (page == MAP_FAILED)
		return rr_fail(RR_ERR_NO_MEMORY, "cannot map a segment of %llu bytes: %s",
			       (unsigned long long)shm->layout.bytes, strerror(errno));
	madvise(page, shm->layout.bytes, MADV_HUGEPAGE); /* where the kernel allows it for shared memory */
	page->magic = RR_PAGE_MAGIC;
	page->version = RR_PAGE_VERSION;
	page->world = (uint32_t)shm->world;
	page->rank = (uint32_t)shm->rank;
	page->pid = getpid();
	page->start_time = process_start_time();
	page->created_ns = rr_now_ns();
	memcpy(page->token, shm->token, sizeof(page->token));
	shm->page = page;
	shm->peers[shm->rank].page = page;
	rr_shm_bytes_add((int64_t)shm->layout.bytes);
	return RR_OK;
}

static rr_status check_hellos(const struct rr_shm *shm, const struct hello *hellos)
{
	const struct hello *own = &hellos[shm->rank];

	for (int32_t r = 0; r < shm->world; r++) {
		const struct hello *other = &hellos[r];
		if (other->wire_version != RR_WIRE_VERSION || other->page_version != RR_PAGE_VERSION)
			return rr_fail(RR_ERR_SETUP, "rank %d speaks wire version %u.%u, this build %u.%u: install the same version everywhere",
				       r, other->wire_version, other->page_version, RR_WIRE_VERSION, RR_PAGE_VERSION);
		if (other->status < 0)
			return rr_fail(RR_ERR_SETUP, "rank %d could not set up: %.255s", r, other->message);
		if (strncmp(other->boot_id, own->boot_id, sizeof(own->boot_id)) != 0)
			return rr_fail(RR_ERR_SETUP, "rank %d is on another host (%.39s, here %.39s): this build has links inside one node only",
				       r, other->boot_id, own->boot_id);
		if (other->slot_count != own->slot_count)
			return rr_fail(RR_ERR_SETUP, "rank %d has %u slots a link, rank %d has %u: options must be equal on all ranks",
				       r, other->slot_count, shm->rank, own->slot_count);
	}
	return RR_OK;
}

static rr_status wait_readable(int fd, uint64_t deadline_ns, const char *what)
{
	uint64_t now = rr_now_ns();
	struct pollfd item = {.fd = fd, .events = POLLIN};
	int ready;

	if (now >= deadline_ns)
		return rr_fail(RR_ERR_SETUP, "timed out waiting for %s", what);
	do {
		ready = poll(&item, 1, (int)((deadline_ns - now) / RR_NS_PER_MS) + 1);
	} while (ready < 0 && errno == EINTR);
	return ready > 0 ? RR_OK : rr_fail(RR_ERR_SETUP, "timed out waiting for %s", what);
}

static rr_status introduce(const struct rr_shm *shm, int socket, const struct hello *own)
{
	struct introduction intro = {.rank = shm->rank};

	memcpy(intro.token, own->token, sizeof(intro.token));
	return rr_shm_send(socket, &intro, sizeof(intro), shm->memfd);
}

/* Read a peer's introduction and map its segment; proof of the same node. */
static rr_status meet(struct rr_shm *shm, int socket, const struct hello *hellos, uint64_t deadline_ns, int32_t *who)
{
	struct introduction intro = {0};
	size_t got = 0;
	int fd = -1;
	rr_status status = wait_readable(socket, deadline_ns, "a rank of this node to introduce itself");

	if (status >= 0)
		status = rr_shm_receive(socket, &intro, sizeof(intro), &got, &fd);
	if (status != RR_OK)
		return status == RR_AGAIN ? rr_fail(RR_ERR_SETUP, "a rank's introduction was empty") : status;
	if (got != sizeof(intro) || fd < 0 || intro.rank < 0 || intro.rank >= shm->world ||
	    intro.rank == shm->rank || shm->peers[intro.rank].page ||
	    memcmp(intro.token, hellos[intro.rank].token, sizeof(intro.token)) != 0) {
		status = rr_fail(RR_ERR_PROTOCOL, "a stranger spoke on a node's socket");
		goto close_fd;
	}
	struct rr_shm_peer *peer = &shm->peers[intro.rank];
	struct rr_page *page = mmap(NULL, shm->layout.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (page == MAP_FAILED) {
		status = rr_fail(RR_ERR_SETUP, "cannot map the segment of rank %d: %s", intro.rank, strerror(errno));
		goto close_fd;
	}
	peer->page = page;
	if (page->magic != RR_PAGE_MAGIC || page->rank != (uint32_t)intro.rank ||
	    memcmp(page->token, intro.token, sizeof(intro.token)) != 0)
		status = rr_fail(RR_ERR_SETUP, "the segment of rank %d is not the one it told of", intro.rank);
	*who = intro.rank;

close_fd:
	if (fd >= 0)
		close(fd);
	return status;
}

static void keep_socket(struct rr_shm_peer *peer, int socket)
{
	struct ucred credentials = {0};
	socklen_t size = sizeof(credentials);

	peer->socket = socket;
	if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0)
		peer->pid = credentials.pid;
#ifdef SYS_pidfd_open
	if (peer->pid > 0)
		peer->pidfd = (int)syscall(SYS_pidfd_open, peer->pid, 0);
	if (peer->pidfd >= 0)
		fcntl(peer->pidfd, F_SETFD, FD_CLOEXEC);
#endif
}

static rr_status connect_lower(struct rr_shm *shm, const struct hello *hellos)
{
	for (int32_t r = 0; r < shm->rank; r++) {
		int socket = rr_shm_connect(hellos[r].socket_name);
		if (socket < 0)
			return rr_fail(RR_ERR_SETUP, "cannot reach rank %d on this node: %s (network namespaces must be shared)",
				       r, strerror(-socket));
		keep_socket(&shm->peers[r], socket);
		rr_status status = introduce(shm, socket, &hellos[shm->rank]);
		if (status != RR_OK)
			return rr_fail(RR_ERR_SETUP, "cannot send this rank's segment to rank %d", r);
	}
	return RR_OK;
}

static rr_status accept_higher(struct rr_shm *shm, int listener, const struct hello *hellos, uint64_t deadline_ns)
{
	for (int32_t left = shm->world - 1 - shm->rank; left > 0; left--) {
		int32_t who = -1;
		rr_status status = wait_readable(listener, deadline_ns, "the higher ranks of this node");
		if (status < 0)
			return status;
		int socket = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (socket < 0)
			return rr_fail(RR_ERR_SETUP, "accept: %s", strerror(errno));
		status = meet(shm, socket, hellos, deadline_ns, &who);
		if (status == RR_ERR_PROTOCOL) {
			close(socket); /* not one of us: go on listening */
			left++;
			continue;
		}
		if (status >= 0)
			status = introduce(shm, socket, &hellos[shm->rank]);
		if (status < 0) {
			close(socket);
			return status;
		}
		keep_socket(&shm->peers[who], socket);
	}
	return RR_OK;
}

static rr_status join_sockets(struct rr_shm *shm, int listener, const struct hello *hellos)
{
	uint64_t deadline_ns = rr_now_ns() + SETUP_TIMEOUT_NS;
	int32_t who;
	rr_status status = connect_lower(shm, hellos);

	if (status >= 0)
		status = accept_higher(shm, listener, hellos, deadline_ns);
	for (int32_t r = 0; r < shm->rank && status >= 0; r++)
		status = meet(shm, shm->peers[r].socket, hellos, deadline_ns, &who);
	return status;
}

/* Try what the link would do: read the peer's token out of its memory. */
static void probe_cma(struct rr_shm *shm, const struct hello *hellos, int32_t r)
{
	struct rr_shm_peer *peer = &shm->peers[r];
	uint8_t token[16] = {0};
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

static rr_status exchange_outcomes(struct rr_shm *shm, rr_exchange_fn exchange, void *user, rr_status status)
{
	size_t bytes = sizeof(struct outcome) + (size_t)shm->world;
	char *mine = calloc(1, bytes);
	char *all = calloc((size_t)shm->world, bytes);

	if (!mine || !all) {
		status = rr_fail(RR_ERR_NO_MEMORY, "no memory for %d outcomes", shm->world);
		goto free_both;
	}
	((struct outcome *)mine)->status = status;
	if (status < 0)
		snprintf(((struct outcome *)mine)->message, sizeof(((struct outcome *)mine)->message), "%.251s",
			 rr_error_here()->message);
	for (int32_t r = 0; r < shm->world; r++)
		mine[sizeof(struct outcome) + (size_t)r] = shm->peers[r].cma;
	if (exchange(user, mine, bytes, all) != 0) {
		status = rr_fail(RR_ERR_SETUP, "the exchange among the ranks failed");
		goto free_both;
	}
	for (int32_t r = 0; r < shm->world; r++) {
		const struct outcome *other = (const struct outcome *)(all + (size_t)r * bytes);
		if (other->status < 0 && status >= 0)
			status = rr_fail(RR_ERR_SETUP, "rank %d could not set up: %.251s", r, other->message);
		shm->peers[r].cma_of_us = all[(size_t)r * bytes + sizeof(struct outcome) + (size_t)shm->rank] != 0;
	}

free_both:
	free(mine);
	free(all);
	return status;
}

static rr_status prepare(struct rr_shm *shm, const rr_options *options, struct hello *hello, int *listener)
{
	rr_status status;

	if (getrandom(shm->token, sizeof(shm->token), 0) != sizeof(shm->token))
		return rr_fail(RR_ERR_SYSTEM, "getrandom: %s", strerror(errno));
	memcpy(hello->token, shm->token, sizeof(hello->token));
	hello->token_address = (uint64_t)(uintptr_t)shm->token;
	for (int i = 0; i < 16; i++)
		snprintf(hello->socket_name + 2 * i, 3, "%02x", hello->token[i] ^ 0x5a);
	status = choose_slots(options, shm->world, &shm->layout);
	if (status < 0)
		return status;
	hello->slot_bytes = shm->layout.slot_bytes;
	hello->slot_count = shm->layout.slot_count;
	*listener = rr_shm_listen(hello->socket_name, shm->world);
	if (*listener < 0)
		return rr_fail(RR_ERR_SYSTEM, "cannot listen on a unix socket: %s", strerror(-*listener));
	return RR_OK;
}

/* A process with more communicators has less left of its budget: all take what the poorest can. */
static void agree_on_slots(struct rr_shm *shm, const struct hello *hellos)
{
	uint64_t slot_bytes = shm->layout.slot_bytes;

	for (int32_t r = 0; r < shm->world; r++)
		slot_bytes = hellos[r].slot_bytes < slot_bytes ? hellos[r].slot_bytes : slot_bytes;
	rr_layout_set(&shm->layout, (uint32_t)shm->world, slot_bytes, shm->layout.slot_count);
}

rr_status rr_shm_create(int32_t rank, int32_t world, rr_exchange_fn exchange, void *user,
			const rr_options *options, struct rr_shm *shm)
{
	struct hello own = {.wire_version = RR_WIRE_VERSION, .page_version = RR_PAGE_VERSION, .pid = getpid()};
	struct hello *hellos = NULL;
	int listener = -1;
	rr_status status;

	memset(shm, 0, sizeof(*shm));
	shm->rank = rank;
	shm->world = world;
	shm->memfd = -1;
	shm->cma_wanted = options->cma == 0;
	own.cma_wanted = shm->cma_wanted;
	if (world > NODE_WORLD_MAX)
		return rr_fail(RR_ERR_UNSUPPORTED, "%d ranks on one node: at most %d are served", world, NODE_WORLD_MAX);
	shm->peers = calloc((size_t)world, sizeof(*shm->peers));
	hellos = calloc((size_t)world, sizeof(*hellos));
	if (!shm->peers || !hellos) {
		free(hellos);
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for %d peers", world);
	}
	for (int32_t r = 0; r < world; r++)
		shm->peers[r].socket = shm->peers[r].pidfd = -1;
	read_boot_id(own.boot_id, sizeof(own.boot_id));
	status = prepare(shm, options, &own, &listener);
	if (world == 1) {
		status = status < 0 ? status : make_segment(shm);
		goto close_listener;
	}
	own.status = status;
	if (status < 0)
		snprintf(own.message, sizeof(own.message), "%.255s", rr_error_here()->message);
	if (exchange(user, &own, sizeof(own), hellos) != 0) {
		status = rr_fail(RR_ERR_SETUP, "the exchange among the ranks failed");
		goto close_listener;
	}
	if (status >= 0)
		status = check_hellos(shm, hellos);
	if (status < 0) /* all ranks see the same hellos, so all leave here */
		goto close_listener;
	agree_on_slots(shm, hellos);
	status = exchange_outcomes(shm, exchange, user, make_segment(shm));
	if (status < 0)
		goto close_listener;
	status = join_sockets(shm, listener, hellos);
	for (int32_t r = 0; r < world && status >= 0; r++)
		if (r != rank)
			probe_cma(shm, hellos, r);
	status = exchange_outcomes(shm, exchange, user, status);

close_listener:
	if (listener >= 0)
		close(listener);
	free(hellos);
	if (status >= 0)
		rr_publish32(&shm->page->state, RR_PAGE_RUNNING);
	return status;
}
