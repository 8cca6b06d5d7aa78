/*
 * wire.c - sockets that stand for the fabric, and the thread that serves them.
 *
 * A queue pair listens at an abstract address made of VERBS_SIM_DIR (whatever it says: one fabric for each value),
 * its own GID and type, or LID, and its number. The requester connects to the address its address handle says,
 * and opens with a hello; a hello that does not fit what this end was told of its peer is shut out, as packets
 * of a wrong address or PSN are dropped.
 */
#define _GNU_SOURCE
#include "sim.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define WIRE_VERSION  1u
#define SOCKET_BYTES  (1 << 20)
#define BLOCKS_MAX    4096u
#define FDS_OF_QP     4

_Static_assert(sizeof(struct sim_packet) == 56, "both ends are built from this header");
_Static_assert(sizeof(struct sim_hello) == 72, "both ends are built from this header");

enum role { ROLE_WAKE, ROLE_LISTEN, ROLE_PENDING, ROLE_IN, ROLE_OUT };

struct watch {
	struct sim_qp *qp;
	enum role role;
};

void sim_close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

void sim_wake(void)
{
	uint64_t one = 1;

	if (sim.wake_fd >= 0 && write(sim.wake_fd, &one, sizeof(one)) < 0 && errno != EAGAIN)
		sim_violation("the simulator's thread cannot be woken: %s", strerror(errno));
}

static socklen_t address(struct sockaddr_un *to, const char *text)
{
	const char *fabric = getenv("VERBS_SIM_DIR");
	uint64_t hash = 14695981039346656037ull;
	int length;

	for (; fabric && *fabric; fabric++)
		hash = (hash ^ (uint8_t)*fabric) * 1099511628211ull;
	to->sun_family = AF_UNIX;
	length = snprintf(to->sun_path + 1, sizeof(to->sun_path) - 1, "verbs_sim/%016llx/%s", (unsigned long long)hash,
			  text);
	to->sun_path[0] = 0;
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

/* Where a queue pair of this number listens when packets to it bear this GID or, without one, this LID. */
static socklen_t qp_address(struct sockaddr_un *to, const struct sim_gid *gid, unsigned lid, uint32_t qpn)
{
	char text[80], *at = text;

	if (!gid) {
		snprintf(text, sizeof(text), "lid%x/%06x", lid, qpn);
		return address(to, text);
	}
	at += sprintf(at, "v%d/", (int)gid->type);
	for (int i = 0; i < 16; i++)
		at += sprintf(at, "%02x", gid->gid.raw[i]);
	sprintf(at, "/%06x", qpn);
	return address(to, text);
}

static int seqpacket(void)
{
	int bytes = SOCKET_BYTES, fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd >= 0)
		setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
	return fd;
}

/* NULL where the address handle goes by LID. */
static const struct sim_gid *own_gid(const struct sim_qp *qp)
{
	const struct ibv_ah_attr *ah = &qp->attr.ah_attr;

	return ah->is_global ? sim_gid_row(sim_context_of(qp->base.context)->device, ah->grh.sgid_index) : NULL;
}

/* Processes that open one device of one host share its queue pair numbers: each takes 4096 of them. */
int sim_reserve_qpns(struct sim_context *context)
{
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct sockaddr_un to;
	char text[64];

	if (fd < 0)
		return errno;
	for (unsigned block = 1; block < BLOCKS_MAX; block++) {
		snprintf(text, sizeof(text), "qpn/%016llx/%u", (unsigned long long)context->device->guid, block);
		if (bind(fd, (struct sockaddr *)&to, address(&to, text)) == 0) {
			context->qpn_fd = fd;
			context->qpn_block = block;
			context->qpn_next = (uint32_t)(sim.config.seed * 37);
			return 0;
		}
		if (errno != EADDRINUSE)
			break;
	}
	close(fd);
	return ENOMEM;
}

int sim_listen(struct sim_qp *qp)
{
	struct sim_device *device = sim_context_of(qp->base.context)->device;
	struct sockaddr_un to;
	socklen_t bytes = qp_address(&to, own_gid(qp), sim_lid(device), qp->base.qp_num);

	if (qp->listen_fd >= 0)
		return 0;
	qp->listen_fd = seqpacket();
	if (qp->listen_fd < 0)
		return errno;
	if (bind(qp->listen_fd, (struct sockaddr *)&to, bytes) < 0 || listen(qp->listen_fd, 16) < 0) {
		int error = errno;

		sim_violation("two hosts of one fabric have the same GID or LID and QP number: give them host=");
		sim_close_fd(&qp->listen_fd);
		return error;
	}
	return 0;
}

static void fill_hello(const struct sim_qp *qp, struct sim_hello *hello)
{
	const struct ibv_qp_attr *attr = &qp->attr;
	const struct sim_gid *gid = own_gid(qp);

	*hello = (struct sim_hello){
		.kind = SIM_HELLO, .version = WIRE_VERSION, .source_qpn = qp->base.qp_num,
		.target_qpn = attr->dest_qp_num, .psn = attr->sq_psn, .mtu = attr->path_mtu, .global = gid != NULL,
		.slid = sim_lid(sim_context_of(qp->base.context)->device), .dlid = attr->ah_attr.dlid,
	};
	if (gid) {
		hello->gid_type = gid->type;
		memcpy(hello->sgid, &gid->gid, 16);
		memcpy(hello->dgid, &attr->ah_attr.grh.dgid, 16);
	}
}

void sim_connect(struct sim_qp *qp, uint64_t now)
{
	const struct sim_gid *own = own_gid(qp);
	struct sim_gid target = { own ? own->type : SIM_GID_NONE, qp->attr.ah_attr.grh.dgid };
	struct sim_hello hello;
	struct sockaddr_un to;
	socklen_t bytes = qp_address(&to, own ? &target : NULL, qp->attr.ah_attr.dlid, qp->attr.dest_qp_num);

	(void)now;
	fill_hello(qp, &hello);
	qp->out_fd = seqpacket();
	if (qp->out_fd < 0)
		return;
	if (connect(qp->out_fd, (struct sockaddr *)&to, bytes) < 0 ||
	    send(qp->out_fd, &hello, sizeof(hello), MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof(hello))
		sim_close_fd(&qp->out_fd);
}

void sim_accept(struct sim_qp *qp)
{
	if (qp->pending_fd >= 0)
		return;
	qp->pending_fd = accept4(qp->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
}

static bool fits(const struct sim_qp *qp, const struct sim_hello *hello)
{
	const struct ibv_qp_attr *attr = &qp->attr;
	const struct sim_gid *gid = own_gid(qp);

	if (hello->kind != SIM_HELLO || hello->version != WIRE_VERSION || hello->global != (gid != NULL) ||
	    hello->source_qpn != attr->dest_qp_num || hello->psn != attr->rq_psn)
		return false;
	if (!gid)
		return hello->slid == attr->ah_attr.dlid;
	return hello->gid_type == (uint32_t)gid->type && !memcmp(hello->dgid, &gid->gid, 16) &&
	       !memcmp(hello->sgid, &attr->ah_attr.grh.dgid, 16);
}

void sim_hello_input(struct sim_qp *qp)
{
	int bytes = SOCKET_BYTES;
	struct sim_hello hello;
	ssize_t got = recv(qp->pending_fd, &hello, sizeof(hello), MSG_DONTWAIT);

	if (got < 0 && errno == EAGAIN)
		return;
	if (got != (ssize_t)sizeof(hello) || !fits(qp, &hello)) {
		sim_close_fd(&qp->pending_fd);
		return;
	}
	setsockopt(qp->pending_fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
	sim_close_fd(&qp->in_fd);
	sim_message_free(qp->assembling);
	qp->assembling = NULL;
	qp->awaiting_recv = false;
	sim_message_free(qp->read_reply);
	qp->read_reply = NULL;
	qp->peer_mtu = hello.mtu;
	qp->in_fd = qp->pending_fd;
	qp->pending_fd = -1;
}

void sim_disconnect(struct sim_qp *qp)
{
	sim_close_fd(&qp->listen_fd);
	sim_close_fd(&qp->pending_fd);
	sim_close_fd(&qp->in_fd);
	sim_close_fd(&qp->out_fd);
	qp->out_blocked = false;
}

int sim_packet_send(int fd, const struct sim_packet *packet, const uint8_t *payload)
{
	struct iovec parts[2] = { { (void *)packet, sizeof(*packet) }, { (void *)payload, packet->bytes } };
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = payload ? 2 : 1 };

	if (sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
		return 1;
	return errno == EAGAIN || errno == ENOBUFS ? 0 : -1;
}

int sim_packet_receive(int fd, struct sim_packet *packet, uint8_t *payload)
{
	struct iovec parts[2] = { { packet, sizeof(*packet) }, { payload, SIM_PACKET_BYTES } };
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
	ssize_t got;

	do /* a reset is told once, before what still lies there */
		got = recvmsg(fd, &message, MSG_DONTWAIT);
	while (got < 0 && (errno == EINTR || errno == ECONNRESET));
	if (got < 0 && errno == EAGAIN)
		return -1;
	if (got < (ssize_t)sizeof(*packet) || got - (ssize_t)sizeof(*packet) != (ssize_t)packet->bytes)
		return -2;
	return (int)packet->bytes;
}

static void serve(const struct watch *watch, const struct pollfd *ready)
{
	struct sim_qp *qp = sim.qps;

	while (qp && qp != watch->qp)
		qp = qp->next;
	if (!qp) /* destroyed meanwhile */
		return;
	switch (watch->role) {
	case ROLE_WAKE:
		break;
	case ROLE_LISTEN:
		if (qp->listen_fd == ready->fd)
			sim_accept(qp);
		break;
	case ROLE_PENDING:
		if (qp->pending_fd == ready->fd)
			sim_hello_input(qp);
		break;
	case ROLE_IN:
		if (qp->in_fd == ready->fd && ready->revents & (POLLIN | POLLHUP | POLLERR))
			sim_responder_input(qp);
		break;
	case ROLE_OUT:
		if (qp->out_fd == ready->fd && ready->revents & (POLLIN | POLLHUP | POLLERR))
			sim_requester_input(qp);
		break;
	}
}

static void watch_qp(struct sim_qp *qp, struct pollfd *fds, struct watch *watches, nfds_t *count)
{
	struct { int fd; enum role role; short events; } all[FDS_OF_QP] = {
		{ qp->pending_fd < 0 ? qp->listen_fd : -1, ROLE_LISTEN, POLLIN },
		{ qp->pending_fd, ROLE_PENDING, POLLIN },
		{ qp->in_fd, ROLE_IN, qp->read_reply ? POLLOUT : qp->awaiting_recv ? 0 : POLLIN },
		{ qp->out_fd, ROLE_OUT, (short)(POLLIN | (sim_requester_wants_output(qp) ? POLLOUT : 0)) },
	};

	for (int i = 0; i < FDS_OF_QP; i++) {
		if (all[i].fd < 0)
			continue;
		fds[*count] = (struct pollfd){ .fd = all[i].fd, .events = all[i].events };
		watches[(*count)++] = (struct watch){ qp, all[i].role };
	}
}

/* Everything that is due now; the time of what comes next. */
static uint64_t run_all(void)
{
	uint64_t now = sim_now(), next;

	sim_check_triggers(now);
	next = sim_next_trigger();
	for (struct sim_qp *qp = sim.qps; qp; qp = qp->next) {
		uint64_t time;

		sim_responder_run(qp, now);
		sim_requester_run(qp, now);
		time = sim_responder_next(qp);
		next = time < next ? time : next;
		time = sim_requester_next(qp);
		next = time < next ? time : next;
	}
	return next;
}

static nfds_t gather_watches(struct pollfd **fds, struct watch **watches)
{
	size_t qps = 0;
	nfds_t count = 0;

	for (struct sim_qp *qp = sim.qps; qp; qp = qp->next)
		qps++;
	*fds = realloc(*fds, (qps * FDS_OF_QP + 1) * sizeof(**fds));
	*watches = realloc(*watches, (qps * FDS_OF_QP + 1) * sizeof(**watches));
	if (!*fds || !*watches)
		abort();
	(*fds)[count] = (struct pollfd){ .fd = sim.wake_fd, .events = POLLIN };
	(*watches)[count++] = (struct watch){ NULL, ROLE_WAKE };
	for (struct sim_qp *qp = sim.qps; qp; qp = qp->next)
		watch_qp(qp, *fds, *watches, &count);
	return count;
}

static void wait_for(struct pollfd *fds, nfds_t count, uint64_t next)
{
	uint64_t now = sim_now(), ns = next == SIM_NEVER ? 0 : next > now ? next - now : 0;
	struct timespec timeout = { (time_t)(ns / 1000000000ull), (long)(ns % 1000000000ull) };

	pthread_mutex_unlock(&sim_lock);
	if (ppoll(fds, count, next == SIM_NEVER ? NULL : &timeout, NULL) < 0)
		for (nfds_t i = 0; i < count; i++)
			fds[i].revents = 0; /* a descriptor closed under it: look again */
	pthread_mutex_lock(&sim_lock);
}

static void *serve_all(void *unused)
{
	struct watch *watches = NULL;
	struct pollfd *fds = NULL;

	(void)unused;
	pthread_mutex_lock(&sim_lock);
	while (!sim.stopping) {
		uint64_t next = run_all(), drained;
		nfds_t count = gather_watches(&fds, &watches);

		wait_for(fds, count, next);
		if (fds[0].revents && read(sim.wake_fd, &drained, sizeof(drained)) < 0 && errno != EAGAIN)
			sim_violation("the simulator's eventfd: %s", strerror(errno));
		for (nfds_t i = 1; i < count; i++)
			if (fds[i].revents)
				serve(&watches[i], &fds[i]);
	}
	pthread_mutex_unlock(&sim_lock);
	free(fds);
	free(watches);
	return NULL;
}

int sim_wire_start(void)
{
	sigset_t all, before;
	int error;

	sim.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (sim.wake_fd < 0)
		return errno;
	if (!sim.opened_ns)
		sim.opened_ns = sim_now();
	sim.stopping = false;
	sigfillset(&all); /* signals are for the application's threads */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(&sim.thread, NULL, serve_all, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (error)
		sim_close_fd(&sim.wake_fd);
	return error;
}

void sim_wire_stop(void)
{
	sim.stopping = true;
	sim_wake();
	pthread_mutex_unlock(&sim_lock);
	pthread_join(sim.thread, NULL);
	pthread_mutex_lock(&sim_lock);
	sim_close_fd(&sim.wake_fd);
}
