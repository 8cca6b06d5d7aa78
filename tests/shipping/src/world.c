/* world.c - one run of the scheduler of sim.c over links that ship; see shipping.h. */
#include <stdlib.h>
#include <string.h>

#include "shipping.h"
#include "status.h"

static const struct shipping_ops *const transports[] = {&shipping_shm, &shipping_stream, &shipping_verbs};

void shipping_fault(struct shipping *world)
{
	if (!world->fault.message[0])
		world->fault = *rr_error_here();
}

static rr_status open_links(struct rr_sim *sim)
{
	struct shipping *world = shipping_of(sim);

	world->sim = sim;
	if (sim->world > SHIPPING_WORLD_MAX)
		return rr_fail(RR_ERR_ARGUMENT, "%d ranks: at most %d", sim->world, SHIPPING_WORLD_MAX);
	return world->ops->open(world);
}

/* A rank whose operations are over still moves what it has sent. */
static rr_status move_rest(const struct rr_engine *engine)
{
	rr_status status = RR_OK;

	for (uint32_t i = 0; i < (uint32_t)engine->world * engine->channels && status >= 0; i++) {
		if (engine->out[i] && engine->out[i]->ops->progress)
			status = engine->out[i]->ops->progress(engine->out[i]);
		if (status >= 0 && engine->in[i] && engine->in[i]->ops->progress)
			status = engine->in[i]->ops->progress(engine->in[i]);
	}
	return status < 0 ? status : RR_OK;
}

static rr_status turn(struct rr_sim *sim, int32_t r)
{
	struct shipping *world = shipping_of(sim);
	rr_status status = RR_OK;

	if (world->fault.message[0])
		return rr_error_set(&world->fault);
	if (world->ops->turn)
		status = world->ops->turn(world, r);
	if (status == RR_OK && sim->engines[r].phase == RR_IDLE)
		status = move_rest(&sim->engines[r]);
	return status;
}

static rr_status end(struct rr_sim *sim, int32_t r)
{
	struct shipping *world = shipping_of(sim);

	if (world->ops->ended)
		world->ops->ended(world, r);
	return shipping_end(sim, r);
}

static bool wait_outside(struct rr_sim *sim)
{
	struct shipping *world = shipping_of(sim);

	return world->ops->wait && world->ops->wait(world);
}

static void before_close(struct rr_sim *sim)
{
	struct shipping *world = shipping_of(sim);

	shipping_unwatch(world);
	if (world->ops->before_close)
		world->ops->before_close(world);
}

static const struct rr_sim_links shipping_links = {
	.open = open_links,
	.begin = shipping_begin,
	.end = end,
	.turn = turn,
	.wait = wait_outside,
	.before_close = before_close,
};

RR_API rr_status rr_shipping_run(int32_t world, const rr_sim_spec *spec, const rr_shipping_spec *shipping,
				 const rr_plan_spec *plan_spec, const rr_schedule *const *schedules, void *const *inputs,
				 void *const *outputs, rr_sim_result *out);

rr_status rr_shipping_run(int32_t world, const rr_sim_spec *spec, const rr_shipping_spec *shipping,
			  const rr_plan_spec *plan_spec, const rr_schedule *const *schedules, void *const *inputs,
			  void *const *outputs, rr_sim_result *out)
{
	struct shipping state = {.spec = *shipping};

	if (shipping->transport >= sizeof(transports) / sizeof(transports[0]))
		return rr_fail(RR_ERR_ARGUMENT, "transport %u: there is none", shipping->transport);
	state.ops = transports[shipping->transport];
	rr_status status = rr_sim_run_over(&shipping_links, &state, world, spec, plan_spec, schedules, inputs, outputs, out);
	state.sim = NULL;
	if (status == RR_OK && state.fault.message[0])
		status = rr_error_set(&state.fault);
	if (state.ops->close)
		state.ops->close(&state);
	rr_status later = shipping_memory_free(&state);
	return status == RR_OK ? later : status;
}
