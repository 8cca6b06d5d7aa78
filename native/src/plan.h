/*
 * plan.h - a schedule bound to a count, a data type, a chunk table and a communicator.
 *
 * Immutable after rr_plan_create() but for the caches named so. Offsets are in bytes.
 */
#ifndef RR_PLAN_H
#define RR_PLAN_H

#include <stdbool.h>

#include "reduce.h"
#include "rows.h"
#include "wire.h"

/* Bytes of the vector. */
struct rr_range {
	uint64_t begin, end;
};

/* What a rank of this node reads; see stage.h. */
struct rr_staged {
	struct rr_range range;
	int32_t reader; /* the first, where there are several */
};

struct rr_plan {
	struct rr_comm *comm; /* referenced, so that it is there to say that it is closed; NULL: the engine alone */
	uint64_t process_mark; /* of the process that made it; see forked.h */
	struct rr_descriptor descriptor;
	uint32_t descriptor_index; /* in the page's table; may be taken over by a later plan */
	struct rr_schedule *rows;
	uint64_t *chunk_offsets; /* [chunk_count + 1] */
	uint64_t vector_bytes;
	uint32_t element_bytes;
	uint32_t slice_bytes;
	uint32_t round_count;
	uint64_t cell_bytes; /* of one scratch cell */
	uint64_t scratch_bytes;
	rr_combine_fn pass;
	rr_combine_fn wide_pass; /* of rows with float32 in part; NULL where there are none */
	bool post;
	double factor;
	bool mailbox;
	int32_t *peers; /* that this rank has links to in this schedule */
	uint32_t peer_count;
	uint32_t *links; /* all of them, as the rows number them: channel * world + peer */
	uint32_t link_total;
	struct rr_listed *listed; /* its list; NULL: the progress executor runs its rows */
	struct rr_device *device; /* in whose memory the vectors lie; NULL: the host's */
	bool far;  /* some of them are on other nodes */
	bool rdma; /* and a link to one of these is RDMA's */
	bool uses[RR_BUFFER_COUNT]; /* which buffers this rank's rows touch */
	struct rr_staged *staged; /* of INPUT */
	uint32_t staged_count;
	bool check;  /* slices carry two CRC32C: the hop's and the origin's */
	bool *kept;  /* [row_count] where check: which rows' dst is read again; see engine_origin.h */
	bool paired; /* counts differ by pair: chunk_offsets are this rank's own view */
	/*
	 * all_to_all: the output is not one interval of the vector but chunk s * world + rank of every s, one behind the
	 * other. output_begin is then 0 and output_end its size; a blocking call's pieces are kept here.
	 */
	bool scattered;
	rr_extent *extents; /* [world] */
	uint64_t *starts;   /* [world] */
	/* what this rank holds: [begin, end) of the vector */
	uint64_t input_begin, input_end;
	uint64_t output_begin, output_end;
	/* rr_plan_bind() */
	const void *bound_input;
	void *bound_output;
	bool bound;
	/* cache: places of the last single-piece buffers */
	uint64_t place_generation;
	const void *place_address[2];
	struct rr_place place[2];
};

/* A plan without a communicator: the engine alone needs no more. channels: see rr_schedule_bind(). */
rr_status rr_plan_make(int32_t rank, int32_t world, uint64_t slot_bytes, const uint32_t *channels,
		       const rr_plan_spec *spec, struct rr_plan **out);
void rr_plan_unmake(struct rr_plan *plan);

static inline uint64_t rr_plan_chunk_bytes(const struct rr_plan *plan, uint32_t chunk)
{
	return plan->chunk_offsets[chunk + 1] - plan->chunk_offsets[chunk];
}

/* Bytes of a vector part: chunk c in round k is [plan_part(c, k), plan_part(c, k + 1)). */
static inline uint64_t rr_plan_part(const struct rr_plan *plan, uint32_t chunk, uint32_t round)
{
	uint64_t begin = plan->chunk_offsets[chunk];
	uint64_t elements = (plan->chunk_offsets[chunk + 1] - begin) / plan->element_bytes;

	if (plan->round_count == 1)
		return round ? plan->chunk_offsets[chunk + 1] : begin;
	/* 128-bit: elements * round overflows 64 bits for vectors beyond 2^48 elements */
	return begin + (uint64_t)((unsigned __int128)elements * round / plan->round_count) * plan->element_bytes;
}

/* Elements of the plan's data type, bit for bit. past: the place is best filled past the caches (apart.h). */
static inline void rr_plan_copy(const struct rr_plan *plan, void *to, const void *from, uint64_t bytes, bool past)
{
	struct rr_combine pass = {.dst = &to, .dst_count = 1, .src = &from, .src_count = 1,
				  .count = bytes / plan->element_bytes, .past_last = past};

	plan->pass(&pass);
}

#endif
