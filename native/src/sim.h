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

struct rr_sim;

/* What a world's ranks are joined by: link_sim.c, or links that ship (tests/shipping). */
struct rr_sim_links {
	/* Both ends of every edge, into the engines. What was made before an error is closed with the engines. */
	rr_status (*open)(struct rr_sim *sim);
	/* Rank r begins an operation: where its buffers lie, and how peers reach them; both may be changed. */
	rr_status (*begin)(struct rr_sim *sim, int32_t r, struct rr_buffer buffers[RR_BUFFER_COUNT],
			   struct rr_place places[RR_BUFFER_COUNT]);
	/* ---- NULL: nothing to do ---- */
	/* It has ended it well. */
	rr_status (*end)(struct rr_sim *sim, int32_t r);
	/* Before each act of rank r, and in its place once all its operations are over. */
	rr_status (*turn)(struct rr_sim *sim, int32_t r);
	/* No rank could act and no event lies ahead. True: time has passed for something outside this thread. */
	bool (*wait)(struct rr_sim *sim);
	/* The engines go, which close the links. Called after a failed open, too. */
	void (*before_close)(struct rr_sim *sim);
};

struct rr_sim {
	rr_sim_spec spec;
	const struct rr_sim_links *links;
	void *user; /* of links */
	bool moved;     /* in this turn, bytes that no rank's engine was told of */
	bool out_of_memory; /* found where a link's operation returns nothing */
	uint64_t moves; /* turns in which anything was done */
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

/* link_sim.c */
extern const struct rr_sim_links rr_sim_own_links;

/* rr_sim_run() with other links than link_sim.c's. */
rr_status rr_sim_run_over(const struct rr_sim_links *links, void *user, int32_t world, const rr_sim_spec *spec,
			  const rr_plan_spec *plan_spec, const rr_schedule *const *schedules, void *const *inputs,
			  void *const *outputs, rr_sim_result *out);

/* device_sim.c: a device whose passes take time. */
struct rr_sim_device *rr_sim_devices_new(struct rr_sim *sim);
struct rr_device *rr_sim_device_of(struct rr_sim_device *devices, int32_t rank);
void rr_sim_devices_free(struct rr_sim_device *devices);

#endif
