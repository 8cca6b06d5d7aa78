/* enqueue_sim.c - a world whose ranks' lists are executed in an order drawn by seed; see enqueue_sim.h. */
#include "enqueue_sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "status.h"

#define BURST_MAX 6u /* entries of one stream in a row */

/* One direction of one edge in one channel. */
struct edge {
	char *slots;
	uint32_t *ready, *credit;
};

struct world {
	rr_enqueue_sim_spec spec;
	int32_t world;
	uint32_t channels, streams; /* streams of a rank */
	uint64_t random;
	uint32_t *edge_channels;
	struct rr_plan **plans;
	struct rr_enqueue **lists;
	struct rr_recorder *recorders;
	void **scratch;
	struct edge *edges; /* [channels][from][to] */
	uint32_t *flags;    /* of all edges */
	uint32_t flag_count;
	uint32_t *flag_clocks;    /* [flags][streams of the world] */
	uint32_t **record_clocks; /* [world] [records][streams of the world] */
	bool **recorded;          /* [world][records] */
	uint32_t *heads;          /* [world][streams] next entry, or of one queue at stream 0 */
	struct rr_races races;
	rr_enqueue_sim_result result;
};

static uint64_t draw(struct world *world, uint64_t below)
{
	/* splitmix64 (Steele, Lea, Flood, OOPSLA 2014) */
	uint64_t z = world->random += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return (z ^ z >> 31) % below;
}

static struct edge *edge_of(struct world *world, uint32_t channel, int32_t from, int32_t to)
{
	return &world->edges[((size_t)channel * (size_t)world->world + (size_t)from) * (size_t)world->world + (size_t)to];
}

/* ---- execution ---- */

static uint32_t *flag_clock(struct world *world, const uint32_t *flag)
{
	return &world->flag_clocks[(size_t)(flag - world->flags) * world->races.stream_count];
}

static bool flags_are_set(const struct rr_recorder *recorder, const struct rr_entry *entry)
{
	for (uint32_t i = 0; i < entry->count; i++)
		if (*(const uint32_t *)recorder->pointers[entry->first + i] != 1)
			return false;
	return true;
}

static bool may_go(const struct world *world, int32_t rank, const struct rr_entry *entry)
{
	if (entry->dropped)
		return true;
	if (entry->kind == RR_ENTRY_WAIT_FLAGS)
		return entry->hasty || flags_are_set(&world->recorders[rank], entry);
	return entry->kind != RR_ENTRY_WAIT_EVENT || world->recorded[rank][entry->record];
}

static rr_status combine(struct world *world, int32_t rank, uint32_t stream, const struct rr_entry *entry)
{
	const void **pointers = &world->recorders[rank].pointers[entry->first];
	struct rr_combine pass = entry->combine;
	uint64_t bytes = pass.count * world->plans[rank]->element_bytes;
	void *targets[RR_COMBINE_TARGETS_MAX];
	rr_status status = RR_OK;

	for (uint32_t i = 0; i < pass.dst_count; i++)
		targets[i] = (void *)(uintptr_t)pointers[i];
	pass.dst = targets;
	pass.src = &pointers[pass.dst_count];
	for (uint32_t i = 0; i < pass.src_count && status == RR_OK; i++)
		status = rr_races_touch(&world->races, stream, pass.src[i], bytes * (pass.wide_sources >> i & 1 ? 2 : 1), false);
	for (uint32_t i = 0; i < pass.dst_count && status == RR_OK; i++)
		status = rr_races_touch(&world->races, stream, pass.dst[i], bytes * (pass.wide ? 2 : 1), true);
	if (status == RR_OK)
		entry->pass(&pass);
	return status;
}

static rr_status copy(struct world *world, uint32_t stream, const struct rr_entry *entry)
{
	rr_status status = rr_races_touch(&world->races, stream, entry->from, entry->bytes, false);

	if (status == RR_OK)
		status = rr_races_touch(&world->races, stream, entry->to, entry->bytes, true);
	if (status == RR_OK)
		memcpy(entry->to, entry->from, entry->bytes);
	if (stream & 1)
		world->result.copied_bytes += entry->bytes;
	return status;
}

static rr_status carry_out(struct world *world, int32_t rank, const struct rr_entry *entry)
{
	struct rr_races *races = &world->races;
	uint32_t stream = (uint32_t)rank * world->streams + entry->stream;
	uint32_t *clock = rr_races_clock(races, stream);
	uint32_t *record = &world->record_clocks[rank][(size_t)entry->record * races->stream_count];

	clock[stream]++;
	if (entry->dropped)
		return RR_OK;
	switch (entry->kind) {
	case RR_ENTRY_WAIT_FLAGS:
		for (uint32_t i = 0; i < entry->count; i++) {
			uint32_t *flag = (uint32_t *)(uintptr_t)world->recorders[rank].pointers[entry->first + i];
			if (!entry->hasty)
				rr_races_join(races, clock, flag_clock(world, flag));
			*flag = entry->forgetful ? *flag : 0;
		}
		return RR_OK;
	case RR_ENTRY_SET_FLAG:
		if (*(uint32_t *)entry->to)
			rr_races_tell(races, "rank %d sets a flag that is set: one of the two signals is lost", rank);
		*(uint32_t *)entry->to = 1;
		memcpy(flag_clock(world, entry->to), clock, races->stream_count * sizeof(*clock));
		return RR_OK;
	case RR_ENTRY_COPY: return copy(world, stream, entry);
	case RR_ENTRY_COMBINE: return combine(world, rank, stream, entry);
	case RR_ENTRY_RECORD:
		memcpy(record, clock, races->stream_count * sizeof(*clock));
		world->recorded[rank][entry->record] = true;
		return RR_OK;
	case RR_ENTRY_WAIT_EVENT: rr_races_join(races, clock, record); return RR_OK;
	case RR_ENTRY_FILL: return rr_races_touch(races, stream, entry->to, entry->bytes, true);
	case RR_ENTRY_LOOK: return rr_races_touch(races, stream, entry->to, entry->bytes, true); /* it may write there, too */
	}
	return RR_OK;
}

static uint32_t *head_of(struct world *world, int32_t rank, uint32_t stream)
{
	return &world->heads[(uint32_t)rank * world->streams + stream];
}

/* The next entry of a queue; NULL: none is left. */
static const struct rr_entry *next_of(struct world *world, int32_t rank, uint32_t stream)
{
	const struct rr_recorder *recorder = &world->recorders[rank];
	uint32_t *head = head_of(world, rank, stream);

	while (!world->spec.one_queue && *head < recorder->entry_count && recorder->entries[*head].stream != stream)
		++*head;
	return *head < recorder->entry_count ? &recorder->entries[*head] : NULL;
}

static rr_status stuck(struct world *world)
{
	for (int32_t r = 0; r < world->world; r++) {
		for (uint32_t s = 0; s < (world->spec.one_queue ? 1 : world->streams); s++) {
			const struct rr_entry *entry = next_of(world, r, s);
			if (!entry)
				continue;
			world->result.stuck_rank = r;
			return rr_fail(RR_ERR_TIMEOUT, "deadlock: stream %u of rank %d waits for ever at its operation %u, for %s", s, r,
				       *head_of(world, r, s), entry->kind == RR_ENTRY_WAIT_FLAGS ? "a flag" : "an event");
		}
	}
	return RR_OK;
}

static rr_status execute(struct world *world)
{
	uint32_t queues = world->spec.one_queue ? 1 : world->streams, all = (uint32_t)world->world * queues;

	for (;;) {
		uint32_t offset = (uint32_t)draw(world, all), tried = 0;
		bool moved = false;
		for (; tried < all && !moved; tried++) {
			uint32_t queue = (offset + tried) % all;
			int32_t rank = (int32_t)(queue / queues);
			uint64_t burst = 1 + draw(world, BURST_MAX);
			const struct rr_entry *entry = next_of(world, rank, queue % queues);
			while (burst-- && entry && may_go(world, rank, entry)) {
				rr_status status = carry_out(world, rank, entry);
				if (status < 0)
					return status;
				++*head_of(world, rank, queue % queues);
				moved = true;
				entry = next_of(world, rank, queue % queues);
			}
		}
		if (!moved)
			return stuck(world);
	}
}

/* ---- the world ---- */

static rr_status make_edges(struct world *world)
{
	size_t edges = (size_t)world->channels * (size_t)world->world * (size_t)world->world;
	uint32_t slots = world->spec.slot_count;
	rr_status status = RR_OK;

	world->edges = calloc(edges, sizeof(*world->edges));
	world->flag_count = (uint32_t)edges * slots * 2;
	world->flags = calloc(world->flag_count, sizeof(*world->flags));
	world->flag_clocks = calloc((size_t)world->flag_count * world->races.stream_count, sizeof(*world->flag_clocks));
	if (!world->edges || !world->flags || !world->flag_clocks)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for %zu edges", edges);
	for (size_t e = 0; e < edges && status == RR_OK; e++) {
		struct edge *edge = &world->edges[e];
		edge->slots = calloc(slots, world->spec.slot_bytes);
		edge->ready = &world->flags[e * slots * 2];
		edge->credit = edge->ready + slots;
		for (uint32_t s = 0; s < slots; s++)
			edge->credit[s] = 1;
		int32_t to = (int32_t)(e % (size_t)world->world), from = (int32_t)(e / (size_t)world->world % (size_t)world->world);
		status = edge->slots ? rr_races_region(&world->races, edge->slots, slots * world->spec.slot_bytes, "slots", to, from)
				     : rr_fail(RR_ERR_NO_MEMORY, "no memory for slots");
	}
	return status;
}

static rr_status record_rank(struct world *world, int32_t r, void *input, void *output)
{
	size_t links = (size_t)world->channels * (size_t)world->world;
	struct rr_enqueued_link *out = calloc(links * 2, sizeof(*out)), *in = out + links;
	const struct rr_plan *plan = world->plans[r];
	struct rr_recorder *recorder = &world->recorders[r];
	uint64_t output_bytes = plan->scattered ? plan->vector_bytes : plan->output_end - plan->output_begin;
	uint32_t operations = world->spec.operations ? world->spec.operations : 1, first = 0, second;
	rr_status status = out ? RR_OK : rr_fail(RR_ERR_NO_MEMORY, "no memory for %zu links", links);

	for (size_t i = 0; i < links && status == RR_OK; i++) {
		uint32_t channel = (uint32_t)(i / (size_t)world->world);
		int32_t peer = (int32_t)(i % (size_t)world->world);
		struct edge *to = edge_of(world, channel, r, peer), *from = edge_of(world, channel, peer, r);
		out[i] = (struct rr_enqueued_link){to->slots, world->spec.slot_bytes, world->spec.slot_count, 1, to->ready, to->credit};
		in[i] = (struct rr_enqueued_link){from->slots, world->spec.slot_bytes, world->spec.slot_count, 1, from->ready,
						  from->credit};
	}
	for (uint32_t n = 0; n < operations && status == RR_OK; n++) {
		struct rr_buffer buffers[RR_BUFFER_COUNT] = {{.zero = (char *)((uintptr_t)input - plan->input_begin)},
							     {.zero = (char *)((uintptr_t)output - plan->output_begin)},
							     {.zero = world->scratch[r]}};
		second = recorder->entry_count;
		status = rr_recorder_touch(recorder, RR_ENTRY_FILL, input, plan->uses[RR_INPUT] ? plan->input_end - plan->input_begin : 0);
		if (status == RR_OK)
			status = rr_enqueue_emit(world->lists[r], &recorder->device, out, in, buffers);
		if (status == RR_OK)
			status = rr_recorder_touch(recorder, RR_ENTRY_LOOK, output, plan->uses[RR_OUTPUT] ? output_bytes : 0);
		if (n && status == RR_OK && !rr_recorder_alike(recorder, first, second))
			status = rr_fail(RR_ERR_PROTOCOL, "rank %d emitted another list at its call %u than before", r, n);
		first = second;
	}
	world->result.calls += recorder->calls;
	free(out);
	return status;
}

static rr_status make_rank(struct world *world, int32_t r, const rr_plan_spec *plan_spec, const rr_schedule *schedule,
			   void *input, void *output)
{
	rr_plan_spec spec = *plan_spec;
	rr_status status;

	spec.schedule = schedule;
	status = rr_plan_make(r, world->world, world->spec.slot_bytes, world->edge_channels, &spec, &world->plans[r]);
	if (status == RR_OK)
		status = rr_enqueue_make(world->plans[r], world->channels, &world->lists[r]);
	if (status == RR_OK)
		status = rr_recorder_init(&world->recorders[r], rr_enqueue_event_count(world->lists[r]));
	if (status < 0)
		return status;
	struct rr_plan *plan = world->plans[r];
	uint64_t vector = plan->vector_bytes;
	world->scratch[r] = calloc(1, plan->scratch_bytes + 1);
	if (!world->scratch[r])
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for %llu bytes of scratch", (unsigned long long)plan->scratch_bytes);
	status = rr_races_region(&world->races, world->scratch[r], plan->scratch_bytes, "scratch", r, -1);
	if (status == RR_OK)
		status = rr_races_region(&world->races, output, plan->output_begin ? plan->output_end - plan->output_begin : vector,
					 "output", r, -1);
	if (status == RR_OK)
		status = rr_races_region(&world->races, input, plan->input_begin ? plan->input_end - plan->input_begin : vector, "input",
					 r, -1);
	if (status == RR_OK)
		status = record_rank(world, r, input, output);
	if (status < 0)
		return status;
	size_t records = world->recorders[r].record_count + 1u;
	world->record_clocks[r] = calloc(records * world->races.stream_count, sizeof(uint32_t));
	world->recorded[r] = calloc(records, sizeof(bool));
	if (!world->record_clocks[r] || !world->recorded[r])
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for %zu records", records);
	return RR_OK;
}

static void free_world(struct world *world)
{
	for (int32_t r = 0; r < world->world; r++) {
		if (world->lists)
			rr_enqueue_free(world->lists[r]);
		if (world->plans && world->plans[r])
			rr_plan_unmake(world->plans[r]);
		if (world->recorders)
			rr_recorder_free(&world->recorders[r]);
		if (world->scratch)
			free(world->scratch[r]);
		if (world->record_clocks)
			free(world->record_clocks[r]);
		if (world->recorded)
			free(world->recorded[r]);
	}
	for (size_t e = 0; world->edges && e < (size_t)world->channels * (size_t)world->world * (size_t)world->world; e++)
		free(world->edges[e].slots);
	rr_races_free(&world->races);
	free(world->edge_channels);
	free(world->plans);
	free(world->lists);
	free(world->recorders);
	free(world->scratch);
	free(world->edges);
	free(world->flags);
	free(world->flag_clocks);
	free(world->record_clocks);
	free(world->recorded);
	free(world->heads);
}

static rr_status make_world(struct world *world)
{
	size_t count = (size_t)world->world;

	world->edge_channels = calloc(count, sizeof(*world->edge_channels));
	world->plans = calloc(count, sizeof(*world->plans));
	world->lists = calloc(count, sizeof(*world->lists));
	world->recorders = calloc(count, sizeof(*world->recorders));
	world->scratch = calloc(count, sizeof(*world->scratch));
	world->record_clocks = calloc(count, sizeof(*world->record_clocks));
	world->recorded = calloc(count, sizeof(*world->recorded));
	world->heads = calloc(count * world->streams, sizeof(*world->heads));
	if (!world->edge_channels || !world->plans || !world->lists || !world->recorders || !world->scratch ||
	    !world->record_clocks || !world->recorded || !world->heads)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for a world of %d ranks", world->world);
	for (size_t r = 0; r < count; r++)
		world->edge_channels[r] = world->channels;
	rr_status status = rr_races_init(&world->races, (uint32_t)world->world * world->streams);
	return status == RR_OK ? make_edges(world) : status;
}

rr_status rr_enqueue_sim_run(int32_t ranks, const rr_enqueue_sim_spec *spec, const rr_plan_spec *plan_spec,
			     const rr_schedule *const *schedules, void *const *inputs, void *const *outputs,
			     rr_enqueue_sim_result *out)
{
	struct world world = {.spec = *spec, .world = ranks, .random = spec->seed, .channels = spec->channels ? spec->channels : 1};
	rr_status status;

	if (ranks < 1 || spec->slot_bytes < 4096 || !spec->slot_count || spec->channels > RR_CHANNELS_MAX)
		return rr_fail(RR_ERR_ARGUMENT,
			       "world %d, slot_bytes %llu, slot_count %u, channels %u: accepted are at least 1, 4096 and 1, at most %u",
			       ranks, (unsigned long long)spec->slot_bytes, spec->slot_count, spec->channels, RR_CHANNELS_MAX);
	world.streams = 2 * world.channels;
	world.result.stuck_rank = -1;
	status = make_world(&world);
	for (int32_t r = 0; r < ranks && status == RR_OK; r++)
		status = make_rank(&world, r, plan_spec, schedules[r], inputs[r], outputs[r]);
	if (status == RR_OK) {
		rr_recorder_plant(world.recorders, ranks, spec->fault, spec->fault_at, &world.result.fault_places);
		status = execute(&world);
	}
	world.result.races = world.races.count;
	snprintf(world.result.race, sizeof(world.result.race), "%s", world.races.first);
	*out = world.result;
	free_world(&world);
	return status;
}

rr_status rr_enqueue_list(int32_t rank, int32_t ranks, uint64_t slot_bytes, uint32_t channels, const rr_plan_spec *spec,
			  rr_enqueue_listed *out, uint64_t room, uint64_t *count)
{
	uint32_t *edge_channels = calloc((size_t)ranks, sizeof(*edge_channels)), *latest = NULL;
	struct rr_plan *plan = NULL;
	struct rr_enqueue *list = NULL;
	rr_status status = RR_OK;

	for (int32_t r = 0; edge_channels && r < ranks; r++)
		edge_channels[r] = channels;
	status = edge_channels ? rr_plan_make(rank, ranks, slot_bytes, edge_channels, spec, &plan)
			       : rr_fail(RR_ERR_NO_MEMORY, "no memory for %d ranks", ranks);
	if (status == RR_OK)
		status = rr_enqueue_make(plan, channels, &list);
	if (status < 0)
		goto free_all;
	latest = calloc(list->event_count + 1u, sizeof(*latest));
	if (!latest || list->item_count > room) {
		status = rr_fail(RR_ERR_ARGUMENT, "the list has %u items, there is room for %llu", list->item_count,
				 (unsigned long long)room);
		goto free_all;
	}
	for (uint32_t i = 0; i < list->item_count; i++) {
		const struct rr_enqueue_item *item = &list->items[i];
		const struct rr_row *row = &plan->rows->rows[item->row];
		out[i] = (rr_enqueue_listed){.round = item->round, .row = item->row, .slice = item->slice, .stream = item->stream,
					     .send = item->send == RR_ENQUEUE_NONE ? -1 : (int32_t)item->send - row->send_begin};
		for (uint32_t w = item->wait_begin; w < item->wait_end && out[i].after_count < 8; w++)
			out[i].after[out[i].after_count++] = latest[list->waits[w]];
		if (item->event != RR_ENQUEUE_NONE)
			latest[item->event] = i;
	}
	*count = list->item_count;

free_all:
	rr_enqueue_free(list);
	if (plan)
		rr_plan_unmake(plan);
	free(latest);
	free(edge_channels);
	return status;
}
