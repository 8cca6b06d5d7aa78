/*
 * link_sim.c - a link of the simulated world.
 *
 * Messages take latency, jitter by seed, and the link's time for their bytes; a link keeps its order,
 * different links do not. Stricter than real links: a released slot is overwritten, a write in place
 * lands when it is committed or when it arrives (by seed), credit comes back after a latency. By seed again, what goes
 * alike to several ranks lies in one slot for all of them, which is overwritten when the last has released it.
 */
#include <stdlib.h>
#include <string.h>

#include "sim.h"
#include "status.h"

#define IN_FLIGHT_MAX 64u /* transfers of one link that need credit */
#define POISON 0xa5

struct rr_sim_common { /* a slot that several ranks read */
	uint32_t uses; /* reserved and not committed, or committed and not released */
	uint8_t bytes[];
};

struct message { /* one transfer, from its commit until its credit is back */
	struct rr_transfer transfer;
	uint64_t arrives_ns;
	uint64_t credit_ns; /* RR_SIM_NEVER until released */
	uint8_t *late;      /* WRITE: where the bytes wait until they land; NULL: they have landed */
	void *lands;
	struct rr_sim_common *common; /* SLOT: where the bytes lie; NULL: in the link's own slot */
};

struct edge {
	struct rr_sim *sim;
	int32_t from, to;
	uint64_t committed, released, credited;
	uint64_t free_ns, last_arrival_ns, busy_ns;
	struct message *messages; /* [room], by number: implied transfers run ahead without credit, any number of them */
	uint64_t room;
	uint8_t *slots;   /* [slot_count] of slot_bytes */
	uint8_t *staging; /* likewise, for late writes */
	bool late;        /* of the reserve under way */
	struct rr_sim_common *common; /* likewise */
	/* the sender's OPENs: the receiver may be some operations behind */
	struct rr_open opens[RR_SIM_OPERATIONS_MAX];
	uint64_t open_arrives_ns[RR_SIM_OPERATIONS_MAX];
	uint32_t ends; /* not closed yet */
};

struct link_sim {
	struct rr_link link;
	struct edge *edge;
};

static struct edge *edge_of(struct rr_link *link)
{
	return ((struct link_sim *)link)->edge;
}

static uint64_t delay(struct rr_sim *sim)
{
	return sim->spec.latency_ns + (sim->spec.jitter_ns ? rr_sim_random(sim, sim->spec.jitter_ns + 1) : 0);
}

/* A dead peer's link fails when the death is known; until then nothing comes. */
static rr_status peer_state(const struct edge *edge, int32_t peer)
{
	if (rr_sim_known_dead(edge->sim, peer)) {
		rr_fail(RR_ERR_LINK, "rank %d died", peer);
		rr_error_here()->peer = peer;
		return RR_ERR_LINK;
	}
	return RR_OK;
}

static void *memory_of(const struct edge *edge, int32_t rank, enum rr_buffer_id buffer, uint64_t coordinate)
{
	return edge->sim->engines[rank].buffers[buffer].zero + coordinate;
}

/* As a NIC, or the kernel, would: memory that its owner's plan does not state is reached by nobody else. */
static rr_status reaches(const struct edge *edge, int32_t rank, const struct rr_transfer *transfer)
{
	const struct rr_plan *plan = edge->sim->plans[rank];
	uint64_t begin = plan->input_begin, end = plan->input_end;

	if (transfer->buffer == RR_OUTPUT) {
		begin = plan->scattered ? 0 : plan->output_begin;
		end = plan->scattered ? plan->vector_bytes : plan->output_end;
	}
	if (transfer->buffer == RR_SCRATCH) /* its cells are their owner's; the coordinate is the vector's */
		return RR_OK;
	if (transfer->coordinate >= begin && transfer->coordinate <= end && transfer->bytes <= end - transfer->coordinate)
		return RR_OK;
	return rr_fail(RR_ERR_PROTOCOL, "bytes %llu to %llu of a buffer of rank %d that has %llu to %llu: remote access error",
		       (unsigned long long)transfer->coordinate, (unsigned long long)(transfer->coordinate + transfer->bytes), rank,
		       (unsigned long long)begin, (unsigned long long)end);
}

/* ---- OPEN ---- */

static rr_status sim_open_post(struct rr_link *link, const struct rr_open *open, const struct rr_descriptor *descriptor)
{
	struct edge *edge = edge_of(link);

	uint64_t at = open->op % RR_SIM_OPERATIONS_MAX;

	(void)descriptor; /* all ranks run one plan */
	edge->opens[at] = *open;
	edge->open_arrives_ns[at] = edge->sim->now_ns + delay(edge->sim);
	return RR_OK;
}

static rr_status sim_open_peek(struct rr_link *link, uint64_t op, const struct rr_open **open)
{
	struct edge *edge = edge_of(link);

	uint64_t at = op % RR_SIM_OPERATIONS_MAX;

	if (edge->opens[at].op == op && rr_sim_due(edge->sim, edge->open_arrives_ns[at])) {
		*open = &edge->opens[at];
		return RR_OK;
	}
	return peer_state(edge, edge->from) == RR_OK ? RR_AGAIN : RR_ERR_LINK;
}

static rr_status sim_open_accept(struct rr_link *link, const struct rr_open *open)
{
	(void)link;
	(void)open;
	return RR_OK;
}

/* Room for one more of either end: what is not credited yet keeps its place. */
static bool make_room(struct edge *edge)
{
	uint64_t end = edge->committed > edge->released ? edge->committed : edge->released;

	if (end - edge->credited + 1 < edge->room)
		return true;
	struct message *larger = calloc(2 * edge->room, sizeof(*larger));
	if (!larger) {
		edge->sim->out_of_memory = true;
		return false;
	}
	for (uint64_t n = edge->credited; n < end; n++)
		larger[n % (2 * edge->room)] = edge->messages[n % edge->room];
	free(edge->messages);
	edge->messages = larger;
	edge->room *= 2;
	return true;
}

/* ---- sender ---- */

static void take_credits(struct edge *edge)
{
	while (edge->credited < edge->released &&
	       rr_sim_due(edge->sim, edge->messages[edge->credited % edge->room].credit_ns))
		edge->credited++;
}

static void leave_common(struct edge *edge, struct rr_sim_common **common)
{
	struct rr_sim *sim = edge->sim;

	if (*common && --(*common)->uses == 0) {
		if (sim->common[edge->from] == *common)
			sim->common[edge->from] = NULL;
		memset((*common)->bytes, POISON, sim->spec.slot_bytes);
		free(*common);
	}
	*common = NULL;
}

/* Join the slot that another link was given, begin one for the links that follow, or neither. */
static uint8_t *take_common(struct edge *edge, const struct rr_transfer *transfer)
{
	struct rr_sim *sim = edge->sim;
	struct rr_sim_common *last = sim->common[edge->from];

	if (last && transfer->given == last->bytes)
		edge->common = rr_sim_random(sim, 4) ? last : NULL;
	else if (transfer->alike > 1 && rr_sim_random(sim, 2))
		edge->common = sim->common[edge->from] = calloc(1, sizeof(*last) + sim->spec.slot_bytes);
	if (!edge->common)
		return NULL;
	edge->common->uses++;
	return edge->common->bytes;
}

static rr_status sim_reserve(struct rr_link *link, const struct rr_transfer *transfer, void **place)
{
	struct edge *edge = edge_of(link);
	uint64_t at = edge->committed % edge->sim->spec.slot_count * edge->sim->spec.slot_bytes;

	take_credits(edge);
	if ((int64_t)(edge->committed - edge->credited) >= (int64_t)edge->sim->spec.slot_count)
		return peer_state(edge, edge->to) == RR_OK ? RR_AGAIN : RR_ERR_LINK;
	edge->late = false;
	*place = NULL;
	if (transfer->mode == RR_MODE_SLOT) {
		*place = take_common(edge, transfer);
		*place = *place ? *place : edge->slots + at;
	}
	if (transfer->mode == RR_MODE_WRITE) {
		rr_status status = reaches(edge, edge->to, transfer);
		if (status != RR_OK)
			return status;
		edge->late = rr_sim_random(edge->sim, 2);
		*place = edge->late ? edge->staging + at : memory_of(edge, edge->to, transfer->buffer, transfer->coordinate);
	}
	return RR_OK;
}

/* On its way: what the receiver will read, not what the sender has. */
static void corrupt(struct edge *edge, const struct rr_transfer *transfer)
{
	struct rr_sim *sim = edge->sim;
	uint64_t at = edge->committed % sim->spec.slot_count * sim->spec.slot_bytes;
	uint8_t *bytes;

	if (!sim->spec.corrupt_transfer || sim->result.transfers < sim->spec.corrupt_transfer || sim->result.corrupted ||
	    !transfer->bytes || (transfer->mode != RR_MODE_SLOT && transfer->mode != RR_MODE_WRITE))
		return;
	if (transfer->mode == RR_MODE_SLOT)
		bytes = edge->common ? edge->common->bytes : edge->slots + at;
	else
		bytes = edge->late ? edge->staging + at : memory_of(edge, edge->to, transfer->buffer, transfer->coordinate);
	bytes[rr_sim_random(sim, transfer->bytes)] ^= (uint8_t)(1u << rr_sim_random(sim, 8));
	sim->result.corrupted = 1;
}

static void sim_commit(struct rr_link *link, const struct rr_transfer *transfer)
{
	struct edge *edge = edge_of(link);
	struct rr_sim *sim = edge->sim;
	if (!make_room(edge))
		return;
	struct message *message = &edge->messages[edge->committed % edge->room];
	uint64_t cost = transfer->bytes * sim->spec.transfer_ps_per_byte / 1000;
	uint64_t begin = edge->free_ns > sim->now_ns ? edge->free_ns : sim->now_ns;

	link->sent++;
	link->bytes += transfer->bytes;
	sim->result.transfers++;
	sim->result.transfer_bytes += transfer->bytes;
	if (edge->committed >= edge->released)
		message->credit_ns = RR_SIM_NEVER;
	message->common = NULL;
	if (transfer->implied) { /* the receiver may have been here before */
		edge->committed++;
		return;
	}
	corrupt(edge, transfer);
	edge->free_ns = begin + cost;
	edge->busy_ns += cost;
	message->transfer = *transfer;
	message->arrives_ns = edge->free_ns + delay(sim);
	if (message->arrives_ns < edge->last_arrival_ns)
		message->arrives_ns = edge->last_arrival_ns;
	edge->last_arrival_ns = message->arrives_ns;
	message->common = edge->common;
	edge->common = NULL;
	message->late = NULL;
	if (edge->late) {
		message->late = edge->staging + edge->committed % sim->spec.slot_count * sim->spec.slot_bytes;
		message->lands = memory_of(edge, edge->to, transfer->buffer, transfer->coordinate);
	}
	edge->committed++;
	if (edge->busy_ns > sim->result.busiest_link_ns)
		sim->result.busiest_link_ns = edge->busy_ns;
}

static void sim_abort(struct rr_link *link)
{
	edge_of(link)->late = false;
	leave_common(edge_of(link), &edge_of(link)->common);
}

static uint64_t sim_released(struct rr_link *link)
{
	struct edge *edge = edge_of(link);

	take_credits(edge);
	return edge->credited;
}

/* ---- receiver ---- */

static rr_status sim_peek(struct rr_link *link, const struct rr_transfer *wanted, const void **data)
{
	struct edge *edge = edge_of(link);
	struct message *message = &edge->messages[edge->released % edge->room];
	const struct rr_transfer *sent = &message->transfer;

	bool reads = wanted->implied || wanted->mode == RR_MODE_SOURCE || wanted->mode == RR_MODE_CMA;

	if (reads) {
		rr_status status = reaches(edge, edge->from, wanted);
		if (status != RR_OK)
			return status;
	}
	if (wanted->implied) {
		*data = memory_of(edge, edge->from, wanted->buffer, wanted->coordinate);
		return RR_OK;
	}
	if (edge->released >= edge->committed || !rr_sim_due(edge->sim, message->arrives_ns))
		return edge->released >= edge->committed && peer_state(edge, edge->from) != RR_OK ? RR_ERR_LINK : RR_AGAIN;
	if (sent->op != wanted->op || sent->order != wanted->order || sent->slice != wanted->slice ||
	    sent->bytes != wanted->bytes || sent->mode != wanted->mode)
		return rr_fail(RR_ERR_PROTOCOL, "rank %d sent row %u slice %u (mode %d), expected row %u slice %u (mode %d)",
			       edge->from, sent->order, sent->slice, (int)sent->mode, wanted->order, wanted->slice,
			       (int)wanted->mode);
	link->crc = sent->crc;
	link->origin = sent->origin;
	if (message->late) {
		memcpy(message->lands, message->late, sent->bytes);
		message->late = NULL;
	}
	switch (sent->mode) {
	case RR_MODE_SLOT:
		*data = edge->slots + edge->released % edge->sim->spec.slot_count * edge->sim->spec.slot_bytes;
		*data = message->common ? message->common->bytes : *data;
		break;
	case RR_MODE_SOURCE:
	case RR_MODE_CMA:
		*data = memory_of(edge, edge->from, sent->buffer, sent->coordinate);
		break;
	case RR_MODE_WRITE:
	case RR_MODE_STREAM:
		*data = wanted->landing;
		break;
	}
	return RR_OK;
}

static void sim_release(struct rr_link *link, uint32_t bytes)
{
	struct edge *edge = edge_of(link);
	if (!make_room(edge))
		return;
	struct message *message = &edge->messages[edge->released % edge->room];

	if (edge->released < edge->committed && message->common)
		leave_common(edge, &message->common);
	else if (edge->released < edge->committed && message->transfer.mode == RR_MODE_SLOT)
		memset(edge->slots + edge->released % edge->sim->spec.slot_count * edge->sim->spec.slot_bytes, POISON, bytes);
	message->credit_ns = edge->sim->now_ns + delay(edge->sim);
	edge->released++;
	link->sent++;
	link->bytes += bytes;
}

/* ---- both ---- */

static void sim_flush(struct rr_link *link)
{
	(void)link; /* ranks of the simulated world never sleep */
}

static void sim_close(struct rr_link *link)
{
	struct edge *edge = edge_of(link);

	if (--edge->ends == 0) {
		for (; edge->released < edge->committed; edge->released++)
			leave_common(edge, &edge->messages[edge->released % edge->room].common);
		leave_common(edge, &edge->common);
		free(edge->messages);
		free(edge->slots);
		free(edge->staging);
		free(edge);
	}
	free(link);
}

static const struct rr_link_ops sim_ops = {
	.transport = "sim",
	.open_post = sim_open_post,
	.open_peek = sim_open_peek,
	.open_accept = sim_open_accept,
	.reserve = sim_reserve,
	.commit = sim_commit,
	.abort = sim_abort,
	.released = sim_released,
	.peek = sim_peek,
	.release = sim_release,
	.flush = sim_flush,
	.close = sim_close,
};

static rr_status open_edge(struct rr_sim *sim, int32_t from, int32_t to, struct rr_link **out, struct rr_link **in)
{
	struct edge *edge = calloc(1, sizeof(*edge));
	struct link_sim *sender = calloc(1, sizeof(*sender));
	struct link_sim *receiver = calloc(1, sizeof(*receiver));
	size_t bytes = (size_t)sim->spec.slot_count * sim->spec.slot_bytes;

	if (sim->spec.slot_count < 1 || sim->spec.slot_count > IN_FLIGHT_MAX) {
		free(edge);
		free(sender);
		free(receiver);
		return rr_fail(RR_ERR_ARGUMENT, "slot_count %u: accepted are 1..%u", sim->spec.slot_count, IN_FLIGHT_MAX);
	}
	if (edge) {
		edge->slots = malloc(bytes);
		edge->staging = malloc(bytes);
		edge->room = IN_FLIGHT_MAX;
		edge->messages = calloc(edge->room, sizeof(*edge->messages));
	}
	if (!edge || !sender || !receiver || !edge->slots || !edge->staging || !edge->messages) {
		if (edge) {
			free(edge->messages);
			free(edge->slots);
			free(edge->staging);
		}
		free(edge);
		free(sender);
		free(receiver);
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for a simulated link");
	}
	edge->sim = sim;
	edge->from = from;
	edge->to = to;
	edge->ends = 2;
	*sender = (struct link_sim){.link = {.ops = &sim_ops, .peer = to}, .edge = edge};
	*receiver = (struct link_sim){.link = {.ops = &sim_ops, .peer = from}, .edge = edge};
	*out = &sender->link;
	*in = &receiver->link;
	return RR_OK;
}

static rr_status open_all(struct rr_sim *sim)
{
	rr_status status = RR_OK;

	for (int32_t r = 0; r < sim->world; r++)
		for (int32_t i = 0; i < sim->world * (int32_t)sim->channels[r] && status == RR_OK; i++) {
			int32_t p = i % sim->world, base = i - p;
			if (p != r)
				status = open_edge(sim, r, p, &sim->engines[r].out[i], &sim->engines[p].in[base + r]);
		}
	return status;
}

static rr_status draw_places(struct rr_sim *sim, int32_t r, struct rr_buffer buffers[RR_BUFFER_COUNT],
			     struct rr_place places[RR_BUFFER_COUNT])
{
	(void)r;
	(void)buffers;
	for (int b = 0; b < RR_BUFFER_COUNT; b++)
		if (sim->spec.registered == 1 || (sim->spec.registered == 2 && rr_sim_random(sim, 2)))
			places[b].reach = RR_REACH_REGION;
	return RR_OK;
}

const struct rr_sim_links rr_sim_own_links = {.open = open_all, .begin = draw_places};
