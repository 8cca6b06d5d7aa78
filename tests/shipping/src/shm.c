/* shm.c - the ranks of one node in one process; see shipping.h. Each channel of an edge has segments of its own. */
#include <stdlib.h>
#include <string.h>

#include "link_shm.h"
#include "shipping.h"
#include "status.h"
#include "test_node.h"

struct nodes {
	uint32_t count;
	struct node of[RR_CHANNELS_MAX];
};

static rr_status join(struct shipping *world, struct node *node, uint32_t channel)
{
	struct rr_sim *sim = world->sim;
	uint32_t base = channel * (uint32_t)sim->world;
	rr_status status = RR_OK;

	for (int32_t r = 0; r < sim->world; r++)
		for (int32_t p = 0; p < sim->world && status == RR_OK; p++) {
			struct rr_engine *engine = &sim->engines[r];
			if (p == r)
				continue;
			status = rr_link_shm_open(&node->shms[r], p, true, false, &engine->out[base + (uint32_t)p]);
			if (status == RR_OK)
				status = rr_link_shm_open(&node->shms[r], p, false, false, &engine->in[base + (uint32_t)p]);
			if (status == RR_OK)
				rr_link_shm_pair(engine->out[base + (uint32_t)p], engine->in[base + (uint32_t)p]);
		}
	for (int32_t r = 0; r < sim->world; r++)
		for (int32_t p = 0; p < sim->world && status == RR_OK; p++)
			if (p != r)
				status = shipping_watch(world, r, p, sim->engines[r].out[base + (uint32_t)p],
							sim->engines[p].in[base + (uint32_t)r]);
	return status;
}

static rr_status open_nodes(struct shipping *world)
{
	struct rr_sim *sim = world->sim;
	struct nodes *nodes = calloc(1, sizeof(*nodes));
	rr_status status = RR_OK;

	if (!nodes)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for a node");
	world->state = nodes;
	for (uint32_t c = 0; c < sim->channels[0] && status == RR_OK; c++) {
		node_make(&nodes->of[c], sim->world, sim->spec.slot_bytes, sim->spec.slot_count, world->spec.serial_start);
		nodes->count++;
		for (int32_t r = 0; r < sim->world; r++) /* all readers are far, or none */
			nodes->of[c].shms[r].apart_ns = rr_sim_random(sim, 2) ? UINT64_MAX : 0;
		status = join(world, &nodes->of[c], c);
	}
	return status;
}

/* As if each peer had been told of it and had mapped it. */
static rr_status reach(struct shipping *world, int32_t r, const struct rr_region *region)
{
	struct nodes *nodes = world->state;

	for (uint32_t c = 0; c < nodes->count; c++)
		for (int32_t p = 0; p < world->sim->world; p++) {
			struct rr_shm_peer *peer = &nodes->of[c].peers[p][r];
			struct rr_mapping *larger = realloc(peer->mappings, (peer->mapping_count + 1) * sizeof(*larger));
			if (!larger)
				return rr_fail(RR_ERR_NO_MEMORY, "no memory for a mapping");
			peer->mappings = larger;
			peer->mappings[peer->mapping_count++] =
				(struct rr_mapping){.id = region->id, .address = region->address, .bytes = region->bytes};
		}
	return RR_OK;
}

static void ended(struct shipping *world, int32_t r)
{
	struct nodes *nodes = world->state;

	for (uint32_t c = 0; c < nodes->count; c++)
		rr_publish64(&nodes->of[c].shms[r].page->op_done, world->sim->engines[r].op);
}

static void close_nodes(struct shipping *world)
{
	struct nodes *nodes = world->state;

	for (uint32_t c = 0; nodes && c < nodes->count; c++) {
		for (int32_t r = 0; r < nodes->of[c].world; r++)
			for (int32_t p = 0; p < nodes->of[c].world; p++)
				free(nodes->of[c].peers[r][p].mappings);
		node_free(&nodes->of[c]);
	}
	free(nodes);
}

const struct shipping_ops shipping_shm = {.open = open_nodes, .reach = reach, .ended = ended, .close = close_nodes};
