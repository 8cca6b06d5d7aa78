/* shm_meet.c - how the ranks of a node meet on their sockets, and map each other's segments: steps 4 and 5 of hello.h. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "forked.h"
#include "process.h"
#include "shm.h"
#include "status.h"

#define LIFE_LOOK_NS (100 * RR_NS_PER_MS) /* how often a process is asked for whose end no descriptor tells */

struct introduction { /* the first message on a pair's socket, with the segment's descriptor */
	int32_t rank;
	uint8_t token[RR_TOKEN_BYTES];
};

struct limit {
	uint64_t since_ns, until_ns;
};

static int poll_until(struct pollfd *items, nfds_t count, uint64_t until_ns)
{
	int ready = 0;

	for (uint64_t now = rr_now_ns(); now < until_ns; now = rr_now_ns()) {
		uint64_t left_ns = until_ns - now < RR_NS_PER_S ? until_ns - now : RR_NS_PER_S;
		ready = poll(items, count, (int)(left_ns / RR_NS_PER_MS) + 1);
		if (ready > 0 || (ready < 0 && errno != EINTR))
			return ready;
	}
	return ready;
}

static double waited_s(const struct limit *limit)
{
	return (double)(rr_now_ns() - limit->since_ns) / (double)RR_NS_PER_S;
}

static rr_status introduce(const struct rr_shm *shm, int socket, const struct rr_hello *own)
{
	struct introduction intro = {.rank = shm->rank};

	memcpy(intro.token, own->token, sizeof(intro.token));
	return rr_shm_send(socket, &intro, sizeof(intro), shm->memfd);
}

/* Read a peer's introduction, which lies in the socket, and map its segment; proof of the same node. */
static rr_status meet(struct rr_shm *shm, int socket, const struct rr_hello *hellos, int32_t *who)
{
	struct introduction intro = {0};
	size_t got = 0;
	int fd = -1;
	rr_status status = rr_shm_receive(socket, &intro, sizeof(intro), &got, &fd);

	if (status != RR_OK)
		return status == RR_AGAIN ? rr_fail(RR_ERR_SETUP, "a rank's introduction was empty") : status;
	if (got != sizeof(intro) || fd < 0 || intro.rank < 0 || intro.rank >= shm->world ||
	    intro.rank == shm->rank || !rr_shm_has(shm, intro.rank) || shm->peers[intro.rank].page ||
	    memcmp(intro.token, hellos[intro.rank].token, sizeof(intro.token)) != 0) {
		status = rr_fail(RR_ERR_PROTOCOL, "a stranger spoke on a node's socket");
		goto close_fd;
	}
	if ((uint64_t)lseek(fd, 0, SEEK_END) < shm->layout.bytes) { /* a page beyond its end would kill whoever touches it */
		status = rr_fail(RR_ERR_SETUP, "the segment of rank %d is smaller than its slots need", intro.rank);
		goto close_fd;
	}
	struct rr_shm_peer *peer = &shm->peers[intro.rank];
	struct rr_page *page = rr_own_map(NULL, shm->layout.bytes, fd, RR_CHILD_EMPTY);
	if (page == MAP_FAILED) {
		status = rr_fail(RR_ERR_SETUP, "cannot map the segment of rank %d: %s", intro.rank, strerror(errno));
		goto close_fd;
	}
	peer->page = page;
	rr_shm_own_slots(shm, intro.rank);
	if (page->magic != RR_PAGE_MAGIC || page->rank != (uint32_t)intro.rank ||
	    memcmp(page->token, intro.token, sizeof(intro.token)) != 0)
		status = rr_fail(RR_ERR_SETUP, "the segment of rank %d is not the one it told of", intro.rank);
	*who = intro.rank;

close_fd:
	if (fd >= 0)
		rr_own_close(fd);
	return status;
}

void rr_shm_watch_process(struct rr_shm_peer *peer, int32_t pid)
{
	if (peer->pidfd >= 0)
		rr_own_close(peer->pidfd);
	peer->pid = pid;
	peer->pidfd = -1;
#ifdef SYS_pidfd_open
	if (pid > 0)
		peer->pidfd = RR_OWN((int)syscall(SYS_pidfd_open, pid, 0));
	if (peer->pidfd >= 0)
		fcntl(peer->pidfd, F_SETFD, FD_CLOEXEC);
#endif
}

static void keep_socket(struct rr_shm_peer *peer, int socket)
{
	struct ucred credentials = {0};
	socklen_t size = sizeof(credentials);

	peer->socket = socket;
	if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0 &&
	    (credentials.pid != peer->pid || peer->pidfd < 0))
		rr_shm_watch_process(peer, credentials.pid);
}

static rr_status connect_lower(struct rr_shm *shm, const struct rr_hello *hellos, const struct limit *limit)
{
	for (int32_t r = 0; r < shm->rank; r++) {
		if (!rr_shm_has(shm, r))
			continue;
		int socket = rr_shm_connect(hellos[r].socket_name, limit->until_ns);
		if (socket == -EMFILE)
			return rr_process_out_of_files("a socket to another rank of this node");
		if (socket < 0)
			return rr_fail(RR_ERR_SETUP, "cannot reach rank %d, which tells of the same host (%.39s), by a unix socket: %s",
				       r, hellos[r].host_id, strerror(-socket));
		keep_socket(&shm->peers[r], socket);
		rr_status status = introduce(shm, socket, &hellos[shm->rank]);
		if (status != RR_OK)
			return rr_fail(RR_ERR_SETUP, "cannot send this rank's segment to rank %d: %s", r,
				       status == RR_AGAIN ? "its new socket is full" : rr_error_here()->message);
	}
	return RR_OK;
}

/* Connections of higher ranks, or of strangers, that have not introduced themselves yet. */
struct arrivals {
	int sockets[RR_NODE_COUNT_MAX];
	uint32_t count;
};

static bool is_awaited(const struct rr_shm *shm, int32_t r)
{
	return r > shm->rank && rr_shm_has(shm, r) && shm->peers[r].socket < 0;
}

static rr_status late_ranks(const struct rr_shm *shm, const struct limit *limit)
{
	char who[96] = "";
	size_t used = 0;

	for (int32_t r = 0; r < shm->world && used < sizeof(who) - 1; r++)
		if (is_awaited(shm, r))
			used += (size_t)snprintf(who + used, sizeof(who) - used, "%s%d (pid %d)", used ? ", " : "", r, shm->peers[r].pid);
	return rr_fail(RR_ERR_SETUP, "did not hear from rank %s within %.1f s", who, waited_s(limit));
}

/* A rank that has connected gives up, or one that has not has ended. */
static rr_status lost_rank(int32_t r)
{
	return rr_fail(RR_ERR_LINK, "rank %d of this node has ended, or has given shared memory up", r);
}

/*
 * Until a rank connects (*said: -1), or one of those that did says something (*said: its number in arrivals). Fails when a rank has
 * given up, has ended, or is late.
 */
static rr_status wait_arrival(const struct rr_shm *shm, int listener, const struct arrivals *arrivals, const struct limit *limit,
			      int *said)
{
	struct pollfd items[2 * RR_NODE_COUNT_MAX + 1] = {{.fd = arrivals->count < RR_NODE_COUNT_MAX ? listener : -1, .events = POLLIN}};
	int32_t ranks[2 * RR_NODE_COUNT_MAX + 1];
	nfds_t count = 1;
	int ready;

	for (uint32_t i = 0; i < arrivals->count; i++)
		items[count++] = (struct pollfd){.fd = arrivals->sockets[i], .events = POLLIN};
	for (int32_t r = 0; r < shm->world; r++) {
		const struct rr_shm_peer *peer = &shm->peers[r];
		ranks[count] = r;
		if (peer->socket >= 0)
			items[count++] = (struct pollfd){.fd = peer->socket, .events = POLLRDHUP};
		else if (peer->pidfd >= 0)
			items[count++] = (struct pollfd){.fd = peer->pidfd, .events = POLLIN};
	}
	do {
		uint64_t look_ns = rr_now_ns() + LIFE_LOOK_NS;
		ready = poll_until(items, count, look_ns < limit->until_ns ? look_ns : limit->until_ns);
		for (int32_t r = 0; ready == 0 && r < shm->world; r++) /* where the kernel gives no descriptor of processes */
			if (is_awaited(shm, r) && shm->peers[r].pidfd < 0 && rr_process_life(shm->peers[r].pid, 0) == RR_LIFE_ENDED)
				return lost_rank(r);
	} while (ready == 0 && rr_now_ns() < limit->until_ns);
	if (ready <= 0)
		return late_ranks(shm, limit);
	for (uint32_t i = 0; i < arrivals->count; i++)
		if (items[1 + i].revents) {
			*said = (int)i;
			return RR_OK;
		}
	*said = -1;
	for (nfds_t i = 1 + arrivals->count; i < count && !items[0].revents; i++)
		if (items[i].revents)
			return lost_rank(ranks[i]);
	return RR_OK;
}

static rr_status take_arrival(struct arrivals *arrivals, int listener)
{
	int socket = RR_OWN(accept4(listener, NULL, NULL, SOCK_CLOEXEC));

	if (socket < 0)
		return errno == EMFILE ? rr_process_out_of_files("a rank of this node") : rr_fail(RR_ERR_SETUP, "accept: %s", strerror(errno));
	arrivals->sockets[arrivals->count++] = socket;
	return RR_OK;
}

/* It has closed before it introduced itself: a rank that gives up, or a stranger, whom nobody waits for. */
static rr_status left_early(const struct rr_shm *shm, int socket)
{
	struct ucred credentials = {0};
	socklen_t size = sizeof(credentials);

	if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0)
		return RR_OK;
	for (int32_t r = 0; r < shm->world; r++)
		if (is_awaited(shm, r) && shm->peers[r].pid == credentials.pid)
			return lost_rank(r);
	return RR_OK;
}

/* What an arrival says. RR_AGAIN: it was a stranger, and is turned away; the others are waited for. */
static rr_status hear_arrival(struct rr_shm *shm, int socket, const struct rr_hello *hellos)
{
	int32_t who = -1;
	rr_status status = meet(shm, socket, hellos, &who);

	if (status == RR_ERR_LINK)
		status = left_early(shm, socket) < 0 ? RR_ERR_LINK : RR_AGAIN;
	else if (status == RR_ERR_PROTOCOL)
		status = RR_AGAIN;
	else if (status >= 0)
		status = introduce(shm, socket, &hellos[shm->rank]);
	if (status == RR_OK)
		keep_socket(&shm->peers[who], socket);
	else
		rr_own_close(socket);
	if (who >= 0 && status == RR_AGAIN)
		return rr_fail(RR_ERR_SETUP, "cannot send this rank's segment to rank %d: its new socket is full", who);
	return status;
}

static rr_status accept_higher(struct rr_shm *shm, int listener, const struct rr_hello *hellos, const struct limit *limit)
{
	struct arrivals arrivals = {.count = 0};
	int32_t left = shm->count - 1 - shm->index[shm->rank];
	rr_status status = RR_OK;

	while (left > 0 && status >= 0) {
		int said = -1;
		status = wait_arrival(shm, listener, &arrivals, limit, &said);
		if (status >= 0 && said < 0) {
			status = take_arrival(&arrivals, listener);
		} else if (status >= 0) {
			int socket = arrivals.sockets[said];
			arrivals.sockets[said] = arrivals.sockets[--arrivals.count];
			status = hear_arrival(shm, socket, hellos);
			left -= status == RR_OK;
		}
	}
	while (arrivals.count)
		rr_own_close(arrivals.sockets[--arrivals.count]);
	return status;
}

/* The lower ranks' introductions, which they send when they have ours. */
static rr_status meet_lower(struct rr_shm *shm, const struct rr_hello *hellos, const struct limit *limit)
{
	rr_status status = RR_OK;
	int32_t who;

	for (int32_t r = 0; r < shm->rank && status >= 0; r++) {
		struct pollfd item = {.fd = shm->peers[r].socket, .events = POLLIN};
		if (!rr_shm_has(shm, r))
			continue;
		if (poll_until(&item, 1, limit->until_ns) <= 0)
			return rr_fail(RR_ERR_SETUP, "did not hear from rank %d (pid %d) within %.1f s", r, shm->peers[r].pid, waited_s(limit));
		status = meet(shm, shm->peers[r].socket, hellos, &who);
		if (status == RR_ERR_LINK)
			status = lost_rank(r);
	}
	return status;
}

/* This rank has failed to join: those of its node that wait for its word shall not wait in vain. */
static void turn_away(struct rr_shm *shm, int listener)
{
	struct pollfd item = {.fd = listener, .events = POLLIN};

	for (int32_t r = 0; r < shm->world; r++)
		if (r != shm->rank && rr_shm_has(shm, r))
			rr_shm_part(shm, r);
	shutdown(listener, SHUT_RDWR);
	while (poll(&item, 1, 0) > 0) {
		int socket = RR_OWN(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
		if (socket < 0)
			return;
		rr_own_close(socket);
	}
}

rr_status rr_shm_meet(struct rr_shm *shm, int listener, const struct rr_hello *hellos, uint64_t until_ns)
{
	struct limit limit = {.since_ns = rr_now_ns(), .until_ns = until_ns};
	rr_status status = connect_lower(shm, hellos, &limit);

	if (status >= 0)
		status = accept_higher(shm, listener, hellos, &limit);
	if (status >= 0)
		status = meet_lower(shm, hellos, &limit);
	if (status < 0)
		turn_away(shm, listener);
	return status;
}
