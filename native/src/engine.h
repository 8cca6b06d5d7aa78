/*
 * engine.h - the progress executor: walks one rank's rows over links, slice by slice.
 *
 * One operation at a time. Nothing blocks: rr_engine_progress() does what can be done now.
 *
 *   OPENING   post OPEN to every peer of the plan, see theirs; descriptors differ: mismatch
 *   RUNNING   rows in a bounded window; see engine_row.c. Or streams run the plan's list: let it go, wait for its end
 *   DRAINING  all rows are through; peers may still read our memory
 *
 * The engine knows no transport, no algorithm and no device but by link.h, rows.h and device.h.
 * Threads: the driver of the communicator only.
 */
#ifndef RR_ENGINE_H
#define RR_ENGINE_H

#include <stdbool.h>

#include "device.h"
#include "engine_origin.h"
#include "link.h"
#include "page.h"
#include "plan.h"
#include "stream_lists.h"
#include "trace.h"

enum rr_phase { RR_IDLE = 0, RR_OPENING = 1, RR_RUNNING = 2, RR_DRAINING = 3 };

/* A vector or the part of it that this rank holds, in one or more pieces. */
struct rr_buffer {
	char *zero; /* where coordinate 0 would lie, for one piece; NULL for several */
	const rr_extent *extents;
	const uint64_t *starts; /* coordinate of each extent's first byte */
	uint32_t count;
	uint32_t recent; /* the extent last asked for */
};

#define RR_SENT_ALL UINT32_MAX

struct rr_send_state {
	uint32_t sent;  /* slices committed; RR_SENT_ALL: all, and the link's next row may go */
	uint64_t first; /* the link's number of the first slice */
	bool pending;   /* the copy into the reserved place is under way */
	rr_token token;
	uint64_t begin_ns; /* of that copy; 0 where it is not traced */
};

struct rr_row_state {
	uint64_t begin, bytes; /* of the vector */
	uint32_t slices;
	uint32_t done;    /* slices whose dst bytes are complete */
	bool received_all; /* the links' next receiving rows may go */
	bool through;      /* everything done and sent */
	bool pending;      /* a combine is under way */
	rr_token token;
	uint64_t pending_fused; /* bit i: send i goes with the pending slice */
	uint64_t pass_begin_ns; /* of the pass at work; 0 where it is not traced */
};

struct rr_engine {
	int32_t rank, world;
	uint32_t channels;          /* links an edge has at most */
	struct rr_link **out, **in; /* [channels][world]; NULL where there is none: those of channel 0 are always there */
	struct rr_device *device;
	_Atomic uint64_t *position; /* in the progress page: row << 32 | slice */
	struct rr_trace *trace;     /* NULL: off */
	/* the operation in flight */
	enum rr_phase phase;
	const struct rr_plan *plan;
	struct rr_lists *lists;         /* of a plan with a list, which streams run */
	struct rr_emission emission;
	uint64_t op;
	struct rr_buffer buffers[RR_BUFFER_COUNT];
	struct rr_open open; /* our own */
	/*
	 * NICs read and write a device's memory: not before what the device was told to come after is over, or a producer of
	 * the input would be overtaken. Nobody may write before our OPEN, and we send nothing before it.
	 */
	bool behind;
	rr_token mark;
	uint32_t opens_posted; /* links of the plan, in their order */
	uint32_t opens_seen;
	struct rr_place (*peer_places)[RR_BUFFER_COUNT]; /* [world] */
	uint32_t *rows_sent, *rows_received;             /* [channels][world] rows that went over each link */
	uint64_t retired, opened, instances;             /* row instances: round * row_count + row */
	struct rr_row_state *row_states;                 /* [2][row_count]: two rounds are open at most */
	struct rr_send_state *send_states;               /* [2][send_count] */
	uint32_t row_room, send_room;                    /* allocated, per round */
	struct rr_origins origins;                       /* of plans that check */
	uint32_t passes_under_way;                       /* whose end nobody wakes us for */
	/* where it stands, for verdicts */
	int32_t waiting_peer;
	int32_t waiting_row;
	uint64_t waits[2]; /* of the last pass, the first row's, as in the page: for what comes; for room */
	const struct rr_link *waits_link; /* on which that is awaited; NULL: it is no data */
};

rr_status rr_engine_init(struct rr_engine *engine, int32_t rank, int32_t world, uint32_t channels);
void rr_engine_free(struct rr_engine *engine);

/*
 * Begin `op`. buffers: where this rank's input, output and scratch lie; they and plan stay until the
 * operation has ended. places: how peers reach them.
 */
rr_status rr_engine_start(struct rr_engine *engine, const struct rr_plan *plan, uint64_t op,
			  const struct rr_buffer buffers[RR_BUFFER_COUNT],
			  const struct rr_place places[RR_BUFFER_COUNT]);
/* After rr_engine_start(), for operations whose vectors links reach in a device's memory: hold OPEN back as said at `behind`. */
rr_status rr_engine_behind_device(struct rr_engine *engine);
/* RR_OK: the operation is finished. RR_AGAIN: *moved says whether anything was done. */
rr_status rr_engine_progress(struct rr_engine *engine, bool *moved);
/* Forget the operation in flight, after an error. */
void rr_engine_stop(struct rr_engine *engine);

/* engine_row.c: what one open row can do now. */
rr_status rr_engine_row(struct rr_engine *engine, uint64_t instance, bool *moved);
void rr_engine_row_open(struct rr_engine *engine, uint64_t instance);

/* This pass got no further here; `room`: where it sends. The first row's reason stays: later ones may follow from it. */
static inline void rr_engine_waits(struct rr_engine *engine, bool room, enum rr_wait_kind kind, int32_t peer)
{
	if (!engine->waits[room])
		engine->waits[room] = rr_wait_word(kind, engine->waiting_row, peer);
}

static inline struct rr_row_state *rr_engine_state(struct rr_engine *engine, uint64_t round, uint32_t row)
{
	return &engine->row_states[(round & 1) * engine->row_room + row];
}

static inline struct rr_send_state *rr_engine_send(struct rr_engine *engine, uint64_t round, uint32_t send)
{
	return &engine->send_states[(round & 1) * engine->send_room + send];
}

#endif
