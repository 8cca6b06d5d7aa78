/* sim.c - runs all ranks of a simulated world; see sim.h. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

#include "status.h"

#define STALL_ODDS 64u          /* a rank stalls in one of so many turns, if it may */
#define STILL_MAX 20000u        /* turns without a deed: links that hold their ends up for ever are a deadlock, too */
#define TURNS_MAX 200000000ull  /* a world that never ends is a mistake of the caller's numbers */

struct rank_state {
	bool ended;
	bool failed;
	uint32_t operations; /* finished */
	uint64_t stalled_until_ns;
	void *scratch;
};

uint64_t rr_sim_random(struct rr_sim *sim, uint64_t below)
{
	/* splitmix64 (Steele, Lea, Flood, OOPSLA 2014) */
	uint64_t z = sim->random += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return (z ^ z >> 31) % below;
}

bool rr_sim_due(struct rr_sim *sim, uint64_t at_ns)
{
	if (at_ns <= sim->now_ns)
		return true;
	if (at_ns < sim->next_ns)
		sim->next_ns = at_ns;
	return false;
}

static bool is_dead(struct rr_sim *sim, int32_t rank)
{
	return rank == sim->spec.kill_rank && rr_sim_due(sim, sim->spec.kill_ns);
}

bool rr_sim_known_dead(struct rr_sim *sim, int32_t rank)
{
	return rank == sim->spec.kill_rank && rr_sim_due(sim, sim->spec.kill_ns + sim->spec.detect_ns);
}

static rr_status begin(struct rr_sim *sim, int32_t r, struct rank_state *state, void *input, void *output)
{
	const struct rr_plan *plan = sim->plans[r];
	struct rr_buffer buffers[RR_BUFFER_COUNT] = {
		{.zero = (char *)input - plan->input_begin},
		{.zero = (char *)output - plan->output_begin},
		{.zero = state->scratch},
	};
	struct rr_place places[RR_BUFFER_COUNT] = {0};
	rr_status status = sim->links->begin(sim, r, buffers, places);

	if (status != RR_OK)
		return status;
	return rr_engine_start(&sim->engines[r], plan, state->operations + 1, buffers, places);
}

/* As the watch of a communicator would: who gets no further and has a link to a rank that died is told. */
static rr_status look_for_death(struct rr_sim *sim, int32_t r)
{
	const struct rr_plan *plan = sim->plans[r];
	int32_t dead = sim->spec.kill_rank;

	for (uint32_t i = 0; i < plan->link_total && dead >= 0; i++) {
		if ((int32_t)(plan->links[i] % (uint32_t)sim->world) != dead || !rr_sim_known_dead(sim, dead))
			continue;
		rr_fail(RR_ERR_LINK, "rank %d died", dead);
		rr_error_here()->peer = dead;
		return RR_ERR_LINK;
	}
	return RR_AGAIN;
}

static rr_status act(struct rr_sim *sim, int32_t r, struct rank_state *state, void *input, void *output, bool *moved)
{
	rr_status status = sim->links->turn ? sim->links->turn(sim, r) : RR_OK;

	if (status == RR_OK && sim->engines[r].phase == RR_IDLE)
		status = begin(sim, r, state, state->operations ? output : input, output);
	bool got_on = false;
	if (status == RR_OK)
		status = rr_engine_progress(&sim->engines[r], &got_on);
	*moved = *moved || got_on;
	if (status == RR_AGAIN && !got_on)
		status = look_for_death(sim, r);
	if (status == RR_OK && sim->links->end)
		status = sim->links->end(sim, r);
	if (status == RR_AGAIN)
		return RR_OK;
	*moved = true;
	if (status < 0) {
		if (!state->failed && sim->result.blamed < 0)
			sim->result.blamed = rr_error_here()->peer;
		state->failed = true;
		state->ended = true;
		sim->result.failed++;
		return status;
	}
	if (++state->operations == (sim->spec.operations ? sim->spec.operations : 1)) {
		state->ended = true;
		sim->result.finished++;
	}
	return RR_OK;
}

/* One bit of what the rank keeps sums of, so of what is read there again, or has been. */
static void damage(struct rr_sim *sim, int32_t r)
{
	struct rr_engine *engine = &sim->engines[r];
	enum rr_buffer_id buffer = sim->spec.damage_scratch ? RR_SCRATCH : RR_OUTPUT;
	const struct rr_origins *origins = &engine->origins;
	const struct rr_origin_piece *drawn = NULL;
	uint64_t seen = 0;

	if (!sim->spec.damage_turn || sim->result.corrupted || engine->phase != RR_RUNNING || !engine->plan->check)
		return;
	for (uint64_t c = 0; c < origins->cell_count[buffer]; c++)
		for (uint32_t p = origins->cells[buffer][c]; p; p = origins->pieces[p - 1].next)
			if (rr_sim_random(sim, ++seen) == 0)
				drawn = &origins->pieces[p - 1];
	if (!drawn || ++sim->damage_turns < sim->spec.damage_turn)
		return;
	sim->result.damaged_at = drawn->begin + rr_sim_random(sim, drawn->bytes);
	sim->result.damaged_rank = r;
	sim->result.corrupted = 1;
	engine->buffers[buffer].zero[sim->result.damaged_at] ^= (char)(1u << rr_sim_random(sim, 8));
}

/* One turn: every rank that may act, in seeded order. False: all have ended. */
static bool turn(struct rr_sim *sim, struct rank_state *states, void *const *inputs, void *const *outputs,
		 bool *moved, rr_status *first_error)
{
	int32_t offset = (int32_t)rr_sim_random(sim, (uint64_t)sim->world);
	bool any = false;

	for (int32_t i = 0; i < sim->world; i++) {
		int32_t r = (offset + i) % sim->world;
		struct rank_state *state = &states[r];
		if (is_dead(sim, r) || state->failed)
			continue;
		if (state->ended) { /* what it has sent may not be with the others yet */
			rr_status status = sim->links->turn ? sim->links->turn(sim, r) : RR_OK;
			if (status < 0 && *first_error == RR_OK)
				*first_error = status;
			continue;
		}
		any = true;
		if (!rr_sim_due(sim, state->stalled_until_ns))
			continue;
		if (sim->spec.stall_ns && rr_sim_random(sim, STALL_ODDS) == 0) {
			state->stalled_until_ns = sim->now_ns + 1 + rr_sim_random(sim, sim->spec.stall_ns);
			*moved = true;
			continue;
		}
		rr_status status = act(sim, r, state, inputs[r], outputs[r], moved);
		damage(sim, r);
		/* A rank that failed takes its links with it, as a real one poisons its peers. */
		if (status < 0 && *first_error == RR_OK)
			*first_error = status;
	}
	return any;
}

static rr_status deadlock(struct rr_sim *sim, const struct rank_state *states)
{
	for (int32_t r = 0; r < sim->world && sim->result.stuck_rank < 0; r++) {
		if (states[r].ended || is_dead(sim, r))
			continue;
		sim->result.stuck_rank = r;
		sim->result.stuck_row = (int32_t)(sim->engines[r].retired % sim->plans[r]->rows->row_count);
	}
	return rr_fail(RR_ERR_TIMEOUT, "deadlock at %llu ns: rank %d is stuck in row %d", (unsigned long long)sim->now_ns,
		       sim->result.stuck_rank, sim->result.stuck_row);
}

static rr_status run_world(struct rr_sim *sim, struct rank_state *states, void *const *inputs, void *const *outputs)
{
	rr_status first_error = RR_OK;
	uint32_t still = 0; /* turns in which only time passed */

	for (uint64_t turns = 0; turns < TURNS_MAX; turns++) {
		bool moved = false;
		sim->moved = false;
		sim->next_ns = RR_SIM_NEVER;
		if (!turn(sim, states, inputs, outputs, &moved, &first_error))
			return first_error;
		if (sim->out_of_memory)
			return rr_fail(RR_ERR_NO_MEMORY, "no memory for the transfers of a simulated link");
		if (moved || sim->moved) {
			sim->moves++;
			still = 0;
			continue;
		}
		bool ends = sim->next_ns == RR_SIM_NEVER || ++still > STILL_MAX;
		if (ends && first_error < 0)
			return first_error; /* the others wait for the one that failed */
		if (ends && !(sim->next_ns == RR_SIM_NEVER && sim->links->wait && sim->links->wait(sim)))
			return deadlock(sim, states);
		if (sim->next_ns != RR_SIM_NEVER)
			sim->now_ns = sim->next_ns;
	}
	return rr_fail(RR_ERR_TIMEOUT, "the simulated world did not end in %llu turns", TURNS_MAX);
}

static rr_status build(struct rr_sim *sim, const rr_plan_spec *plan_spec, const rr_schedule *const *schedules,
		       struct rank_state *states)
{
	uint32_t channels = sim->spec.channels ? sim->spec.channels : 1;
	rr_status status = RR_OK;

	if (plan_spec->on_device)
		return rr_fail(RR_ERR_UNSUPPORTED, "on_device: a simulated world has no GPU");
	for (int32_t r = 0; r < sim->world; r++)
		sim->channels[r] = channels;
	for (int32_t r = 0; r < sim->world && status == RR_OK; r++) {
		rr_plan_spec spec = *plan_spec;
		spec.schedule = schedules[r];
		status = rr_plan_make(r, sim->world, sim->spec.slot_bytes, sim->channels, &spec, &sim->plans[r]);
		if (status == RR_OK)
			status = rr_engine_init(&sim->engines[r], r, sim->world, channels);
		if (status != RR_OK)
			return status;
		sim->engines[r].device = rr_sim_device_of(sim->devices, r);
		if (sim->plans[r]->scratch_bytes)
			states[r].scratch = calloc(1, sim->plans[r]->scratch_bytes);
	}
	status = sim->links->open(sim);
	for (int32_t r = 0; r < sim->world && status == RR_OK; r++) /* links that move bytes of their own want to be called */
		for (int32_t i = 0; i < sim->world * (int32_t)channels; i++)
			if (sim->engines[r].out[i] && sim->engines[r].out[i]->ops->progress)
				sim->plans[r]->far = true;
	return status;
}

rr_status rr_sim_run_over(const struct rr_sim_links *links, void *user, int32_t world, const rr_sim_spec *spec,
			  const rr_plan_spec *plan_spec, const rr_schedule *const *schedules, void *const *inputs,
			  void *const *outputs, rr_sim_result *out)
{
	struct rr_sim sim = {.spec = *spec, .links = links, .user = user, .world = world, .random = spec->seed};
	struct rank_state *states;
	rr_status status = RR_OK;

	if (world < 1 || spec->slot_bytes < 4096 || spec->operations > RR_SIM_OPERATIONS_MAX || spec->channels > RR_CHANNELS_MAX)
		return rr_fail(RR_ERR_ARGUMENT,
			       "world %d, slot_bytes %llu, operations %u, channels %u: accepted are at least 1 and 4096, at most %u and %u",
			       world, (unsigned long long)spec->slot_bytes, spec->operations, spec->channels, RR_SIM_OPERATIONS_MAX,
			       RR_CHANNELS_MAX);
	states = calloc((size_t)world, sizeof(*states));
	sim.engines = calloc((size_t)world, sizeof(*sim.engines));
	sim.channels = calloc((size_t)world, sizeof(*sim.channels));
	sim.plans = calloc((size_t)world, sizeof(*sim.plans));
	sim.common = calloc((size_t)world, sizeof(*sim.common));
	sim.devices = rr_sim_devices_new(&sim);
	sim.result.stuck_rank = -1;
	sim.result.stuck_row = -1;
	sim.result.blamed = -1;
	sim.result.damaged_rank = -1;
	if (!states || !sim.channels || !sim.engines || !sim.plans || !sim.common || !sim.devices)
		status = rr_fail(RR_ERR_NO_MEMORY, "no memory for a simulated world of %d ranks", world);
	if (status == RR_OK)
		status = build(&sim, plan_spec, schedules, states);
	if (status == RR_OK)
		status = run_world(&sim, states, inputs, outputs);
	sim.result.elapsed_ns = sim.now_ns;
	*out = sim.result;
	if (links->before_close && sim.engines)
		links->before_close(&sim);
	for (int32_t r = 0; r < world; r++) {
		if (sim.engines)
			rr_engine_free(&sim.engines[r]);
		if (sim.plans && sim.plans[r])
			rr_plan_unmake(sim.plans[r]);
		if (states)
			free(states[r].scratch);
	}
	rr_sim_devices_free(sim.devices);
	free(sim.common);
	free(sim.plans);
	free(sim.channels);
	free(sim.engines);
	free(states);
	return status;
}

rr_status rr_sim_run(int32_t world, const rr_sim_spec *spec, const rr_plan_spec *plan_spec,
		     const rr_schedule *const *schedules, void *const *inputs, void *const *outputs,
		     rr_sim_result *out)
{
	return rr_sim_run_over(&rr_sim_own_links, NULL, world, spec, plan_spec, schedules, inputs, outputs, out);
}
