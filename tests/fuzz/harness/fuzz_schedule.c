/*
 * fuzz_schedule.c - a schedule file from a stranger: loaded, bound into a plan for each rank, and run.
 *
 *   bytes 0..7  how it is run: dtype, reduction, count, slots, registered, channels, round_count, seed
 *   bytes 8..   the file; its checksum is made right, so that the search gets behind it
 *
 * The engine believes what rows.c and plan.c let through, so what they let through must not hurt it: a run may end
 * in a deadlock or an error, never outside its buffers.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"
#include "plan.h"
#include "rows.h"

#define WORLD_MAX 4
#define CHUNKS_MAX 256u
#define ROWS_MAX 512u

static void store32(uint8_t *bytes, uint32_t value)
{
	for (int i = 0; i < 4; i++)
		bytes[i] = (uint8_t)(value >> 8 * i);
}

static uint32_t load32(const uint8_t *bytes)
{
	return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static uint32_t checksum(const uint8_t *bytes, size_t size)
{
	uint32_t crc = 0xffffffffu;

	for (size_t i = 0; i < size; i++) {
		crc ^= bytes[i];
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (0xedb88320u & (0u - (crc & 1u)));
	}
	return ~crc;
}

struct world {
	int32_t size;
	rr_schedule *schedules[WORLD_MAX];
	void *inputs[WORLD_MAX], *outputs[WORLD_MAX];
};

/* Buffers of exactly the size that the plan states, so that a byte beyond is seen. */
static rr_status make_buffers(struct world *world, const rr_plan_spec *spec, uint64_t slot_bytes)
{
	uint32_t channels[WORLD_MAX] = {1, 1, 1, 1};

	for (int32_t r = 0; r < world->size; r++) {
		rr_plan_spec own = *spec;
		struct rr_plan *plan;
		own.schedule = world->schedules[r];
		rr_status status = rr_plan_make(r, world->size, slot_bytes, channels, &own, &plan);
		if (status < 0)
			return status;
		world->inputs[r] = calloc(1, plan->input_end - plan->input_begin + 1);
		world->outputs[r] = calloc(1, (plan->scattered ? plan->vector_bytes : plan->output_end - plan->output_begin) + 1);
		rr_plan_unmake(plan);
		if (!world->inputs[r] || !world->outputs[r])
			return RR_ERR_NO_MEMORY;
	}
	return RR_OK;
}

static void run(struct world *world, const uint8_t how[8])
{
	const struct rr_schedule *first = world->schedules[0];
	uint64_t offsets[CHUNKS_MAX + 1];
	rr_plan_spec spec = {.collective = first->collective, .dtype = how[0] % (int)RR_DTYPE_COUNT, .redop = how[1] % (int)RR_REDOP_COUNT,
			     .root = first->root, .count = how[2] * 37u, .scale = 1.0, .chunk_offsets = offsets,
			     .round_count = how[6] % 4, .wide = how[6] >> 7};
	rr_sim_spec sim = {.seed = how[7], .latency_ns = 100, .jitter_ns = 50, .slot_bytes = 8192, .slot_count = how[3] % 4 + 1u,
			   .registered = how[4] % 3, .kill_rank = -1, .channels = how[5] % 4, .operations = 1};
	rr_sim_result result;

	for (int32_t r = 0; r < world->size; r++) {
		const struct rr_schedule *rows = world->schedules[r];
		if (rows->chunk_count > CHUNKS_MAX || rows->row_count > ROWS_MAX || rows->chunk_count != first->chunk_count ||
		    rows->cell_count > CHUNKS_MAX || !rows->row_count)
			return; /* too slow to search by */
	}
	for (uint32_t c = 0; c <= first->chunk_count; c++)
		offsets[c] = spec.count * c / first->chunk_count;
	if (make_buffers(world, &spec, sim.slot_bytes) < 0)
		return;
	rr_sim_run(world->size, &sim, &spec, (const rr_schedule *const *)world->schedules, world->inputs, world->outputs, &result);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct world world = {0};
	char path[64];
	bool whole = true;

	if (size < 8 + 56 || size > 1 << 16)
		return 0;
	size_t bytes = size - 8;
	uint8_t *file = malloc(bytes);
	int fd = memfd_create("schedule", MFD_CLOEXEC);
	memcpy(file, data + 8, bytes);
	store32(file + bytes - 4, checksum(file, bytes - 4));
	if (fd < 0 || write(fd, file, bytes) != (ssize_t)bytes)
		abort();
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	world.size = (int32_t)load32(file + 8);
	if (world.size < 1 || world.size > WORLD_MAX) {
		whole = false;
		world.size = 1;
	}
	for (int32_t r = 0; r < world.size; r++)
		whole = rr_schedule_load(path, r, &world.schedules[r]) == RR_OK && whole;
	close(fd);
	if (whole)
		run(&world, data);
	for (int32_t r = 0; r < world.size; r++) {
		rr_schedule_free(world.schedules[r]);
		free(world.inputs[r]);
		free(world.outputs[r]);
	}
	free(file);
	return 0;
}
