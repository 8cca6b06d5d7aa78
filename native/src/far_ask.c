/*
 * far_ask.c - what others know of a rank of another node.
 *
 * Of a rank that does not speak for itself, stopped or in user code, a rank of its node tells what the kernel says of it.
 * Of a rank whose connection has gone silent, every rank tells how long ago that rank's kernel has answered it: so a node
 * that is gone is told from an edge that is cut.
 */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <linux/tcp.h>
#include <string.h>
#include <sys/socket.h>

#include "clock.h"
#include "far_inside.h"
#include "order.h"
#include "verdict.h"

#define LIVES_MS 2000u               /* a kernel that lives answers keepalive every second */
#define INQUIRE_NS (1 * RR_NS_PER_S) /* for the answers; a silent node was not heard for 4 s before */
#define MUTE_NS (250 * RR_NS_PER_MS) /* a rank that waits in an operation answers within milliseconds */
#define REMARKABLE_NS (100 * RR_NS_PER_MS) /* a neighbour has not looked around for so long: ask the kernel for it */
#define FRESH_NS (2 * RR_STALE_NS)   /* told every 400 ms while the teller waits */

void rr_far_neighbours(struct rr_far *far, rr_far_neighbour_fn neighbour, rr_far_sent_fn sent, void *user)
{
	far->neighbour = neighbour;
	far->sent = sent;
	far->neighbour_user = user;
}

static bool same_node(const struct rr_far *far, int32_t a, int32_t b)
{
	return far->node && far->node[a] == far->node[b];
}

/* Since the kernel of the peer's node answered last. */
static uint32_t silent_ms(const struct rr_edge *edge)
{
	struct tcp_info info = {0};
	socklen_t size = sizeof(info);

	if (edge->state != RR_EDGE_UP || getsockopt(edge->socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0)
		return RR_FAR_NOT_KNOWN;
	return info.tcpi_last_ack_recv < info.tcpi_last_data_recv ? info.tcpi_last_ack_recv : info.tcpi_last_data_recv;
}

/* ---- told ---- */

static uint32_t in_ms(uint64_t ns)
{
	return ns / RR_NS_PER_MS < UINT32_MAX ? (uint32_t)(ns / RR_NS_PER_MS) : UINT32_MAX;
}

static void fill(const struct rr_far *far, int32_t about, struct rr_witness_message *out)
{
	struct rr_neighbour near = {0};

	memset(out, 0, sizeof(*out));
	out->about = about;
	out->silent_ms = RR_FAR_NOT_KNOWN;
	if (about >= 0 && far->neighbour && far->neighbour(far->neighbour_user, about, &near)) {
		out->life = near.life;
		out->quiet_ms = in_ms(near.quiet_ns);
		out->op_done = near.op_done;
		out->op_entered = near.op_entered;
		out->silent_ms = 0;
	} else if (about >= 0 && far->edges[about].page) {
		out->silent_ms = silent_ms(&far->edges[about]);
	}
}

void rr_far_tell_neighbours(struct rr_far *far, struct rr_edge *edge)
{
	struct rr_witness_message told;

	for (int32_t r = 0; r < far->world; r++) {
		if (r == far->rank || !same_node(far, r, far->rank))
			continue;
		fill(far, r, &told);
		if (told.op_entered <= told.op_done || told.life != RR_LIFE_RUNS || told.quiet_ms > REMARKABLE_NS / RR_NS_PER_MS)
			rr_far_say(edge, RR_FAR_WITNESS, 0, &told, sizeof(told));
	}
}

void rr_far_ask(struct rr_far *far, int32_t about)
{
	struct rr_witness_message question = {.about = about, .asks = 1};
	uint64_t now_ns = rr_now_ns();

	for (int32_t r = 0; r < far->world; r++) {
		struct rr_edge *edge = &far->edges[r];
		if (edge->page && rr_far_say(edge, RR_FAR_WITNESS, 0, &question, sizeof(question)) == RR_OK)
			edge->asked_ns = now_ns;
	}
}

/* ---- taken ---- */

static void answer(struct rr_far *far, struct rr_edge *edge, int32_t about)
{
	struct rr_witness_message told;

	fill(far, about, &told);
	rr_far_say(edge, RR_FAR_WITNESS, 0, &told, sizeof(told));
	edge->tell_next_ns = 0; /* and what this rank is in itself */
}

bool rr_far_take_witness(struct rr_far *far, struct rr_edge *edge, const struct rr_witness_message *told)
{
	if (told->about < -1 || told->about >= far->world || told->life < RR_LIFE_UNKNOWN || told->life > RR_LIFE_MUTE)
		return false;
	if (told->asks) {
		answer(far, edge, told->about);
		return true;
	}
	if (told->about < 0 || !far->edges[told->about].page) /* of itself, or of one that we see better */
		return true;
	struct rr_edge *about = &far->edges[told->about];
	if (about->inquiry == RR_INQUIRY_OPEN) {
		about->answers++;
		if (told->silent_ms < LIVES_MS)
			about->heard_by = edge->peer;
	}
	if (same_node(far, edge->peer, told->about)) {
		about->witness = (struct rr_witness){.told_ns = rr_now_ns(), .life = told->life, .quiet_ms = told->quiet_ms,
						     .op_done = told->op_done, .op_entered = told->op_entered};
		rr_far_note_done(about->page, told->op_done);
	}
	return true;
}

/* ---- concluded ---- */

/*
 * It was asked, its node answers, and it does not: it is no rank that waits. Nor one without a processor, which is as quiet
 * for a while: who waits tells again before RR_STALE_NS are over.
 */
static bool is_mute(const struct rr_edge *edge, uint64_t now_ns)
{
	return edge->asked_ns && edge->heard_ns < edge->asked_ns && now_ns - edge->asked_ns > MUTE_NS &&
	       now_ns - edge->heard_ns > RR_STALE_NS && silent_ms(edge) < LIVES_MS;
}

rr_life rr_far_life(const struct rr_far *far, int32_t peer)
{
	const struct rr_edge *edge = &far->edges[peer];

	if (edge->lost && !rr_far_is_silence(edge->lost_errno))
		return RR_LIFE_ENDED;
	if (edge->lost)
		return edge->inquiry == RR_INQUIRY_LIVES ? RR_LIFE_UNKNOWN : RR_LIFE_LOST;
	return RR_LIFE_UNKNOWN;
}

void rr_far_see(const struct rr_far *far, int32_t peer, uint64_t now_ns, rr_rank_seen *seen)
{
	const struct rr_edge *edge = &far->edges[peer];
	const struct rr_witness *witness = &edge->witness;

	seen->life = rr_far_life(far, peer);
	if (seen->life != RR_LIFE_UNKNOWN)
		return;
	if (!witness->told_ns || now_ns - witness->told_ns > FRESH_NS || witness->op_entered < seen->op_entered) {
		seen->life = is_mute(edge, now_ns) ? RR_LIFE_MUTE : RR_LIFE_UNKNOWN;
		return;
	}
	if (witness->op_entered > seen->op_entered) {
		seen->op_entered = witness->op_entered; /* what it called, and what it waits in, was of an earlier one */
		memset(seen->wait_kind, 0, sizeof(seen->wait_kind));
		seen->collective = -1;
		seen->descriptor = 0;
		seen->call[0] = 0;
	}
	seen->op_done = witness->op_done > seen->op_done ? witness->op_done : seen->op_done;
	seen->life = witness->life;
	/* It waits, and says itself for whom; or it has not done so yet. */
	if (seen->life == RR_LIFE_RUNS && seen->op_entered > seen->op_done && witness->quiet_ms < RR_QUIET_NS / RR_NS_PER_MS)
		seen->life = RR_LIFE_UNKNOWN;
}

/* Of all other nodes, two at least, none is heard. */
static bool is_alone(const struct rr_far *far)
{
	int32_t first = -1;
	bool several = false;

	for (int32_t r = 0; r < far->world; r++) {
		const struct rr_edge *edge = &far->edges[r];
		if (!edge->page)
			continue;
		bool silent = (edge->lost && rr_far_is_silence(edge->lost_errno)) ||
			      (edge->state == RR_EDGE_UP && silent_ms(edge) >= LIVES_MS);
		if (!silent)
			return false;
		several = several || (first >= 0 && !same_node(far, first, r));
		first = r;
	}
	return several;
}

static void inquire(struct rr_far *far, struct rr_edge *edge)
{
	uint64_t now_ns = rr_now_ns();

	if (edge->inquiry == RR_INQUIRY_NONE) {
		edge->inquiry = RR_INQUIRY_OPEN;
		edge->inquired_ns = now_ns;
		edge->heard_by = -1;
		for (int32_t r = 0; r < far->world; r++) {
			const struct rr_edge *other = &far->edges[r];
			bool hears = other->page && silent_ms(other) < LIVES_MS;
			edge->asked += hears;
			if (hears && same_node(far, r, edge->peer)) /* the node answers on another connection of ours */
				edge->heard_by = far->rank;
		}
		if (edge->heard_by < 0)
			rr_far_ask(far, edge->peer);
	}
	if (edge->heard_by >= 0)
		edge->inquiry = RR_INQUIRY_LIVES;
	else if (edge->answers >= edge->asked || now_ns - edge->inquired_ns > INQUIRE_NS)
		edge->inquiry = is_alone(far) ? RR_INQUIRY_ALONE : RR_INQUIRY_GONE;
}

enum rr_inquiry rr_far_inquire(struct rr_far *far, int32_t peer, int32_t *heard_by)
{
	struct rr_edge *edge = &far->edges[peer];

	if (edge->lost && rr_far_is_silence(edge->lost_errno) && edge->inquiry <= RR_INQUIRY_OPEN)
		inquire(far, edge);
	if (heard_by)
		*heard_by = edge->heard_by;
	return edge->inquiry;
}
