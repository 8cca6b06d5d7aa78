/* far.c - edges to far ranks once they are proven: messages, mirror pages, ends. */
#define _GNU_SOURCE
#include "far.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "clock.h"
#include "far_inside.h"
#include "forked.h"
#include "order.h"
#include "status.h"

#define EVENTS_MAX 32
#define PASSES_DEAR 16u
#define PASSES_CHEAP 400u

struct failed_message {
	uint64_t op_done;
	rr_error error;
};
_Static_assert(sizeof(struct failed_message) <= RR_FAR_BODY_MAX, "a failure fits a message");

/* ---- made and closed ---- */

static rr_status watch_listener(struct rr_far *far)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = 0};

	far->control = RR_OWN(epoll_create1(EPOLL_CLOEXEC));
	far->sleeper = RR_OWN(epoll_create1(EPOLL_CLOEXEC));
	far->bell = RR_OWN(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	if (far->control < 0 || far->sleeper < 0 || far->bell < 0)
		return rr_fail(RR_ERR_SYSTEM, "epoll or eventfd: %s (RLIMIT_NOFILE?)", strerror(errno));
	rr_far_watch(far, far->listener, RR_FAR_TAG_LISTENER, false);
	if (epoll_ctl(far->sleeper, EPOLL_CTL_ADD, far->control, &event) != 0)
		return rr_fail(RR_ERR_SYSTEM, "epoll_ctl: %s", strerror(errno));
	return rr_far_sleep_on(far, far->bell);
}

rr_status rr_far_prepare(int32_t rank, int32_t world, struct rr_hello *hello, struct rr_far **out)
{
	struct rr_far *far = calloc(1, sizeof(*far));
	rr_status status;

	if (!far)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for far ranks");
	*out = far;
	far->rank = rank;
	far->world = world;
	far->notes_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	far->listener = far->control = far->sleeper = far->bell = -1;
	far->edges = calloc((size_t)world, sizeof(*far->edges));
	if (!far->edges)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for %d edges", world);
	for (int32_t r = 0; r < world; r++)
		far->edges[r].socket = -1;
	status = rr_net_addresses(hello->addresses, &hello->address_count);
	if (status >= 0)
		status = rr_net_listen(&far->listener, &hello->port);
	if (status >= 0)
		status = watch_listener(far);
	return status;
}

rr_status rr_far_start(struct rr_far *far, const struct rr_hello *hellos, const int32_t *node,
		       const uint8_t key[RR_KEY_BYTES], struct rr_page *own)
{
	far->page = own;
	far->node = node;
	memcpy(far->key, key, sizeof(far->key));
	memcpy(far->token, hellos[0].token, sizeof(far->token));
	far->hellos = malloc((size_t)far->world * sizeof(*hellos));
	if (!far->hellos)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for %d hellos", far->world);
	memcpy(far->hellos, hellos, (size_t)far->world * sizeof(*hellos));
	for (int32_t r = 0; r < far->world; r++) {
		struct rr_edge *edge = &far->edges[r];
		if (node[r] == node[far->rank])
			continue;
		edge->peer = r;
		edge->dials = far->rank < r;
		edge->dial_again_ns = UINT64_MAX;
		if (posix_memalign((void **)&edge->page, RR_CACHE_LINE, sizeof(*edge->page)) != 0) {
			edge->page = NULL;
			return rr_fail(RR_ERR_NO_MEMORY, "no memory for rank %d's mirror page", r);
		}
		memset(edge->page, 0, sizeof(*edge->page));
		edge->page->rank = (uint32_t)r;
		edge->page->pid = hellos[r].pid;
		edge->page->process = rr_hello_process(&hellos[r]);
		rr_note32(&edge->page->state, RR_PAGE_RUNNING);
	}
	return RR_OK;
}

static void hang_up(struct rr_far *far, int socket)
{
	char rest[512];

	epoll_ctl(far->control, EPOLL_CTL_DEL, socket, NULL);
	shutdown(socket, SHUT_WR);
	/* Unread bytes would make close() a reset, which may overtake what we said last. */
	while (recv(socket, rest, sizeof(rest), MSG_DONTWAIT) > 0)
		;
	rr_own_close(socket);
}

static void end_edge(struct rr_far *far, struct rr_edge *edge)
{
	if (edge->socket >= 0) {
		hang_up(far, edge->socket);
		edge->socket = -1;
	}
	edge->state = RR_EDGE_ENDED;
}

void rr_far_close(struct rr_far *far)
{
	if (!far)
		return;
	for (uint32_t i = 0; i < RR_FAR_PENDING_MAX; i++)
		if (far->pending[i].step != RR_PENDING_FREE)
			hang_up(far, far->pending[i].socket);
	for (int32_t r = 0; far->edges && r < far->world; r++) {
		struct rr_edge *edge = &far->edges[r];
		end_edge(far, edge);
		free(edge->targets);
		free(edge->input);
		free(edge->page);
	}
	if (far->listener >= 0)
		rr_own_close(far->listener);
	if (far->control >= 0)
		rr_own_close(far->control);
	if (far->sleeper >= 0)
		rr_own_close(far->sleeper);
	if (far->bell >= 0)
		rr_own_close(far->bell);
	free(far->hellos);
	free(far->edges);
	free(far);
}

/* ---- small answers ---- */

bool rr_far_pass_is_dear(const struct rr_far *far)
{
	return far->pass_is_dear;
}

uint32_t rr_far_passes(const struct rr_far *far)
{
	return far->pass_is_dear || far->crowded ? PASSES_DEAR : PASSES_CHEAP;
}

void rr_far_crowded(struct rr_far *far, bool crowded)
{
	far->crowded = crowded;
}

enum rr_edge_state rr_far_state(const struct rr_far *far, int32_t peer)
{
	return far->edges[peer].state;
}

struct rr_page *rr_far_page(struct rr_far *far, int32_t peer)
{
	return far->edges[peer].page;
}

int rr_far_sleeper(const struct rr_far *far)
{
	return far->sleeper;
}

int rr_far_bell(const struct rr_far *far)
{
	return far->bell;
}

uint64_t rr_far_strangers(const struct rr_far *far, char *last, size_t size)
{
	snprintf(last, size, "%s", far->stranger);
	return far->strangers;
}

const char *rr_far_lost(const struct rr_far *far, int32_t peer)
{
	int failed = far->edges[peer].lost_errno;

	return failed ? strerror(failed) : "closed by its kernel";
}

void rr_far_path(const struct rr_far *far, int32_t peer, char *text, size_t size)
{
	snprintf(text, size, "%s", far->edges[peer].path);
}

void rr_far_facts(const struct rr_far *far, int32_t peer, rr_link_facts *facts)
{
	const struct rr_hello *other = &far->hellos[peer], *own = &far->hellos[far->rank];

	snprintf(facts->peer_host, sizeof(facts->peer_host), "%.39s", other->host_name);
	if (strncmp(other->boot_id, own->boot_id, sizeof(own->boot_id)) != 0)
		snprintf(facts->reason, sizeof(facts->reason), "another host");
	else if (other->network != own->network)
		snprintf(facts->reason, sizeof(facts->reason), "the same kernel, and another network namespace");
	else if (strncmp(other->host_id, own->host_id, sizeof(own->host_id)) != 0)
		snprintf(facts->reason, sizeof(facts->reason), "the same kernel, and another RDMARING_HOST_ID (%.39s, here %.39s)",
			 other->host_id, own->host_id);
}

void rr_far_watch(struct rr_far *far, int socket, uint64_t tag, bool writable)
{
	struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | (writable ? EPOLLOUT : 0), .data.u64 = tag};

	if (epoll_ctl(far->control, EPOLL_CTL_MOD, socket, &event) != 0)
		epoll_ctl(far->control, EPOLL_CTL_ADD, socket, &event);
}

rr_status rr_far_sleep_on(struct rr_far *far, int fd)
{
	struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.u64 = (uint64_t)(uint32_t)fd + 1};

	if (epoll_ctl(far->sleeper, EPOLL_CTL_ADD, fd, &event) != 0)
		return rr_fail(RR_ERR_SYSTEM, "epoll_ctl: %s", strerror(errno));
	return RR_OK;
}

void rr_far_sleep_off(struct rr_far *far, int fd)
{
	epoll_ctl(far->sleeper, EPOLL_CTL_DEL, fd, NULL);
}

/* ---- messages ---- */

static rr_status say(int socket, enum rr_far_message kind, uint32_t channel, const void *body, uint32_t bytes)
{
	struct {
		struct rr_message_head head;
		uint8_t body[RR_FAR_BODY_MAX];
	} message;
	size_t size = sizeof(message.head) + bytes;

	message.head = (struct rr_message_head){.kind = (uint32_t)kind | channel << 8, .bytes = bytes};
	if (bytes)
		memcpy(message.body, body, bytes);
	ssize_t sent = send(socket, &message, size, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (sent == (ssize_t)size)
		return RR_OK;
	if (sent < 0 && errno == EAGAIN)
		return RR_AGAIN;
	/* Cut in two: what follows would be read as nonsense. The peer sees the end of the connection. */
	if (sent >= 0)
		shutdown(socket, SHUT_WR);
	return RR_AGAIN; /* the end shows when it is read */
}

rr_status rr_far_say(struct rr_edge *edge, enum rr_far_message kind, uint32_t channel, const void *body, uint32_t bytes)
{
	return edge->state == RR_EDGE_UP ? say(edge->socket, kind, channel, body, bytes) : RR_AGAIN;
}

rr_status rr_far_send(struct rr_far *far, int32_t peer, uint32_t channel, const void *body, uint32_t bytes)
{
	if (bytes > RR_FAR_BODY_MAX)
		return rr_fail(RR_ERR_ARGUMENT, "a set-up message of %u bytes: at most %u are sent", bytes, RR_FAR_BODY_MAX);
	return rr_far_say(&far->edges[peer], RR_FAR_SETUP, channel, body, bytes);
}

void rr_far_tell_end(struct rr_far *far)
{
	struct failed_message failed = {.op_done = rr_own64(&far->page->op_done), .error = far->page->error};
	bool is_failed = rr_own32(&far->page->state) == RR_PAGE_FAILED;
	enum rr_far_message kind = is_failed ? RR_FAR_FAILED : RR_FAR_CLOSED;
	struct rr_state_message state;
	const void *body = is_failed ? (const void *)&failed : &state;
	uint32_t bytes = is_failed ? sizeof(failed) : sizeof(state);

	rr_far_fill_state(far, 0, &state);
	for (int32_t r = 0; r < far->world; r++)
		if (far->edges[r].page)
			rr_far_say(&far->edges[r], kind, 0, body, bytes);
	/* Who has read our proof has the edge up, and would take its end for our death. */
	for (uint32_t i = 0; i < RR_FAR_PENDING_MAX; i++) {
		const struct rr_pending *pending = &far->pending[i];
		if (pending->step == RR_PENDING_WELCOME && pending->greeting.stream == RR_FAR_CONTROL)
			say(pending->socket, kind, 0, body, bytes);
	}
}

void rr_far_told(struct rr_far *far, int32_t peer, uint64_t op, const struct rr_descriptor *descriptor)
{
	struct rr_page *page = far->edges[peer].page;
	uint32_t at = (uint32_t)(op % RR_DESCRIPTOR_COUNT);

	if (rr_own64(&page->entries[op % RR_ENTRY_COUNT]) >> 8 >= op)
		return;
	far->edges[peer].heard_ns = rr_now_ns(); /* over its links: it lives */
	if (descriptor)
		page->descriptors[at] = *descriptor;
	rr_far_note_done(page, op - 1);
	if (descriptor)
		rr_publish64(&page->entries[op % RR_ENTRY_COUNT], rr_entry(op, at));
}

/* What a peer tells of its failure is shown and passed on: texts end, and numbers are of this world. */
static void bound_error(rr_error *error, int32_t world)
{
	error->transport[sizeof(error->transport) - 1] = 0;
	error->collective[sizeof(error->collective) - 1] = 0;
	error->message[sizeof(error->message) - 1] = 0;
	error->hint[sizeof(error->hint) - 1] = 0;
	if (error->rank < -1 || error->rank >= world)
		error->rank = -1;
	if (error->peer < -1 || error->peer >= world)
		error->peer = -1;
	rr_verdict *verdict = &error->verdict;
	verdict->transport[sizeof(verdict->transport) - 1] = 0;
	verdict->text[sizeof(verdict->text) - 1] = 0;
	verdict->evidence[sizeof(verdict->evidence) - 1] = 0;
	if (verdict->rank < -1 || verdict->rank >= world)
		verdict->rank = -1;
	if (verdict->peer < -1 || verdict->peer >= world)
		verdict->peer = -1;
}

static bool take_message(struct rr_far *far, struct rr_edge *edge, const struct rr_message_head *head, const void *body)
{
	const struct rr_state_message *state = body;
	const struct failed_message *failed = body;
	uint32_t channel = head->kind >> 8;

	if (channel >= edge->served_count)
		return false;
	edge->heard_ns = rr_now_ns();
	const struct rr_served *served = &edge->served[channel];
	switch ((enum rr_far_message)(head->kind & 0xff)) {
	case RR_FAR_SETUP:
		if (served->ops->message)
			served->ops->message(served->user, body, head->bytes);
		return true;
	case RR_FAR_WANT:
		rr_far_want_streams(far, edge);
		return true;
	case RR_FAR_STATE:
		if (head->bytes != sizeof(*state))
			return false;
		rr_far_take_state(far, edge, state);
		return true;
	case RR_FAR_COUNTS:
		if (head->bytes != sizeof(struct rr_counts_message))
			return false;
		rr_far_take_counts(edge, body);
		return true;
	case RR_FAR_WITNESS:
		return head->bytes == sizeof(struct rr_witness_message) && rr_far_take_witness(far, edge, body);
	case RR_FAR_FAILED:
		if (head->bytes != sizeof(*failed))
			return false;
		rr_far_note_done(edge->page, failed->op_done);
		edge->page->error = failed->error;
		bound_error(&edge->page->error, far->world);
		rr_publish32(&edge->page->state, RR_PAGE_FAILED);
		return true;
	case RR_FAR_CLOSED:
		if (head->bytes != sizeof(*state))
			return false;
		rr_far_note_done(edge->page, state->op_done);
		rr_far_take_elsewhere(edge->page, state);
		rr_publish32(&edge->page->state, RR_PAGE_CLOSED);
		return true;
	}
	return false;
}

static void lose(struct rr_far *far, struct rr_edge *edge, int failed)
{
	uint32_t state = rr_own32(&edge->page->state);

	edge->lost_errno = failed;
	edge->lost = state == RR_PAGE_RUNNING;
	end_edge(far, edge);
}

static void read_edge(struct rr_far *far, struct rr_edge *edge)
{
	while (edge->state == RR_EDGE_UP) {
		struct rr_message_head *head = (struct rr_message_head *)(void *)edge->input;
		size_t want = sizeof(*head);

		if (edge->got >= sizeof(*head)) {
			if (head->bytes > RR_FAR_BODY_MAX) {
				lose(far, edge, EPROTO);
				return;
			}
			want += head->bytes;
		}
		if (edge->got == want && edge->got >= sizeof(*head)) {
			edge->got = 0;
			if (!take_message(far, edge, head, edge->input + sizeof(*head)))
				lose(far, edge, EPROTO);
			continue;
		}
		ssize_t got = recv(edge->socket, edge->input + edge->got, want - edge->got, MSG_DONTWAIT);
		if (got > 0) {
			edge->got += (uint32_t)got;
			continue;
		}
		if (got < 0 && errno == EINTR)
			continue;
		if (got == 0 || errno != EAGAIN)
			lose(far, edge, got == 0 ? 0 : errno);
		return;
	}
}

void rr_far_unserve(struct rr_far *far, int32_t peer, uint32_t channel)
{
	static const struct rr_edge_ops nobody;

	far->edges[peer].served[channel].ops = &nobody;
}

void rr_far_attend(struct rr_far *far, bool on)
{
	far->attending += on ? 1u : UINT32_MAX;
}

static void attend(const struct rr_far *far)
{
	for (int32_t r = 0; r < far->world; r++)
		for (uint32_t c = 0; c < far->edges[r].served_count; c++) {
			const struct rr_served *served = &far->edges[r].served[c];
			if (served->ops->attend)
				served->ops->attend(served->user);
		}
}

int32_t rr_far_look(struct rr_far *far)
{
	struct epoll_event events[EVENTS_MAX];
	uint64_t now_ns = rr_now_ns();
	int count = epoll_wait(far->control, events, EVENTS_MAX, 0);

	for (int i = 0; i < count; i++) {
		uint64_t tag = events[i].data.u64;
		if (tag == RR_FAR_TAG_LISTENER)
			rr_far_accept(far);
		else if (tag >> 32 == 1)
			rr_far_pending_event(far, &far->pending[tag & 0xffffffff]);
		else
			read_edge(far, &far->edges[tag & 0xffffffff]);
	}
	rr_far_pending_time(far, now_ns);
	rr_far_dial_on(far, now_ns);
	if (far->attending)
		attend(far);
	for (int32_t r = 0; r < far->world; r++)
		if (far->edges[r].lost && rr_far_inquire(far, r, NULL) != RR_INQUIRY_OPEN)
			return r;
	return -1;
}
