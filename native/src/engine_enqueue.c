/* engine_enqueue.c - emits the list of a plan: each item as operations on its stream. */
#include "engine_enqueue.h"

#include <stdlib.h>

#include "engine_slice.h"
#include "status.h"

struct rr_range rr_enqueue_range(const struct rr_plan *plan, const struct rr_row *row, uint32_t round)
{
	uint32_t begin = (uint32_t)row->chunk_begin, end = (uint32_t)row->chunk_end;

	if (begin == end)
		return (struct rr_range){0, 0};
	if (plan->round_count == 1)
		return (struct rr_range){plan->chunk_offsets[begin], plan->chunk_offsets[end]};
	return (struct rr_range){rr_plan_part(plan, begin, round), rr_plan_part(plan, begin, round + 1)};
}

rr_status rr_enqueue_number_events(struct rr_enqueue *list)
{
	uint32_t *waiters = calloc((size_t)list->item_count + 1, sizeof(*waiters));
	uint32_t *idle = calloc((size_t)list->item_count + 1, sizeof(*idle));
	uint32_t idle_count = 0;
	rr_status status = RR_OK;

	if (!waiters || !idle) {
		status = rr_fail(RR_ERR_NO_MEMORY, "no memory for a list of %u items", list->item_count);
		goto free_arrays;
	}
	for (uint32_t w = 0; w < list->wait_count; w++)
		waiters[list->waits[w]]++;
	for (uint32_t i = 0; i < list->item_count; i++) {
		struct rr_enqueue_item *item = &list->items[i];
		for (uint32_t w = item->wait_begin; w < item->wait_end; w++) {
			uint32_t awaited = list->waits[w];
			list->waits[w] = list->items[awaited].event;
			if (--waiters[awaited] == 0)
				idle[idle_count++] = list->items[awaited].event;
		}
		if (waiters[i])
			item->event = idle_count ? idle[--idle_count] : list->event_count++;
	}

free_arrays:
	free(waiters);
	free(idle);
	return status;
}

void rr_enqueue_free(struct rr_enqueue *enqueue)
{
	if (!enqueue)
		return;
	free(enqueue->items);
	free(enqueue->waits);
	free(enqueue->numbers);
	free(enqueue);
}

/* ---- emitting ---- */

struct emission {
	const struct rr_enqueue *list;
	struct rr_stream_device *device;
	const struct rr_enqueued_link *out, *in;
	struct rr_engine *engine; /* only its buffers are used */
};

/* One item at work, in the engine's terms. */
struct emitted {
	const struct rr_enqueue_item *item;
	struct rr_row_state state;
	struct rr_open_row work;
	uint64_t offset;
	uint32_t bytes;
};

static char *slot_of(const struct rr_enqueued_link *link, uint32_t number)
{
	return link->slots + (uint64_t)(number % link->slot_count) * link->slot_bytes;
}

static uint32_t *flag_of(const struct rr_enqueued_link *link, uint32_t *flags, uint32_t number)
{
	return flags + (size_t)(number % link->slot_count) * link->flag_stride;
}

/* One pass over a stretch in which all local buffers lie in one piece. */
static rr_status emit_stretch(const struct emission *emission, const struct emitted *at, const void **sources, uint32_t count,
			      char *dst, uint64_t bytes)
{
	const struct rr_plan *plan = emission->list->plan;
	const struct rr_row *row = at->work.row;
	const struct rr_stream_device_ops *ops = emission->device->ops;
	bool last = (row->flags & RR_ROW_LAST) && plan->post;
	uint32_t width = rr_slice_width(row), width_received = rr_slice_width_received(row);
	bool plain = width == 1 && width_received == 1;
	uint64_t received = row->operand_buffer < 0 ? UINT64_MAX : ~(1ull << row->operand_at);
	void *target = dst;

	if (count == 1 && !last && plain)
		return sources[0] == dst ? RR_OK : ops->copy(emission->device, at->item->stream, dst, sources[0], bytes);
	struct rr_combine pass = {.dst = &target, .dst_count = 1, .src = sources, .src_count = count,
				  .count = bytes / plan->element_bytes, .wide = width > 1,
				  .wide_sources = width_received > 1 ? received : 0, .post = last, .factor = plan->factor,
				  .dtype = (uint8_t)plan->descriptor.dtype, .redop = (uint8_t)plan->descriptor.redop};
	return ops->combine(emission->device, at->item->stream, plain ? plan->pass : plan->wide_pass, &pass);
}

/* All sources in their stated order, over each stretch. */
static rr_status emit_combine(const struct emission *emission, const struct emitted *at)
{
	const struct rr_plan *plan = emission->list->plan;
	const struct rr_row *row = at->work.row;
	struct rr_buffer *buffers = emission->engine->buffers;
	uint32_t receives = (uint32_t)(row->receive_end - row->receive_begin);
	int32_t operand = row->operand_buffer >= 0 ? row->operand_at : -1;
	uint32_t count = receives + (operand >= 0 ? 1 : 0);
	rr_status status = RR_OK;

	for (uint64_t done = 0; done < at->bytes && status == RR_OK;) {
		const void *sources[RR_COMBINE_SOURCES_MAX + 1];
		uint64_t run = at->bytes - done, offset = at->offset + done;
		char *dst = rr_slice_address(&buffers[row->buffer],
					     rr_slice_coordinate(&at->work, row->buffer, row->cell, offset), &run);
		if (operand >= 0)
			sources[operand] = rr_slice_address(&buffers[row->operand_buffer],
							    rr_slice_coordinate(&at->work, row->operand_buffer,
										row->operand_cell, offset),
							    &run);
		for (uint32_t i = 0, s = 0; i < receives; i++, s++) {
			const struct rr_receive *receive = &plan->rows->receives[(uint32_t)row->receive_begin + i];
			s += (int32_t)s == operand ? 1 : 0;
			sources[s] = slot_of(&emission->in[receive->link], emission->list->numbers[at->item->number + i]) +
				     done * rr_slice_width_received(row);
		}
		status = emit_stretch(emission, at, sources, count, dst, run);
		done += run;
	}
	return status;
}

static rr_status emit_pass(const struct emission *emission, const struct emitted *at)
{
	const struct rr_row *row = at->work.row;
	const struct rr_stream_device_ops *ops = emission->device->ops;
	const struct rr_receive *receives = &emission->list->plan->rows->receives[row->receive_begin];
	const uint32_t *numbers = &emission->list->numbers[at->item->number];
	uint32_t count = (uint32_t)(row->receive_end - row->receive_begin);
	uint32_t *flags[RR_COMBINE_SOURCES_MAX];
	rr_status status = RR_OK;

	for (uint32_t i = 0; i < count; i++) {
		const struct rr_enqueued_link *in = &emission->in[receives[i].link];
		flags[i] = flag_of(in, in->ready, numbers[i]);
	}
	if (count)
		status = ops->wait_flags(emission->device, at->item->stream, flags, count);
	if (status == RR_OK)
		status = emit_combine(emission, at);
	for (uint32_t i = 0; i < count && status == RR_OK; i++) {
		const struct rr_enqueued_link *in = &emission->in[receives[i].link];
		status = ops->set_flag(emission->device, at->item->stream, flag_of(in, in->credit, numbers[i]));
	}
	return status;
}

static rr_status emit_send(const struct emission *emission, const struct emitted *at)
{
	const struct rr_row *row = at->work.row;
	const struct rr_stream_device_ops *ops = emission->device->ops;
	const struct rr_enqueued_link *out = &emission->out[emission->list->plan->rows->sends[at->item->send].link];
	uint32_t *credit = flag_of(out, out->credit, at->item->number), width = rr_slice_width(row);
	rr_status status = ops->wait_flags(emission->device, at->item->stream, &credit, 1);

	for (uint64_t done = 0; done < at->bytes && status == RR_OK;) {
		uint64_t run = at->bytes - done;
		const char *from = rr_slice_address(&emission->engine->buffers[row->buffer],
						    rr_slice_coordinate(&at->work, row->buffer, row->cell, at->offset + done),
						    &run);
		status = ops->copy(emission->device, at->item->stream, slot_of(out, at->item->number) + done * width, from,
				   run * width);
		done += run;
	}
	return status == RR_OK ? ops->set_flag(emission->device, at->item->stream, flag_of(out, out->ready, at->item->number))
			       : status;
}

static rr_status emit_item(const struct emission *emission, const struct rr_enqueue_item *item)
{
	const struct rr_plan *plan = emission->list->plan;
	const struct rr_row *row = &plan->rows->rows[item->row];
	const struct rr_stream_device_ops *ops = emission->device->ops;
	struct rr_range range = rr_enqueue_range(plan, row, item->round);
	struct emitted at = {.item = item, .state = {.begin = range.begin, .bytes = range.end - range.begin}};
	rr_status status = RR_OK;

	at.work = (struct rr_open_row){.engine = emission->engine, .plan = plan, .row = row, .state = &at.state,
				       .round = item->round, .index = item->row};
	at.offset = rr_slice_offset(&at.work, item->slice);
	at.bytes = rr_slice_bytes(&at.work, at.offset);
	for (uint32_t w = item->wait_begin; w < item->wait_end && status == RR_OK; w++)
		status = ops->wait_event(emission->device, item->stream, emission->list->waits[w]);
	if (status == RR_OK && item->send != RR_ENQUEUE_NONE)
		status = emit_send(emission, &at);
	else if (status == RR_OK && row->action != RR_ACTION_NONE)
		status = emit_pass(emission, &at);
	if (status == RR_OK && item->event != RR_ENQUEUE_NONE)
		status = ops->record(emission->device, item->stream, item->event);
	return status;
}

static rr_status check_links(const struct rr_enqueue *list, const struct rr_enqueued_link *out,
			     const struct rr_enqueued_link *in, bool wide)
{
	const struct rr_plan *plan = list->plan;
	uint64_t slice_bytes = (uint64_t)plan->slice_bytes * (wide ? 2 : 1);

	for (uint32_t i = 0; i < plan->link_total; i++) {
		uint32_t link = plan->links[i];
		const struct rr_enqueued_link *ends[] = {plan->rows->sends_to[link] ? &out[link] : NULL,
							 plan->rows->receives_from[link] ? &in[link] : NULL};
		for (int e = 0; e < 2; e++)
			if (ends[e] && (!ends[e]->slot_count || ends[e]->slot_bytes < slice_bytes))
				return rr_fail(RR_ERR_UNSUPPORTED,
					       "the link %s rank %u has %u slots of %llu bytes, slices have up to %llu",
					       e ? "from" : "to", link % plan->rows->world, ends[e]->slot_count,
					       (unsigned long long)ends[e]->slot_bytes, (unsigned long long)slice_bytes);
	}
	return RR_OK;
}

rr_status rr_enqueue_emit(const struct rr_enqueue *list, struct rr_stream_device *device, const struct rr_enqueued_link *out,
			  const struct rr_enqueued_link *in, struct rr_buffer buffers[RR_BUFFER_COUNT])
{
	const struct rr_stream_device_ops *ops = device->ops;
	uint32_t begin = list->event_count, end = list->event_count + 1;
	struct rr_engine engine = {.plan = list->plan};
	struct emission emission = {.list = list, .device = device, .out = out, .in = in, .engine = &engine};
	rr_status status = check_links(list, out, in, list->plan->wide_pass != NULL);

	for (int b = 0; b < RR_BUFFER_COUNT; b++)
		engine.buffers[b] = buffers[b];
	if (status == RR_OK)
		status = ops->record(device, 0, begin);
	for (uint32_t s = 1; s < rr_enqueue_stream_count(list) && status == RR_OK; s++)
		status = ops->wait_event(device, s, begin);
	for (uint32_t i = 0; i < list->item_count && status == RR_OK; i++)
		status = emit_item(&emission, &list->items[i]);
	for (uint32_t s = 1; s < rr_enqueue_stream_count(list) && status == RR_OK; s++) {
		status = ops->record(device, s, end);
		if (status == RR_OK)
			status = ops->wait_event(device, 0, end);
	}
	return status;
}
