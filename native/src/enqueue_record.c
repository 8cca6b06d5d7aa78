/* enqueue_record.c - a stream device that records, and faults planted in what it recorded; see enqueue_sim.h. */
#include <stdlib.h>
#include <string.h>

#include "enqueue_sim.h"
#include "status.h"

static struct rr_recorder *self(struct rr_stream_device *device)
{
	return (struct rr_recorder *)device;
}

static bool grow(void **array, uint32_t *room, uint32_t need, size_t size)
{
	if (need <= *room)
		return true;
	uint32_t more = need * 2 < 256 ? 256 : need * 2;
	void *grown = realloc(*array, more * size);
	if (!grown)
		return false;
	*array = grown;
	*room = more;
	return true;
}

static rr_status add(struct rr_recorder *recorder, const struct rr_entry *entry)
{
	if (!grow((void **)&recorder->entries, &recorder->entry_room, recorder->entry_count + 1, sizeof(*entry)))
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for %u recorded operations", recorder->entry_count);
	recorder->entries[recorder->entry_count++] = *entry;
	recorder->calls++;
	return RR_OK;
}

static rr_status add_pointers(struct rr_recorder *recorder, const void *const *pointers, uint32_t count)
{
	if (!grow((void **)&recorder->pointers, &recorder->pointer_room, recorder->pointer_count + count, sizeof(void *)))
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for %u recorded addresses", recorder->pointer_count);
	memcpy(&recorder->pointers[recorder->pointer_count], pointers, count * sizeof(*pointers));
	recorder->pointer_count += count;
	return RR_OK;
}

static rr_status record_wait_flags(struct rr_stream_device *device, uint32_t stream, uint32_t *const *flags, uint32_t count)
{
	struct rr_recorder *recorder = self(device);
	struct rr_entry entry = {.kind = RR_ENTRY_WAIT_FLAGS, .stream = stream, .first = recorder->pointer_count, .count = count};
	rr_status status = add_pointers(recorder, (const void *const *)flags, count);

	return status == RR_OK ? add(recorder, &entry) : status;
}

static rr_status record_set_flag(struct rr_stream_device *device, uint32_t stream, uint32_t *flag)
{
	return add(self(device), &(struct rr_entry){.kind = RR_ENTRY_SET_FLAG, .stream = stream, .to = flag});
}

static rr_status record_copy(struct rr_stream_device *device, uint32_t stream, void *to, const void *from, uint64_t bytes)
{
	return add(self(device), &(struct rr_entry){.kind = RR_ENTRY_COPY, .stream = stream, .to = to, .from = from, .bytes = bytes});
}

static rr_status record_combine(struct rr_stream_device *device, uint32_t stream, rr_combine_fn pass,
				const struct rr_combine *combine)
{
	struct rr_recorder *recorder = self(device);
	struct rr_entry entry = {.kind = RR_ENTRY_COMBINE, .stream = stream, .first = recorder->pointer_count, .pass = pass,
				 .combine = *combine};
	rr_status status = add_pointers(recorder, (const void *const *)combine->dst, combine->dst_count);

	entry.combine.dst = NULL;
	entry.combine.src = NULL;
	if (status == RR_OK)
		status = add_pointers(recorder, combine->src, combine->src_count);
	return status == RR_OK ? add(recorder, &entry) : status;
}

static rr_status record_record(struct rr_stream_device *device, uint32_t stream, uint32_t event)
{
	struct rr_recorder *recorder = self(device);

	if (event >= recorder->event_count)
		return rr_fail(RR_ERR_PROTOCOL, "event %u of %u is recorded", event, recorder->event_count);
	recorder->latest[event] = recorder->record_count;
	return add(recorder, &(struct rr_entry){.kind = RR_ENTRY_RECORD, .stream = stream, .event = event,
						.record = recorder->record_count++});
}

static rr_status record_wait_event(struct rr_stream_device *device, uint32_t stream, uint32_t event)
{
	struct rr_recorder *recorder = self(device);

	if (event >= recorder->event_count || recorder->latest[event] == UINT32_MAX)
		return rr_fail(RR_ERR_PROTOCOL, "stream %u waits for event %u, which nobody recorded", stream, event);
	return add(recorder, &(struct rr_entry){.kind = RR_ENTRY_WAIT_EVENT, .stream = stream, .event = event,
						.record = recorder->latest[event]});
}

static const struct rr_stream_device_ops recorder_ops = {
	.name = "recorder",
	.wait_flags = record_wait_flags,
	.set_flag = record_set_flag,
	.copy = record_copy,
	.combine = record_combine,
	.record = record_record,
	.wait_event = record_wait_event,
};

rr_status rr_recorder_init(struct rr_recorder *recorder, uint32_t event_count)
{
	*recorder = (struct rr_recorder){.device = {&recorder_ops}, .event_count = event_count};
	recorder->latest = malloc(event_count * sizeof(*recorder->latest));
	if (!recorder->latest)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for %u events", event_count);
	memset(recorder->latest, 0xff, event_count * sizeof(*recorder->latest));
	return RR_OK;
}

void rr_recorder_free(struct rr_recorder *recorder)
{
	free(recorder->entries);
	free(recorder->pointers);
	free(recorder->latest);
}

rr_status rr_recorder_touch(struct rr_recorder *recorder, enum rr_entry_kind kind, void *address, uint64_t bytes)
{
	rr_status status = add(recorder, &(struct rr_entry){.kind = kind, .to = address, .from = address, .bytes = bytes});

	recorder->calls--; /* the caller's */
	return status;
}

/* But for the addresses, which are kept apart. */
static bool combines_alike(const struct rr_combine *a, const struct rr_combine *b)
{
	return a->dst_count == b->dst_count && a->src_count == b->src_count && a->count == b->count &&
	       a->wide_sources == b->wide_sources && a->wide == b->wide && a->post == b->post && a->factor == b->factor;
}

bool rr_recorder_alike(const struct rr_recorder *recorder, uint32_t first, uint32_t second)
{
	if (second - first != recorder->entry_count - second)
		return false;
	for (uint32_t i = first; i < second; i++) {
		const struct rr_entry *a = &recorder->entries[i], *b = &recorder->entries[second - first + i];
		uint32_t count = a->kind == RR_ENTRY_COMBINE ? a->combine.dst_count + a->combine.src_count : a->count;
		if (a->kind != b->kind || a->stream != b->stream || a->event != b->event || a->count != b->count || a->to != b->to ||
		    a->from != b->from || a->bytes != b->bytes || a->pass != b->pass ||
		    !combines_alike(&a->combine, &b->combine) ||
		    (count && memcmp(&recorder->pointers[a->first], &recorder->pointers[b->first], count * sizeof(void *))))
			return false;
	}
	return true;
}

/* ---- faults ---- */

static bool is_pass(const struct rr_entry *entry)
{
	return entry->kind == RR_ENTRY_COPY || entry->kind == RR_ENTRY_COMBINE;
}

static uint32_t before_on_stream(const struct rr_recorder *recorder, uint32_t at)
{
	uint32_t stream = recorder->entries[at].stream;

	while (at-- > 0)
		if (recorder->entries[at].stream == stream)
			return at;
	return UINT32_MAX;
}

static bool can_be_at(const struct rr_recorder *recorder, int32_t fault, uint32_t at)
{
	const struct rr_entry *entry = &recorder->entries[at];
	bool copies = entry->stream & 1;
	uint32_t before;

	switch ((rr_enqueue_fault)fault) {
	case RR_FAULT_READY_UNAWAITED: return entry->kind == RR_ENTRY_WAIT_FLAGS && !copies;
	case RR_FAULT_CREDIT_UNAWAITED: return entry->kind == RR_ENTRY_WAIT_FLAGS && copies;
	case RR_FAULT_FLAG_KEPT: return entry->kind == RR_ENTRY_WAIT_FLAGS;
	case RR_FAULT_PASS_UNAWAITED:
	case RR_FAULT_SEND_UNAWAITED:
		return entry->kind == RR_ENTRY_WAIT_EVENT && entry->event < recorder->event_count - 2 &&
		       copies == (fault == RR_FAULT_PASS_UNAWAITED);
	case RR_FAULT_INPUT_UNAWAITED: return entry->kind == RR_ENTRY_WAIT_EVENT && entry->event == recorder->event_count - 2;
	case RR_FAULT_OUTPUT_UNAWAITED: return entry->kind == RR_ENTRY_WAIT_EVENT && entry->event == recorder->event_count - 1;
	case RR_FAULT_EARLY_CREDIT:
	case RR_FAULT_EARLY_READY:
		before = entry->kind == RR_ENTRY_SET_FLAG && copies == (fault == RR_FAULT_EARLY_READY) ? before_on_stream(recorder, at)
											: UINT32_MAX;
		return before != UINT32_MAX && is_pass(&recorder->entries[before]);
	case RR_FAULT_NONE:
	case RR_FAULT_RECEIVES_FIRST: break;
	}
	return false;
}

static void plant_at(struct rr_recorder *recorder, int32_t fault, uint32_t at)
{
	struct rr_entry *entry = &recorder->entries[at];

	switch ((rr_enqueue_fault)fault) {
	case RR_FAULT_READY_UNAWAITED:
	case RR_FAULT_CREDIT_UNAWAITED: entry->hasty = true; break;
	case RR_FAULT_FLAG_KEPT: entry->forgetful = true; break;
	case RR_FAULT_PASS_UNAWAITED:
	case RR_FAULT_SEND_UNAWAITED:
	case RR_FAULT_INPUT_UNAWAITED:
	case RR_FAULT_OUTPUT_UNAWAITED: entry->dropped = true; break;
	case RR_FAULT_EARLY_CREDIT:
	case RR_FAULT_EARLY_READY: {
		struct rr_entry *before = &recorder->entries[before_on_stream(recorder, at)], moved = *entry;
		*entry = *before;
		*before = moved;
		break;
	}
	case RR_FAULT_NONE:
	case RR_FAULT_RECEIVES_FIRST: break;
	}
}

static uint32_t run_end(const struct rr_recorder *recorder, uint32_t at)
{
	uint32_t end = at;

	while (end < recorder->entry_count && recorder->entries[end].stream == recorder->entries[at].stream)
		end++;
	return end;
}

/* Wherever a stretch of sends is followed by one of passes, the two change places. */
static rr_status receives_first(struct rr_recorder *recorder, uint64_t *places)
{
	struct rr_entry *sends = malloc((recorder->entry_count + 1) * sizeof(*sends));
	uint32_t at = 0;

	if (!sends)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for %u recorded operations", recorder->entry_count);
	while (at < recorder->entry_count) {
		uint32_t middle = run_end(recorder, at), end = middle < recorder->entry_count ? run_end(recorder, middle) : middle;
		bool swap = recorder->entries[at].stream & 1 && end > middle && recorder->entries[at].kind == RR_ENTRY_WAIT_FLAGS &&
			    recorder->entries[middle].kind == RR_ENTRY_WAIT_FLAGS;
		if (!swap) {
			at = middle;
			continue;
		}
		uint32_t count = middle - at;
		memcpy(sends, &recorder->entries[at], count * sizeof(*sends));
		memmove(&recorder->entries[at], &recorder->entries[middle], (end - middle) * sizeof(*sends));
		memcpy(&recorder->entries[at + end - middle], sends, count * sizeof(*sends));
		++*places;
		at = end;
	}
	free(sends);
	return RR_OK;
}

void rr_recorder_plant(struct rr_recorder *recorders, int32_t world, int32_t fault, uint32_t at, uint64_t *places)
{
	*places = 0;
	for (int32_t r = 0; r < world; r++) {
		if (fault == RR_FAULT_RECEIVES_FIRST) {
			receives_first(&recorders[r], places);
			continue;
		}
		for (uint32_t i = 0; i < recorders[r].entry_count; i++)
			if (can_be_at(&recorders[r], fault, i) && (*places)++ == at)
				plant_at(&recorders[r], fault, i);
	}
}
