/*
 * message.h - messages of two ranks (send, recv): beside the queue of operations, over links of their own.
 *
 * They count per ordered pair: the k-th send of a to b meets the k-th recv of b from a, and a pair's messages go one
 * after another. A message is a head of 64 bytes (which holds the payload of the smallest), then slices. There is no
 * OPEN: all that the receiver needs is in the head, and a head that does not fit is a mismatch.
 *
 * Threads: the driver of the communicator only.
 */
#ifndef RR_MESSAGE_H
#define RR_MESSAGE_H

#include <stdbool.h>

#include "rdmaring.h"

struct rr_comm;
struct rr_work;

/* A work's part if it is a message: such a work has no plan. */
struct rr_message {
	int32_t peer;
	bool outgoing;
	int32_t dtype;
	uint64_t serial; /* of the ordered pair, from 1 */
	char *address;
	uint64_t bytes;
	uint32_t slice_bytes; /* the sender's choice */
	uint64_t slices;      /* with the head; 0: the receiver has not seen it */
	uint64_t moved;       /* of them, sent or received */
	uint64_t end;         /* the link's number behind the last of them */
};

/* Move what can be moved. An error has failed the communicator when it is returned. */
rr_status rr_message_progress(struct rr_comm *comm, bool *moved);
/* The message in turn with `peer`, a send before a receive; NULL: none. */
struct rr_work *rr_message_turn(const struct rr_comm *comm, int32_t peer);
/* "send 3 of 80 bytes to rank 2" */
void rr_message_text(const struct rr_work *work, char *text, size_t size);
/* End all of them by the communicator's failure. */
void rr_message_end(struct rr_comm *comm);
void rr_message_free(struct rr_comm *comm);

#endif
