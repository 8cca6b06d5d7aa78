/*
 * sim.h - a world in one thread, with a virtual clock: what the simulated links and devices share.
 *
 * Time stands still while ranks act; when no rank can act it jumps to the next event. All choices come
 * from one seeded generator, so a run is replayed by its seed.
 */
#ifndef RR_SIM_H
#define RR_SIM_H

#include "device.h"
#include "engine.h"
#include "link.h"

#define RR_SIM_NEVER UINT64_MAX
#define RR_SIM_OPERATIONS_MAX 16u /* of one run */

struct rr_sim {
	rr_sim_spec spec;
	int32_t world;
	uint64_t now_ns;
	uint64_t next_ns; /* the earliest event seen in this turn that lies ahead */
	uint64_t random;  /* state of the generator */
	struct rr_engine *engines;   /* [world] */
	struct rr_sim_device *devices; /* [world] */
	struct rr_plan **plans;      /* [world] */
	struct rr_sim_common **common; /* [world] the slot that the rank's links were last given together; link_sim.c */
	uint32_t *channels;          /* [world] links of each edge */
	uint64_t damage_turns; /* at whose end something was there to be damaged */
	rr_sim_result result;
};

/* Uniform in [0, below). */
uint64_t rr_sim_random(struct rr_sim *sim, uint64_t below);
/* True once `at_ns` has come; else it is noted as an event to come. */
bool rr_sim_due(struct rr_sim *sim, uint64_t at_ns);
/* Whether the rank's death is known to the others. */
bool rr_sim_known_dead(struct rr_sim *sim, int32_t rank);

/* link_sim.c: the edge from -> to, both ends. */
rr_status rr_link_sim_open(struct rr_sim *sim, int32_t from, int32_t to, struct rr_link **out, struct rr_link **in);

/* device_sim.c: a device whose passes take time. */
struct rr_sim_device *rr_sim_devices_new(struct rr_sim *sim);
struct rr_device *rr_sim_device_of(struct rr_sim_device *devices, int32_t rank);
void rr_sim_devices_free(struct rr_sim_device *devices);

#endif
