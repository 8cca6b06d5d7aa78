/*
 * rdmaring_link.h - a transport of your own between nodes.
 *
 * A shared library that exports rr_link_transport() serves every edge between nodes when it is named by
 * RDMARING_LINK=/path/lib.so, by init(transport="/path/lib.so") or by rr_options.link_library; all ranks must
 * name the same transport. native/examples/link_socket.c is a whole one. Compile against this header alone.
 *
 * What it carries. Each direction of an edge is a sequence of messages, kept in order, none lost or twice.
 * A message is a head of RR_MESSAGE_HEAD_BYTES and a body of 0 to body_bytes_max bytes; the head tells how
 * long the body is, so a transport that carries bytes need not mark where messages end (rr_message_body_bytes()
 * for one that must know). rdmaring checks what arrives: a wrong byte in a head is an error, one in a body a
 * wrong sum.
 *
 * Threads: the functions of one edge are never called at the same time, but by different threads over its life
 * (the caller's, or the process's progress thread). Signals are not blocked.
 * Blocking: no function waits for the peer, but for close() (see there). They are called in turn while an
 * operation runs, and not at all between operations: what send() has taken must reach the peer by itself.
 * Memory: what a function is given is the library's, and valid during the call only, but for the edge, which
 * stays valid until close() has returned.
 * fork(): a child calls nothing of an edge of its parent's, close() neither. Its copy of edge->socket is closed when it is
 * forked, so that the peer sees the parent's end; what the transport opened itself, it closes there by itself
 * (pthread_atfork()).
 * Errors: write one sentence to edge->why, and return RR_MESSAGE_ENDED or RR_MESSAGE_FAILED. Nothing is called
 * afterwards but close().
 */
#ifndef RDMARING_LINK_H
#define RDMARING_LINK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define RR_LINK_EXPORT __attribute__((visibility("default")))
#else
#define RR_LINK_EXPORT
#endif

/* [cdef-begin] what stands between these marks is also what Python sees */

enum rr_message_constant {
	RR_MESSAGE_VERSION = 2,
	RR_MESSAGE_HEAD_BYTES = 48,
	RR_MESSAGE_PIECES_MAX = 17, /* of one send(): the head, and the body in at most 16 */
	RR_MESSAGE_NAME_BYTES = 16, /* of a transport's name, with its final 0 */
	RR_MESSAGE_WHY_BYTES = 512,
	/*
	 * The wire has ended, as it does when the peer's process ends: for half a second that is looked for, and
	 * told instead where it is the cause.
	 */
	RR_MESSAGE_ENDED = -1,
	/* This transport failed: told at once, on both ranks. */
	RR_MESSAGE_FAILED = -2
};

typedef struct rr_piece {
	const void *address;
	uint64_t bytes;
} rr_piece;

/* One edge between two ranks, both directions. */
typedef struct rr_message_edge {
	int32_t rank;            /* this one */
	int32_t peer;
	int32_t world;
	/*
	 * A TCP connection to the peer, both ends of which have proven the job's secret; non-blocking, without
	 * delay for small messages, nothing sent on it yet. Use it as the wire, or to set another one up. It is the
	 * transport's from open() on, whatever open() returns.
	 */
	int32_t socket;
	/*
	 * open() may change it: a descriptor that becomes readable or writable when receive(), send() or progress()
	 * can go on, watched edge-triggered until close(); preset to `socket`. -1: none; a rank that sleeps then looks
	 * every 10 ms.
	 */
	int32_t news;
	uint32_t channel;        /* two ranks may share several edges, each with a socket of its own: number 0 is always there */
	uint64_t body_bytes_max; /* of a message, either direction */
	char *why;               /* room of RR_MESSAGE_WHY_BYTES for the text of an error */
} rr_message_edge;

/* Members marked "may be NULL" may. */
typedef struct rr_message_transport {
	uint32_t version; /* RR_MESSAGE_VERSION */
	uint32_t size;    /* sizeof(rr_message_transport) */
	const char *name; /* of comm.links and errors: 1 to 15 letters, digits, '-', '_', '.' */
	void *user;       /* handed to open() */
	/*
	 * The edge is about to be used for the first time. *state is handed to the other functions.
	 * 0, or an error; after an error close() is not called.
	 */
	int32_t (*open)(void *user, rr_message_edge *edge, void **state);
	/*
	 * Offers one message, or what is left of it: pieces[0..count-1], the head first. Returns how many bytes from
	 * its front were taken now, 0 where there is no room, or an error. The same message is offered, less what
	 * was taken, until it is taken whole. Taken: the memory may be overwritten, and the bytes will reach the
	 * peer though nothing is called any more. A transport of whole messages returns 0 until it is done with
	 * the memory, then the sum of all pieces.
	 */
	int64_t (*send)(void *state, const rr_piece *pieces, uint32_t count);
	/*
	 * Puts the next bytes of the current message to `into`, at most `bytes`, and returns how many; 0: nothing is
	 * there yet; or an error. Never asks beyond the end of a message: first for its head, and for the body when it
	 * is known where that belongs. What is not asked for should stay where it is: that is the sender's credit.
	 */
	int64_t (*receive)(void *state, void *into, uint64_t bytes);
	/* Called in turn, whether there is something to send or receive or not. 0, or an error. May be NULL. */
	int32_t (*progress)(void *state);
	/*
	 * In how many nanoseconds the transport wants to be called though `news` tells nothing: a rank that sleeps is
	 * woken then. UINT64_MAX: never. May be NULL: never.
	 */
	uint64_t (*due_ns)(void *state);
	/*
	 * Frees the state and closes the socket. After the last operation's end, or an error's: the peer may need
	 * what was sent and may not have asked for it yet, so end the connection as close() of a TCP socket does.
	 */
	void (*close)(void *state);
} rr_message_transport;

/* [cdef-end] */

/* How long the body is that follows a head. */
static inline uint32_t rr_message_body_bytes(const void *head)
{
	const unsigned char *at = (const unsigned char *)head + 24; /* little-endian, at byte 24 */

	return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* What the shared library defines. The table must stay as it is. */
RR_LINK_EXPORT const rr_message_transport *rr_link_transport(void);

#ifdef __cplusplus
}
#endif
#endif
