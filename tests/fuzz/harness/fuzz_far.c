/*
 * fuzz_far.c - connections between nodes: what a stranger says before it has proven anything, and what a rank says on
 * a proven control connection.
 *
 *   byte 0   0: a greeting and an answer; 1: the same, with the job's token put in; else: messages of a proven rank
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "far_inside.h"
#include "fuzz.h"
#include "order.h"
#include "status.h"

#define LOOKS 4

static uint32_t heard;

static void hear(void *user, const void *body, uint32_t bytes)
{
	(void)user;
	for (uint32_t i = 0; i < bytes; i++)
		heard += ((const uint8_t *)body)[i];
}

static void take_stream(void *user, uint32_t stream, int socket)
{
	(void)user, (void)stream;
	close(socket);
}

static const struct rr_edge_ops served = {.message = hear, .stream = take_stream};

static void watch(struct rr_far *far, int socket, uint64_t tag)
{
	far->control = epoll_create1(EPOLL_CLOEXEC);
	if (far->control < 0)
		abort();
	rr_far_watch(far, socket, tag, false);
}

static void put_token(const struct rr_far *far, uint8_t *bytes, size_t size)
{
	struct rr_greeting greeting;

	if (size < sizeof(greeting))
		return;
	memcpy(&greeting, bytes, sizeof(greeting));
	greeting.magic = RR_FAR_MAGIC;
	greeting.version = RR_FAR_VERSION;
	greeting.to = far->rank;
	memcpy(greeting.token, far->token, sizeof(greeting.token));
	memcpy(bytes, &greeting, sizeof(greeting));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct rr_page *page = aligned_alloc(RR_CACHE_LINE, sizeof(*page));
	struct rr_edge *edges = calloc(2, sizeof(*edges));
	struct rr_far *far = calloc(1, sizeof(*far));
	uint8_t mode, bytes[8192];
	int pair[2];

	if (size < 2 || size > sizeof(bytes) || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0)
		goto free_all;
	mode = data[0];
	memcpy(bytes, data + 1, size - 1);
	memset(page, 0, sizeof(*page));
	rr_note32(&page->state, RR_PAGE_RUNNING);
	*far = (struct rr_far){.rank = 1, .world = 2, .listener = -1, .sleeper = -1, .bell = -1, .edges = edges, .token = "a token of ours"};
	edges[0] = (struct rr_edge){.page = page, .socket = -1, .streams = 2, .streams_wanted = 2, .served_count = 1,
				    .served = {{.ops = &served, .streams = 2}}, .dial_again_ns = UINT64_MAX};
	edges[1].socket = -1;
	if (mode < 2) {
		far->pending[0] = (struct rr_pending){.step = RR_PENDING_GREETING, .socket = pair[0], .deadline_ns = UINT64_MAX,
						      .address.ss_family = AF_INET};
		watch(far, pair[0], RR_FAR_TAG_PENDING(0));
		if (mode == 1)
			put_token(far, bytes, size - 1);
	} else {
		edges[0].socket = pair[0];
		edges[0].state = RR_EDGE_UP;
		edges[0].input = malloc(sizeof(struct rr_message_head) + RR_FAR_BODY_MAX);
		watch(far, pair[0], RR_FAR_TAG_EDGE(0));
	}
	if (send(pair[1], bytes, size - 1, MSG_NOSIGNAL) != (ssize_t)size - 1)
		abort();
	for (int i = 0; i < LOOKS; i++)
		rr_far_look(far);
	rr_far_close(far); /* with edges, page and pair[0] */
	close(pair[1]);
	return 0;

free_all:
	free(page);
	free(edges);
	free(far);
	return 0;
}
