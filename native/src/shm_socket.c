/* shm_socket.c - unix sockets with message boundaries, carrying descriptors. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "clock.h"
#include "forked.h"
#include "process.h"
#include "shm.h"
#include "status.h"

/* Abstract names vanish with their socket: nothing is left behind in a file system. */
static socklen_t abstract_address(struct sockaddr_un *address, const char *name)
{
	size_t length = strlen(name);

	memset(address, 0, sizeof(*address));
	address->sun_family = AF_UNIX;
	memcpy(address->sun_path + 1, name, length);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

int rr_shm_listen(const char *name, int backlog)
{
	struct sockaddr_un address;
	socklen_t length = abstract_address(&address, name);
	int fd = RR_OWN(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));

	if (fd < 0)
		return -errno;
	if (bind(fd, (struct sockaddr *)&address, length) < 0 || listen(fd, backlog) < 0) {
		int failed = errno;
		rr_own_close(fd);
		return -failed;
	}
	return fd;
}

int rr_shm_connect(const char *name, uint64_t until_ns)
{
	struct sockaddr_un address;
	socklen_t length = abstract_address(&address, name);
	uint64_t now = rr_now_ns(), left_ns = until_ns > now + RR_NS_PER_MS ? until_ns - now : RR_NS_PER_MS;
	struct timeval limit = {.tv_sec = (time_t)(left_ns / RR_NS_PER_S), .tv_usec = (suseconds_t)(left_ns % RR_NS_PER_S / 1000)};
	int fd = RR_OWN(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));

	if (fd < 0)
		return -errno;
	/* A listener that is stopped lets so many in as its backlog holds: the next one waits. */
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	if (connect(fd, (struct sockaddr *)&address, length) < 0) {
		int failed = errno == EAGAIN ? ETIMEDOUT : errno;
		rr_own_close(fd);
		return -failed;
	}
	return fd;
}

rr_status rr_shm_send(int socket, const void *message, size_t bytes, int fd)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec piece = {.iov_base = (void *)message, .iov_len = bytes};
	struct msghdr packet = {.msg_iov = &piece, .msg_iovlen = 1};

	if (fd >= 0) {
		packet.msg_control = &control;
		packet.msg_controllen = sizeof(control);
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&control.header), &fd, sizeof(int));
	}
	for (;;) {
		if (sendmsg(socket, &packet, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
			return RR_OK;
		if (errno == EINTR)
			continue;
		if (errno == EAGAIN || errno == ENOBUFS || errno == ETOOMANYREFS)
			return RR_AGAIN;
		return rr_fail(RR_ERR_LINK, "sendmsg on a node's socket: %s", strerror(errno));
	}
}

/* The one that came with it, or -1. */
static int descriptor_of(struct msghdr *packet)
{
	struct cmsghdr *header = CMSG_FIRSTHDR(packet);
	int fd = -1;

	if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS && header->cmsg_len >= CMSG_LEN(sizeof(fd)))
		memcpy(&fd, CMSG_DATA(header), sizeof(fd));
	return fd;
}

rr_status rr_shm_receive(int socket, void *message, size_t bytes, size_t *got, int *fd)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec piece = {.iov_base = message, .iov_len = bytes};
	struct msghdr packet = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = &control,
				.msg_controllen = sizeof(control)};
	ssize_t size;

	rr_own_begin();
	do {
		size = recvmsg(socket, &packet, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	} while (size < 0 && errno == EINTR);
	*fd = rr_own_made(size > 0 ? descriptor_of(&packet) : -1);
	if (size < 0 && errno == EAGAIN)
		return RR_AGAIN;
	if (size < 0 && errno != ECONNRESET)
		return rr_fail(RR_ERR_SETUP, "recvmsg on a node's socket: %s", strerror(errno));
	if (size <= 0)
		return rr_fail(RR_ERR_LINK, "the peer's end of a node's socket is closed");
	if (packet.msg_flags & MSG_CTRUNC)
		return rr_process_out_of_files("memory that another rank of this node passes on");
	*got = (size_t)size;
	return RR_OK;
}
