/*
 * engine_enqueue.h - the enqueue executor: one rank's rows as one list of operations on streams.
 *
 *   engine_enqueue_order.c   made once a plan: the items in their order, and the events that they wait for
 *   engine_enqueue.c         emitted at every call: the same operations, with the buffers of the call
 *
 * The order is that of rdmaring/schedule/enqueue.py, which says why, and enqueue_proof.py proves it. Each channel has
 * two streams: 2c computes (what is received, and what is made of it), 2c + 1 copies (what is sent).
 *
 * Threads: pure data once made; emit() may be called by one thread at a time per stream device.
 */
#ifndef RR_ENGINE_ENQUEUE_H
#define RR_ENGINE_ENQUEUE_H

#include "engine.h"
#include "enqueued.h"
#include "stream_device.h"

#define RR_ENQUEUE_NONE UINT32_MAX
#define RR_ENQUEUE_DEPTH_MAX 256u /* of items pulled forward for each other; enqueue.py */

struct rr_enqueue_item {
	uint32_t round, row, slice;
	uint32_t send;   /* of rows->sends; RR_ENQUEUE_NONE: the pass */
	uint32_t stream;
	uint32_t event;  /* recorded behind it, or RR_ENQUEUE_NONE */
	uint32_t wait_begin, wait_end; /* of waits */
	uint32_t number; /* of the send's transfer on its link; of a pass: where its receives' begin in numbers */
};

struct rr_enqueue {
	const struct rr_plan *plan;
	uint32_t channels;
	uint32_t item_count, wait_count, number_count;
	uint32_t event_count; /* two more are for the beginning and the end */
	struct rr_enqueue_item *items;
	uint32_t *waits;   /* events; while it is made, items */
	uint32_t *numbers; /* of transfers */
};

/*
 * channels: links an edge has, the same for all peers of the plan, as given to rr_plan_make(). The plan stays while the
 * list is used. RR_ERR_UNSUPPORTED: the progress executor must serve this plan.
 */
rr_status rr_enqueue_make(const struct rr_plan *plan, uint32_t channels, struct rr_enqueue **out);
void rr_enqueue_free(struct rr_enqueue *enqueue);

static inline uint32_t rr_enqueue_stream_count(const struct rr_enqueue *enqueue)
{
	return 2 * enqueue->channels;
}

static inline uint32_t rr_enqueue_event_count(const struct rr_enqueue *enqueue)
{
	return enqueue->event_count + 2;
}

/*
 * Append the list. It begins when stream 0 has come so far, and stream 0 ends behind all of it.
 * out, in: [rows->link_count] as the rows number links; buffers as for rr_engine_start(). Nothing is allocated.
 */
rr_status rr_enqueue_emit(const struct rr_enqueue *enqueue, struct rr_stream_device *device,
			  const struct rr_enqueued_link *out, const struct rr_enqueued_link *in,
			  struct rr_buffer buffers[RR_BUFFER_COUNT]);

/* Of a list whose waits name items. Items that others wait for get an event; its number is free again behind the last wait. */
rr_status rr_enqueue_number_events(struct rr_enqueue *enqueue);

/* Bytes of the vector that a row covers in a round. */
struct rr_range rr_enqueue_range(const struct rr_plan *plan, const struct rr_row *row, uint32_t round);

#endif
