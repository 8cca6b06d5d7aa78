/*
 * link_socket.c - a whole transport: the edge's own socket is the wire.
 *
 *   cc -std=c99 -D_GNU_SOURCE -shared -fPIC -I$(python -c 'import rdmaring, os; print(os.path.dirname(rdmaring.__file__))')/include \
 *      -o link_socket.so link_socket.c
 *   RDMARING_LINK=./link_socket.so rdmaring run -n 4 train.py
 *
 * rdmaring hands over messages and asks for their bytes one after the other, so a connection carries them as they
 * are. What could not be sent at once stays with rdmaring, and what was not asked for stays in the kernel.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <rdmaring_link.h>

struct wire {
	rr_message_edge *edge; /* rdmaring's, until wire_close() has returned */
	int socket;
};

/* Why a call failed, in words, and whether the connection is to blame. */
static int say(rr_message_edge *edge, const char *what, int error)
{
	snprintf(edge->why, RR_MESSAGE_WHY_BYTES, "%s: %s", what, error ? strerror(error) : "closed by the peer");
	return error == 0 || error == ECONNRESET || error == EPIPE ? RR_MESSAGE_ENDED : RR_MESSAGE_FAILED;
}

static int32_t wire_open(void *user, rr_message_edge *edge, void **state)
{
	struct wire *wire = malloc(sizeof(*wire));

	(void)user;
	if (!wire) {
		close(edge->socket); /* ours from now on, whatever we return */
		return say(edge, "malloc", ENOMEM);
	}
	wire->edge = edge;
	wire->socket = edge->socket; /* edge->news stays: the socket tells of room and of bytes */
	*state = wire;
	return 0;
}

static int64_t wire_send(void *state, const rr_piece *pieces, uint32_t count)
{
	struct wire *wire = state;
	struct iovec parts[RR_MESSAGE_PIECES_MAX];
	struct msghdr message;
	ssize_t sent;
	uint32_t i;

	for (i = 0; i < count; i++) {
		parts[i].iov_base = (void *)pieces[i].address;
		parts[i].iov_len = pieces[i].bytes;
	}
	memset(&message, 0, sizeof(message));
	message.msg_iov = parts;
	message.msg_iovlen = count;
	sent = sendmsg(wire->socket, &message, MSG_NOSIGNAL);
	if (sent >= 0)
		return sent;
	if (errno == EAGAIN || errno == EINTR)
		return 0;
	return say(wire->edge, "sendmsg", errno);
}

static int64_t wire_receive(void *state, void *into, uint64_t bytes)
{
	struct wire *wire = state;
	ssize_t got = recv(wire->socket, into, bytes, 0);

	if (got > 0)
		return got;
	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	return say(wire->edge, "recv", got == 0 ? 0 : errno);
}

static void wire_close(void *state)
{
	struct wire *wire = state;

	close(wire->socket);
	free(wire);
}

static const rr_message_transport table = {
	RR_MESSAGE_VERSION, sizeof(rr_message_transport), "socket", NULL, /* user */
	wire_open, wire_send, wire_receive, NULL /* progress */, NULL /* due_ns */, wire_close,
};

const rr_message_transport *rr_link_transport(void)
{
	return &table;
}
