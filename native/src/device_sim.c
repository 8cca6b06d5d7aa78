/*
 * device_sim.c - a device whose passes take virtual time, one after the other.
 *
 * A pass is carried out when it is issued or when it ends, by seed: whoever touches its sources or
 * destinations in between gets wrong bits at some seed.
 */
#include <stdlib.h>
#include <string.h>

#include "sim.h"
#include "status.h"

#define PASSES_MAX 64u /* under way on one device; tokens are their numbers */

struct pass {
	bool deferred;
	rr_combine_fn fn;
	struct rr_combine combine;
	void *dst[RR_COMBINE_SOURCES_MAX + 1];
	const void *src[RR_COMBINE_SOURCES_MAX + 1];
	uint64_t ends_ns;
};

struct rr_sim_device {
	struct rr_device device;
	struct rr_sim *sim;
	uint64_t issued; /* passes; token n is pass n - 1 */
	uint64_t free_ns, busy_ns;
	struct pass passes[PASSES_MAX];
};

static struct rr_sim_device *self(struct rr_device *device)
{
	return (struct rr_sim_device *)device;
}

static void carry_out(struct pass *pass)
{
	pass->deferred = false;
	pass->fn(&pass->combine);
}

static rr_status sim_combine(struct rr_device *device, rr_combine_fn fn, const struct rr_combine *combine,
			     rr_token *token)
{
	struct rr_sim_device *this = self(device);
	struct rr_sim *sim = this->sim;
	struct pass *pass = &this->passes[this->issued % PASSES_MAX];
	uint64_t bytes = combine->count * sim->plans[0]->element_bytes;
	uint64_t cost = combine->src_count > 1 ? bytes * sim->spec.combine_ps_per_byte / 1000 : 0;
	uint64_t begin = this->free_ns > sim->now_ns ? this->free_ns : sim->now_ns;

	if (this->issued >= PASSES_MAX && pass->deferred)
		return rr_fail(RR_ERR_PROTOCOL, "the engine has more than %u passes under way", PASSES_MAX);
	pass->fn = fn;
	pass->combine = *combine;
	memcpy(pass->dst, combine->dst, combine->dst_count * sizeof(*combine->dst));
	memcpy(pass->src, combine->src, combine->src_count * sizeof(*combine->src));
	pass->combine.dst = pass->dst;
	pass->combine.src = pass->src;
	pass->ends_ns = begin + cost;
	pass->deferred = cost && rr_sim_random(sim, 2);
	this->free_ns = pass->ends_ns;
	this->busy_ns += cost;
	if (this->busy_ns > sim->result.busiest_device_ns)
		sim->result.busiest_device_ns = this->busy_ns;
	if (!pass->deferred)
		carry_out(pass);
	*token = cost ? ++this->issued : *token; /* a free pass after a costly one: wait for that */
	return RR_OK;
}

static rr_status sim_ready(struct rr_device *device, rr_token token)
{
	struct rr_sim_device *this = self(device);

	if (!token)
		return RR_OK;
	struct pass *pass = &this->passes[(token - 1) % PASSES_MAX];
	if (!rr_sim_due(this->sim, pass->ends_ns))
		return RR_AGAIN;
	/* A slice of several stretches has several passes; its token is the last one's: all before are over. */
	for (uint64_t n = token > PASSES_MAX ? token - PASSES_MAX : 0; n < token; n++)
		if (this->passes[n % PASSES_MAX].deferred)
			carry_out(&this->passes[n % PASSES_MAX]);
	return RR_OK;
}

static const struct rr_device_ops sim_ops = {.name = "sim", .combine = sim_combine, .ready = sim_ready};

struct rr_sim_device *rr_sim_devices_new(struct rr_sim *sim)
{
	struct rr_sim_device *devices = calloc((size_t)sim->world, sizeof(*devices));

	for (int32_t r = 0; devices && r < sim->world; r++) {
		devices[r].device.ops = &sim_ops;
		devices[r].sim = sim;
	}
	return devices;
}

struct rr_device *rr_sim_device_of(struct rr_sim_device *devices, int32_t rank)
{
	return &devices[rank].device;
}

void rr_sim_devices_free(struct rr_sim_device *devices)
{
	free(devices);
}
