/*
 * far_inside.h - what far.c (edges and messages), far_want.c (which connections), far_join.c (their proofs), far_state.c (where
 * ranks are) and far_ask.c (what others know of a rank) share.
 *
 * Joining, dialer (D) and acceptor (A), messages of fixed size:
 *
 *   D  greeting   magic, version, stream, from, to, job token, nonce
 *   A  challenge  nonce, proof(key, 'A', greeting, nonce)
 *   D  answer     proof(key, 'D', greeting, nonce)
 *   A  welcome    proof(key, 'W', greeting, nonce)
 *
 * stream 0xffff is the control connection; data sockets follow it to the address that answered.
 */
#ifndef RR_FAR_INSIDE_H
#define RR_FAR_INSIDE_H

#include <pthread.h>

#include "far.h"

#define RR_FAR_MAGIC 0x46525252u /* "RRRF" */
#define RR_FAR_VERSION 3u
#define RR_FAR_CONTROL 0xffffu
#define RR_FAR_PENDING_MAX 64u /* connections under proof */
#define RR_FAR_NOTES_MAX 16u
#define RR_FAR_NOTE_BYTES 400u

struct rr_greeting {
	uint32_t magic;
	uint16_t version;
	uint16_t stream;
	int32_t from, to;
	uint8_t token[RR_TOKEN_BYTES]; /* of the communicator: rank 0's */
	uint8_t nonce[16];
};
_Static_assert(sizeof(struct rr_greeting) == 48, "a greeting is 48 bytes on the wire");

struct rr_challenge {
	uint8_t nonce[16];
	uint64_t proof;
};
_Static_assert(sizeof(struct rr_challenge) == 24, "a challenge is 24 bytes on the wire");

enum rr_pending_step {
	RR_PENDING_FREE = 0,
	RR_PENDING_CONNECT,   /* D: the kernel connects */
	RR_PENDING_CHALLENGE, /* D: greeting sent */
	RR_PENDING_WELCOME,   /* D: answer sent */
	RR_PENDING_GREETING,  /* A: accepted */
	RR_PENDING_ANSWER     /* A: challenge sent */
};

/* A connection under proof. */
struct rr_pending {
	enum rr_pending_step step;
	int socket;
	bool counted; /* the other side is this job's: not a stranger */
	uint64_t deadline_ns;
	struct rr_greeting greeting;
	struct rr_challenge challenge;
	uint8_t input[64];
	uint32_t got;
	struct sockaddr_storage address;
};

enum rr_far_message {
	RR_FAR_SETUP = 1,
	RR_FAR_STATE = 2,
	RR_FAR_FAILED = 3,
	RR_FAR_CLOSED = 4,
	RR_FAR_WANT = 5, /* the sender wants the late channel's sockets, and does not dial; no body */
	RR_FAR_WITNESS = 6, /* what the sender knows of a rank, or a question about it */
	RR_FAR_COUNTS = 7   /* what the sender has sent to the receiver, and what it lacks itself */
};

struct rr_message_head {
	uint32_t kind;  /* enum rr_far_message | channel << 8 */
	uint32_t bytes; /* of the body */
};

/* Where a rank is, and what it waits in: of STATE and CLOSED. Times count back from when it is sent. */
struct rr_state_message {
	uint64_t op; /* entered; 0: none */
	uint64_t op_done;
	uint64_t position;
	uint64_t wait_op, waits[2], waited_ns, quiet_ns; /* as in the page; quiet_ns all ones: it never waited */
	uint64_t else_comm, else_op, else_wait, else_process, else_quiet_ns;
	uint64_t pace_word, pace_span_ns, pace_moved_ns, pace_age_ns; /* as in the page */
	struct rr_descriptor descriptor;
};

#define RR_FAR_NOT_KNOWN UINT32_MAX

struct rr_witness_message {
	int32_t about;      /* a rank */
	uint32_t asks;      /* 1: a question; what follows is not set */
	int32_t life;       /* rr_life; of a rank of the sender's node */
	uint32_t silent_ms; /* since its node's kernel answered the sender's last; RR_FAR_NOT_KNOWN: they are not connected */
	uint32_t quiet_ms;  /* since it looked around last */
	uint32_t pad;
	uint64_t op_done, op_entered; /* of a rank of the sender's node */
};
_Static_assert(sizeof(struct rr_witness_message) == 40, "a witness is 40 bytes on the wire");

/* Transfers of operations on the links to whom it is sent, and a slice that came to the sender from nobody. */
struct rr_counts_message {
	uint64_t lacks; /* as in the page */
	uint32_t sent[RR_CHANNELS_MAX]; /* with the receiver's kernel, since the links were opened; RR_FAR_NOT_KNOWN */
};
_Static_assert(sizeof(struct rr_counts_message) == 72, "counts are 72 bytes on the wire");

/* What a rank's neighbour told of it. */
struct rr_witness {
	uint64_t told_ns; /* 0: never */
	int32_t life;
	uint32_t quiet_ms;
	uint64_t op_done, op_entered;
};

/* Who serves a channel. */
struct rr_served {
	const struct rr_edge_ops *ops;
	void *user;
	uint32_t stream_first, streams;
};

struct rr_edge {
	enum rr_edge_state state;
	int32_t peer;
	bool dials; /* the lower rank does */
	struct rr_served served[RR_FAR_CHANNELS_MAX];
	uint32_t served_count;
	uint32_t streams;        /* data sockets of all channels, numbered through */
	uint32_t streams_wanted; /* without those of a late channel that nobody wants yet */
	uint32_t streams_up;
	bool want_sent; /* the peer, which dials, was told that we want them */
	/* dialing */
	struct rr_net_target *targets;
	uint32_t target_count, target_next;
	uint64_t dial_again_ns, joining_since_ns;
	bool refused; /* a try was: the peer's host is there, and nobody listens */
	uint32_t silent_last; /* target_next when somebody's kernel took a try last, and nobody answered it: a rank may be late */
	struct rr_net_target answered; /* the address that was right */
	char failure[160];             /* of the last try */
	/* the control connection */
	int socket;
	char path[2 * RR_NET_TEXT_BYTES + 8]; /* for people */
	uint8_t *input;
	uint32_t got;
	int lost_errno; /* once ENDED without CLOSED */
	bool lost;
	uint64_t told_op; /* STATE was sent for it */
	uint64_t tell_next_ns, tell_every_ns; /* when it is sent again while that operation waits */
	struct rr_page *page; /* mirror */
	/* far_state.c: what the peer told last, and since when it tells just that; 0: never */
	uint32_t sent[RR_CHANNELS_MAX];
	uint64_t sent_told_ns;
	/* far_ask.c */
	struct rr_witness witness;
	uint64_t heard_ns, asked_ns; /* it said something last; it was asked last */
	enum rr_inquiry inquiry;     /* once lost by silence */
	uint64_t inquired_ns;
	uint32_t asked, answers; /* ranks, about it */
	int32_t heard_by;         /* with RR_INQUIRY_LIVES */
};

struct rr_far {
	int32_t rank, world;
	int listener;
	int control; /* epoll of the listener, control connections and pending ones */
	int sleeper; /* epoll of all of that, transports' descriptors and the bell */
	int bell;
	uint8_t key[RR_KEY_BYTES];
	uint8_t token[RR_TOKEN_BYTES];
	const struct rr_hello *own_hello;
	struct rr_hello *hellos; /* [world], a copy */
	struct rr_edge *edges;   /* [world]; of near ranks unused */
	struct rr_page *page;    /* our own */
	struct rr_pending pending[RR_FAR_PENDING_MAX];
	const int32_t *node;     /* [world]; the communicator's */
	rr_far_neighbour_fn neighbour;
	rr_far_sent_fn sent;
	void *neighbour_user; /* of both */
	bool pass_is_dear; /* an edge has data sockets */
	bool crowded;
	uint32_t attending; /* channels that want to be attended to */
	uint64_t strangers;
	bool out_of_files; /* the last socket could not be had */
	char stranger[160];
	pthread_mutex_t notes_lock;
	uint32_t notes_written, notes_read; /* note n at n % RR_FAR_NOTES_MAX */
	char notes[RR_FAR_NOTES_MAX][RR_FAR_NOTE_BYTES];
};

/* far_join.c */
/* Dial the next target of the edge, or one more data socket. */
void rr_far_dial(struct rr_far *far, struct rr_edge *edge, uint16_t stream);
void rr_far_accept(struct rr_far *far);
/* Events of a pending connection, and of time. */
void rr_far_pending_event(struct rr_far *far, struct rr_pending *pending);
void rr_far_pending_time(struct rr_far *far, uint64_t now_ns);
void rr_far_pending_drop(struct rr_far *far, struct rr_pending *pending, const char *why);

/* far_want.c */
/* A proven connection. */
void rr_far_joined(struct rr_far *far, struct rr_edge *edge, uint16_t stream, int socket);
/* Dials whose pause is over. */
void rr_far_dial_on(struct rr_far *far, uint64_t now_ns);
/* The data sockets of all channels, late ones too. */
void rr_far_want_streams(struct rr_far *far, struct rr_edge *edge);

/* far_state.c */
void rr_far_fill_state(const struct rr_far *far, uint64_t op, struct rr_state_message *state);
void rr_far_take_state(struct rr_far *far, struct rr_edge *edge, const struct rr_state_message *state);
/* What the peer's process waits in elsewhere, or waited in when it closed. */
void rr_far_take_elsewhere(struct rr_page *page, const struct rr_state_message *state);
void rr_far_note_done(struct rr_page *page, uint64_t op_done);

void rr_far_take_counts(struct rr_edge *edge, const struct rr_counts_message *counts);

bool rr_far_is_silence(int failed);

/* far_ask.c */
bool rr_far_take_witness(struct rr_far *far, struct rr_edge *edge, const struct rr_witness_message *told);
/* What neighbours of this node are in that does not show in what they say themselves. */
void rr_far_tell_neighbours(struct rr_far *far, struct rr_edge *edge);

/* far.c */
rr_status rr_far_say(struct rr_edge *edge, enum rr_far_message kind, uint32_t channel, const void *body, uint32_t bytes);
void rr_far_watch(struct rr_far *far, int socket, uint64_t tag, bool writable);

/* What an epoll event of `control` is about. */
#define RR_FAR_TAG_LISTENER 0ull
#define RR_FAR_TAG_PENDING(i) (1ull << 32 | (uint64_t)(i))
#define RR_FAR_TAG_EDGE(r) (2ull << 32 | (uint64_t)(uint32_t)(r))

#endif
