/* faults.c - what goes wrong by order: calls that fail, devices that break; and what the application did wrong. */
#include "sim.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define VIOLATIONS_MAX 32

const char *const sim_action_names[SIM_ACTION_COUNT] = {
	[SIM_PORT_DOWN] = "port_down", [SIM_PORT_UP] = "port_up", [SIM_QP_FATAL] = "qp_fatal",
	[SIM_DEVICE_FATAL] = "device_fatal", [SIM_FLUSH] = "flush", [SIM_DROP_LINK] = "drop_link",
	[SIM_MOVE_GIDS] = "move_gids",
};

static const char *violations[VIOLATIONS_MAX];
static size_t violation_count;

uint64_t sim_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

/* splitmix64 */
uint64_t sim_random(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

uint64_t sim_delay_ns(uint64_t *state)
{
	uint64_t ns = 0;

	if (sim.config.delay_us)
		ns += sim_random(state) % (sim.config.delay_us * NS_PER_US);
	if (sim.config.reorder_us && sim_random(state) % 4 == 0)
		ns += sim_random(state) % (sim.config.reorder_us * NS_PER_US);
	return ns;
}

/* A misuse that real hardware answers with a hang, a crash or silence. Tests read these in the report. */
void sim_violation(const char *format, ...)
{
	char text[256];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	fprintf(stderr, "verbs_sim: violation: %s\n", text);
	if (violation_count < VIOLATIONS_MAX)
		violations[violation_count++] = strdup(text);
}

size_t sim_violation_list(const char *const **texts)
{
	*texts = violations;
	return violation_count;
}

int sim_fault_locked(const char *verb)
{
	int error = 0;

	for (unsigned i = 0; i < sim.config.fault_count; i++) {
		struct sim_fault *fault = &sim.config.faults[i];

		if (strcmp(fault->verb, verb))
			continue;
		fault->calls++;
		if (fault->calls == fault->first || (fault->onwards && fault->calls > fault->first))
			error = fault->error;
	}
	return error;
}

int sim_fault(const char *verb)
{
	int error;

	pthread_mutex_lock(&sim_lock);
	error = sim_fault_locked(verb);
	pthread_mutex_unlock(&sim_lock);
	return error;
}

static bool concerns(const struct sim_context *context)
{
	return sim.config.fault_device < 0 || (unsigned)sim.config.fault_device == context->device->index;
}

/* As when an interface's address is taken away and given again: every row is one further, and row 0 is empty. */
static void move_gids(const struct sim_device *device)
{
	struct sim_gid *rows = sim.config.gids[device->index];
	unsigned *count = &sim.config.gid_count[device->index];

	if (*count == SIM_GIDS_MAX)
		return;
	memmove(&rows[1], &rows[0], *count * sizeof(rows[0]));
	rows[0] = (struct sim_gid){ .type = SIM_GID_NONE };
	++*count;
}

static void act_on_device(enum sim_action action, struct sim_context *context)
{
	struct ibv_context *base = &context->verbs.context;

	switch (action) {
	case SIM_PORT_DOWN:
		sim.config.port_state[context->device->index] = context->port_state = IBV_PORT_DOWN;
		sim_async(base, IBV_EVENT_PORT_ERR, NULL);
		break;
	case SIM_PORT_UP:
		sim.config.port_state[context->device->index] = context->port_state = IBV_PORT_ACTIVE;
		context->link_dropped = false;
		sim_async(base, IBV_EVENT_PORT_ACTIVE, NULL);
		break;
	case SIM_DROP_LINK:
		context->link_dropped = true;
		break;
	case SIM_DEVICE_FATAL:
		context->fatal = true;
		sim_async(base, IBV_EVENT_DEVICE_FATAL, NULL);
		break;
	case SIM_MOVE_GIDS:
		if (!context->next || context->next->device != context->device) /* once a device */
			move_gids(context->device);
		sim_async(base, IBV_EVENT_GID_CHANGE, NULL);
		break;
	case SIM_QP_FATAL:
	case SIM_FLUSH:
	case SIM_ACTION_COUNT:
		break;
	}
}

static void act_on_qp(enum sim_action action, struct sim_qp *qp)
{
	switch (action) {
	case SIM_PORT_DOWN:
	case SIM_DROP_LINK:
		sim_disconnect(qp);
		break;
	case SIM_PORT_UP:
		if (qp->base.state == IBV_QPS_RTR || qp->base.state == IBV_QPS_RTS)
			sim_listen(qp);
		break;
	case SIM_QP_FATAL:
	case SIM_DEVICE_FATAL:
	case SIM_FLUSH:
	case SIM_MOVE_GIDS:
		if (qp->base.state == IBV_QPS_RESET)
			break;
		sim_qp_to_error(qp);
		if (action == SIM_QP_FATAL)
			sim_async(qp->base.context, IBV_EVENT_QP_FATAL, &qp->base);
		break;
	case SIM_ACTION_COUNT:
		break;
	}
}

void sim_act(enum sim_action action)
{
	for (struct sim_context *context = sim.contexts; context; context = context->next)
		if (concerns(context))
			act_on_device(action, context);
	for (struct sim_qp *qp = sim.qps; qp; qp = qp->next)
		if (concerns(sim_context_of(qp->base.context)))
			act_on_qp(action, qp);
	sim_wake();
}

void sim_check_triggers(uint64_t now)
{
	for (int action = 0; action < SIM_ACTION_COUNT; action++) {
		struct sim_trigger *trigger = &sim.config.triggers[action];
		bool time = trigger->after_ms != SIM_NEVER && now >= sim.opened_ns + trigger->after_ms * NS_PER_MS;

		if (!trigger->fired && (time || sim.counts.sends >= trigger->after_sends)) {
			trigger->fired = true;
			sim_act((enum sim_action)action);
		}
	}
}

uint64_t sim_next_trigger(void)
{
	uint64_t next = SIM_NEVER;

	for (int action = 0; action < SIM_ACTION_COUNT; action++) {
		const struct sim_trigger *trigger = &sim.config.triggers[action];

		if (trigger->fired || trigger->after_ms == SIM_NEVER)
			continue;
		if (sim.opened_ns + trigger->after_ms * NS_PER_MS < next)
			next = sim.opened_ns + trigger->after_ms * NS_PER_MS;
	}
	return next;
}

/* For tests in the same process: let it happen now. 0, or EINVAL for a name it does not know. */
SIM_EXPORT int verbs_sim_inject(const char *action_name)
{
	for (int action = 0; action < SIM_ACTION_COUNT; action++) {
		if (strcmp(action_name, sim_action_names[action]))
			continue;
		pthread_mutex_lock(&sim_lock);
		sim_act((enum sim_action)action);
		pthread_mutex_unlock(&sim_lock);
		return 0;
	}
	return EINVAL;
}
