/*
 * verbs.c - edges over verbs, all ends in this process, over the library that RDMARING_LIBIBVERBS names: the substitute of
 * tests/verbs_sim, whose own thread moves the bytes. Between two acts of the ranks real time passes for that.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "clock.h"
#include "link_verbs.h"
#include "hello.h"
#include "shipping.h"
#include "status.h"

#define NAP_NS 20000
#define LAST_LOOKS 3 /* at control connections, which tell that all ranks close */

struct verbs {
	struct shipping_far *far;
	rr_options options;
	uint64_t moves; /* of the world, when it last was found without any */
	uint64_t still_ns; /* since when */
};

static rr_status open_edge(struct shipping *world, int32_t r, int32_t peer, uint32_t channel)
{
	struct verbs *verbs = world->state;
	struct rr_engine *engine = &world->sim->engines[r];
	uint32_t link = channel * (uint32_t)world->sim->world + (uint32_t)peer;
	const struct rr_hello *ours = shipping_far_hello(verbs->far, r), *theirs = shipping_far_hello(verbs->far, peer);
	struct rr_rail_pair pair = {0};
	char reason[192];

	if (!rr_rails_match(ours->rails, ours->rail_count, theirs->rails, theirs->rail_count, channel, &pair, reason, sizeof(reason)))
		return rr_fail(RR_ERR_SETUP, "no rail from rank %d to rank %d: %s", r, peer, reason);
	return rr_link_verbs_open(shipping_far_of(verbs->far, r), r, peer, &ours->rails[pair.our_rail], &pair, channel, &verbs->options,
				  false, &engine->out[link], &engine->in[link]);
}

static rr_status open_edges(struct shipping *world)
{
	struct rr_sim *sim = world->sim;
	int32_t count = sim->world;
	rr_status status = RR_OK;

	for (uint32_t i = 0; i < sim->channels[0] * (uint32_t)(count * count) && status == RR_OK; i++) {
		int32_t r = (int32_t)i / count % count, p = (int32_t)i % count;
		if (r != p)
			status = open_edge(world, r, p, i / (uint32_t)(count * count));
	}
	for (uint32_t i = 0; i < sim->channels[0] * (uint32_t)(count * count) && status == RR_OK; i++) {
		int32_t r = (int32_t)i / count % count, p = (int32_t)i % count;
		uint32_t base = i / (uint32_t)(count * count) * (uint32_t)count;
		if (r != p)
			status = shipping_watch(world, r, p, sim->engines[r].out[base + (uint32_t)p], sim->engines[p].in[base + (uint32_t)r]);
	}
	return status;
}

static rr_status open_verbs(struct shipping *world)
{
	struct verbs *verbs = calloc(1, sizeof(*verbs));
	rr_status status;

	if (!verbs)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for verbs");
	world->state = verbs;
	verbs->options = (rr_options){.slot_bytes = world->sim->spec.slot_bytes, .slot_count = world->sim->spec.slot_count,
				      .serial_start = world->spec.serial_start, .verbs = {.qps = world->spec.streams}};
	status = shipping_far_open(world->sim->world, &verbs->far);
	for (int32_t r = 0; r < world->sim->world && status == RR_OK; r++) {
		struct rr_hello *hello = shipping_far_hello(verbs->far, r);
		status = rr_rails_find(&verbs->options.verbs, hello->rails, &hello->rail_count, hello->rail_reason,
				       sizeof(hello->rail_reason));
	}
	return status == RR_OK ? open_edges(world) : status;
}

static rr_status look(struct shipping *world, int32_t r)
{
	struct verbs *verbs = world->state;
	int32_t lost = rr_far_look(shipping_far_of(verbs->far, r));

	return lost < 0 ? RR_OK : rr_fail(RR_ERR_LINK, "the control connection of rank %d to rank %d ended", r, lost);
}

static bool wait_for_bytes(struct shipping *world)
{
	const struct timespec nap = {.tv_nsec = NAP_NS};
	struct verbs *verbs = world->state;
	uint64_t now_ns = rr_now_ns();

	if (verbs->moves != world->sim->moves || !verbs->still_ns) {
		verbs->moves = world->sim->moves;
		verbs->still_ns = now_ns;
	}
	if (now_ns - verbs->still_ns > world->spec.wait_ms * RR_NS_PER_MS)
		return false;
	nanosleep(&nap, NULL);
	return true;
}

/* All close at once: nobody lingers for another's acknowledgement. */
static void say_closed(struct shipping *world)
{
	struct verbs *verbs = world->state;

	for (int32_t r = 0; verbs && verbs->far && r < world->sim->world; r++)
		shipping_far_end(verbs->far, r);
	for (int32_t i = 0; verbs && verbs->far && i < LAST_LOOKS * world->sim->world; i++)
		rr_far_look(shipping_far_of(verbs->far, i % world->sim->world));
}

static void close_verbs(struct shipping *world)
{
	struct verbs *verbs = world->state;

	if (verbs)
		shipping_far_close(verbs->far);
	free(verbs);
}

const struct shipping_ops shipping_verbs = {
	.open = open_verbs, .turn = look, .wait = wait_for_bytes, .before_close = say_closed, .close = close_verbs};
