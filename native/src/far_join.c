/* far_join.c - connections between far ranks until they are proven; see far_inside.h. */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

#include "clock.h"
#include "far_inside.h"
#include "forked.h"
#include "status.h"

#define CONNECT_NS (1 * RR_NS_PER_S) /* for one address of several to answer */
#define DIAL_PAUSE_NS (20 * RR_NS_PER_MS)
#define PROOF_NS (10 * RR_NS_PER_S)  /* for whoever was connected to; then another address has its turn, for this may be a stranger's */
#define STRANGER_NS (5 * RR_NS_PER_S)

static uint64_t proof_of(const struct rr_far *far, char side, const struct rr_pending *pending)
{
	uint8_t text[1 + sizeof(pending->greeting) + sizeof(pending->challenge.nonce)];

	text[0] = (uint8_t)side;
	memcpy(text + 1, &pending->greeting, sizeof(pending->greeting));
	memcpy(text + 1 + sizeof(pending->greeting), pending->challenge.nonce, sizeof(pending->challenge.nonce));
	return rr_proof(far->key, text, sizeof(text));
}

static struct rr_pending *take_pending(struct rr_far *far, int socket, uint64_t lives_ns)
{
	struct rr_pending *pending = NULL, *oldest = NULL;

	for (uint32_t i = 0; i < RR_FAR_PENDING_MAX && !pending; i++) {
		struct rr_pending *one = &far->pending[i];
		if (one->step == RR_PENDING_FREE)
			pending = one;
		else if (one->step == RR_PENDING_GREETING && (!oldest || one->deadline_ns < oldest->deadline_ns))
			oldest = one;
	}
	if (!pending && oldest) {
		rr_far_pending_drop(far, oldest, "too many connections that prove nothing");
		pending = oldest;
	}
	if (!pending)
		return NULL;
	memset(pending, 0, sizeof(*pending));
	pending->socket = socket;
	pending->deadline_ns = rr_now_ns() + lives_ns;
	return pending;
}

static struct rr_edge *edge_of(struct rr_far *far, const struct rr_pending *pending)
{
	int32_t peer = pending->greeting.from == far->rank ? pending->greeting.to : pending->greeting.from;

	return &far->edges[peer];
}

void rr_far_pending_drop(struct rr_far *far, struct rr_pending *pending, const char *why)
{
	bool dialed = pending->step == RR_PENDING_CONNECT || pending->step == RR_PENDING_CHALLENGE ||
		      pending->step == RR_PENDING_WELCOME;
	char text[RR_NET_TEXT_BYTES];

	rr_net_text(&pending->address, text);
	if (dialed) {
		struct rr_edge *edge = edge_of(far, pending);
		snprintf(edge->failure, sizeof(edge->failure), "%s: %s", text, why);
		edge->dial_again_ns = rr_now_ns() + DIAL_PAUSE_NS;
	} else if (!pending->counted) {
		far->strangers++;
		snprintf(far->stranger, sizeof(far->stranger), "%s %s", text, why);
	}
	epoll_ctl(far->control, EPOLL_CTL_DEL, pending->socket, NULL);
	rr_own_close(pending->socket);
	pending->step = RR_PENDING_FREE;
}

static void watch_pending(struct rr_far *far, struct rr_pending *pending, bool writable)
{
	rr_far_watch(far, pending->socket, RR_FAR_TAG_PENDING(pending - far->pending), writable);
}

void rr_far_dial(struct rr_far *far, struct rr_edge *edge, uint16_t stream)
{
	const struct rr_net_target *target =
		stream == RR_FAR_CONTROL ? &edge->targets[edge->target_next++ % edge->target_count] : &edge->answered;
	char text[RR_NET_TEXT_BYTES];
	int socket = rr_net_dial(target);

	edge->dial_again_ns = UINT64_MAX;
	far->out_of_files = far->out_of_files || socket == -EMFILE;
	if (socket < 0) {
		snprintf(edge->failure, sizeof(edge->failure), "%s: %s", rr_net_text(&target->address, text), strerror(-socket));
		edge->dial_again_ns = rr_now_ns() + DIAL_PAUSE_NS;
		return;
	}
	struct rr_pending *pending = take_pending(far, socket, CONNECT_NS);
	if (!pending) {
		rr_own_close(socket);
		edge->dial_again_ns = rr_now_ns() + DIAL_PAUSE_NS;
		return;
	}
	pending->step = RR_PENDING_CONNECT;
	pending->counted = true;
	pending->address = target->address;
	pending->greeting = (struct rr_greeting){.magic = RR_FAR_MAGIC, .version = RR_FAR_VERSION, .stream = stream,
						 .from = far->rank, .to = edge->peer};
	memcpy(pending->greeting.token, far->token, sizeof(far->token));
	if (getrandom(pending->greeting.nonce, sizeof(pending->greeting.nonce), 0) < 0) {
		rr_far_pending_drop(far, pending, strerror(errno));
		return;
	}
	watch_pending(far, pending, true);
}

void rr_far_accept(struct rr_far *far)
{
	for (;;) {
		struct sockaddr_storage address = {0};
		socklen_t size = sizeof(address);
		int socket = RR_OWN(accept4(far->listener, (struct sockaddr *)&address, &size, SOCK_CLOEXEC | SOCK_NONBLOCK));

		if (socket < 0) {
			far->out_of_files = far->out_of_files || errno == EMFILE;
			return; /* none, or one that has gone again */
		}
		rr_net_prepare(socket);
		struct rr_pending *pending = take_pending(far, socket, STRANGER_NS);
		if (!pending) {
			rr_own_close(socket);
			continue;
		}
		pending->step = RR_PENDING_GREETING;
		pending->address = address;
		watch_pending(far, pending, false);
	}
}

/* A small message into an empty socket buffer fits, or the connection is broken. */
static bool say(struct rr_far *far, struct rr_pending *pending, const void *bytes, size_t size)
{
	if (send(pending->socket, bytes, size, MSG_NOSIGNAL) == (ssize_t)size)
		return true;
	rr_far_pending_drop(far, pending, strerror(errno));
	return false;
}

/* `size` bytes of what the other side says; false: not yet, or it is dropped. */
static bool hear(struct rr_far *far, struct rr_pending *pending, void *out, uint32_t size)
{
	while (pending->got < size) {
		ssize_t got = recv(pending->socket, pending->input + pending->got, size - pending->got, 0);
		if (got > 0) {
			pending->got += (uint32_t)got;
			continue;
		}
		if (got < 0 && (errno == EAGAIN || errno == EINTR))
			return false;
		rr_far_pending_drop(far, pending,
				    got == 0 ? (pending->got ? "left in the middle of a word" : "left without a word")
					     : strerror(errno));
		return false;
	}
	memcpy(out, pending->input, size);
	pending->got = 0;
	return true;
}

static void connected(struct rr_far *far, struct rr_pending *pending)
{
	struct sockaddr_storage own = {0}, other = {0};
	socklen_t size = sizeof(own), other_size = sizeof(other), error_size = sizeof(int);
	int failed = 0;

	getsockopt(pending->socket, SOL_SOCKET, SO_ERROR, &failed, &error_size);
	if (failed) {
		struct rr_edge *edge = edge_of(far, pending);
		edge->refused = edge->refused || failed == ECONNREFUSED;
		rr_far_pending_drop(far, pending, strerror(failed));
		return;
	}
	getsockname(pending->socket, (struct sockaddr *)&own, &size);
	getpeername(pending->socket, (struct sockaddr *)&other, &other_size);
	if (size == other_size && memcmp(&own, &other, size) == 0) {
		rr_far_pending_drop(far, pending, "the kernel joined the socket to itself");
		return;
	}
	pending->step = RR_PENDING_CHALLENGE;
	pending->deadline_ns = rr_now_ns() + PROOF_NS;
	if (say(far, pending, &pending->greeting, sizeof(pending->greeting)))
		watch_pending(far, pending, false);
}

static void challenged(struct rr_far *far, struct rr_pending *pending)
{
	uint64_t answer;

	if (!hear(far, pending, &pending->challenge, sizeof(pending->challenge)))
		return;
	if (pending->challenge.proof != proof_of(far, 'A', pending)) {
		rr_far_pending_drop(far, pending, "its proof of the job's key is wrong (RDMARING_SECRET differs, or another program listens there)");
		return;
	}
	answer = proof_of(far, 'D', pending);
	pending->step = RR_PENDING_WELCOME;
	say(far, pending, &answer, sizeof(answer));
}

static void greeted(struct rr_far *far, struct rr_pending *pending)
{
	struct rr_greeting *greeting = &pending->greeting;
	uint32_t stream;

	if (!hear(far, pending, greeting, sizeof(*greeting)))
		return;
	stream = greeting->stream;
	const char *why = NULL;
	if (greeting->magic != RR_FAR_MAGIC)
		why = "said no greeting of rdmaring";
	else if (greeting->version != RR_FAR_VERSION)
		why = "speaks another version of the greeting";
	else if (memcmp(greeting->token, far->token, sizeof(far->token)) != 0)
		why = "is of another job or communicator";
	else if (greeting->to != far->rank)
		why = "looked for another rank";
	else if (greeting->from < 0 || greeting->from >= far->rank || !far->edges[greeting->from].page)
		why = "is no far rank below this one";
	else if (stream != RR_FAR_CONTROL && stream >= far->edges[greeting->from].streams)
		why = "asked for a data socket that the edge does not have";
	if (why) {
		/* A rank of this job may reach us where another host has the same address: it goes on to the next. */
		pending->counted = greeting->magic == RR_FAR_MAGIC &&
				   memcmp(greeting->token, far->token, sizeof(far->token)) == 0;
		rr_far_pending_drop(far, pending, why);
		return;
	}
	if (getrandom(pending->challenge.nonce, sizeof(pending->challenge.nonce), 0) < 0) {
		rr_far_pending_drop(far, pending, strerror(errno));
		return;
	}
	pending->counted = true; /* only this job knows the token */
	pending->challenge.proof = proof_of(far, 'A', pending);
	pending->step = RR_PENDING_ANSWER;
	say(far, pending, &pending->challenge, sizeof(pending->challenge));
}

static void finish(struct rr_far *far, struct rr_pending *pending)
{
	struct rr_edge *edge = edge_of(far, pending);
	int socket = pending->socket;

	epoll_ctl(far->control, EPOLL_CTL_DEL, socket, NULL);
	if (pending->step == RR_PENDING_WELCOME && pending->greeting.stream == RR_FAR_CONTROL) {
		edge->answered.address = pending->address;
		edge->answered.size = pending->address.ss_family == AF_INET ? sizeof(struct sockaddr_in)
									   : sizeof(struct sockaddr_in6);
	}
	pending->step = RR_PENDING_FREE;
	rr_far_joined(far, edge, pending->greeting.stream, socket);
}

void rr_far_pending_event(struct rr_far *far, struct rr_pending *pending)
{
	uint64_t proof;

	switch (pending->step) {
	case RR_PENDING_FREE:
		return;
	case RR_PENDING_CONNECT:
		connected(far, pending);
		return;
	case RR_PENDING_CHALLENGE:
		challenged(far, pending);
		return;
	case RR_PENDING_GREETING:
		greeted(far, pending);
		return;
	case RR_PENDING_WELCOME:
		if (!hear(far, pending, &proof, sizeof(proof)))
			return;
		if (proof != proof_of(far, 'W', pending))
			rr_far_pending_drop(far, pending, "its welcome is wrong");
		else
			finish(far, pending);
		return;
	case RR_PENDING_ANSWER:
		if (!hear(far, pending, &proof, sizeof(proof)))
			return;
		if (proof != proof_of(far, 'D', pending)) {
			pending->counted = false;
			rr_far_pending_drop(far, pending, "its proof of the job's key is wrong");
			return;
		}
		proof = proof_of(far, 'W', pending);
		if (say(far, pending, &proof, sizeof(proof)))
			finish(far, pending);
		return;
	}
}

void rr_far_pending_time(struct rr_far *far, uint64_t now_ns)
{
	for (uint32_t i = 0; i < RR_FAR_PENDING_MAX; i++) {
		struct rr_pending *pending = &far->pending[i];
		if (pending->step == RR_PENDING_FREE || now_ns < pending->deadline_ns)
			continue;
		if (pending->step == RR_PENDING_CHALLENGE || pending->step == RR_PENDING_WELCOME) {
			edge_of(far, pending)->refused = false;
			edge_of(far, pending)->silent_last = edge_of(far, pending)->target_next;
		}
		rr_far_pending_drop(far, pending,
				    pending->step == RR_PENDING_CONNECT ? "no answer within 1 s" : "proved nothing in time");
	}
}
