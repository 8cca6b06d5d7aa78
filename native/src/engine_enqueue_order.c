/*
 * engine_enqueue_order.c - the items of the enqueue executor in their order.
 *
 * Follows rdmaring/schedule/enqueue.py function by function; a test compares the lists. Here an item's prerequisites
 * are visited twice: to list what is not listed yet, then to find the latest item of each stream among them.
 */
#include <stdlib.h>
#include <string.h>

#include "engine_enqueue.h"
#include "status.h"

enum visit { REACH, COLLECT };

/* Of a row on one of its links. */
struct place {
	uint32_t turn;          /* among the link's rows of the same step */
	uint32_t row_before;    /* that the link serves before, or RR_ENQUEUE_NONE */
	uint32_t edge_before;   /* its send, or receive */
};

struct key {
	uint32_t step, turn, slice, kind, row, send;
};

struct maker {
	const struct rr_plan *plan;
	const struct rr_schedule *rows;
	struct rr_enqueue *list;
	uint32_t round, stream_count;
	struct place *sends, *receives;      /* [send_count], [receive_count] */
	uint32_t *numbers_out, *numbers_in;  /* [link_count] transfers so far */
	/* of one round */
	struct rr_range *ranges;             /* [row_count] */
	uint32_t *slices;                    /* [row_count] */
	uint32_t *passes_done, *sends_done;  /* listed so far */
	uint64_t *pass_base, *send_base;     /* where their places begin below */
	uint32_t *pass_at, *send_at;         /* place in the list, of each slice */
	struct key *keys;
	/* latest place of each stream, plus one */
	uint32_t *needs;  /* [streams] of the item at hand */
	uint32_t *known;  /* [streams][streams] what a stream comes after already */
	uint32_t *copied; /* [rounds][streams] at the end of each round, copy streams only */
	uint32_t item_room, wait_room, number_room;
};

static uint64_t length(const struct maker *maker, uint32_t row)
{
	return maker->ranges[row].end - maker->ranges[row].begin;
}

static uint32_t slices_of(const struct maker *maker, uint64_t bytes)
{
	return (uint32_t)((bytes + maker->plan->slice_bytes - 1) / maker->plan->slice_bytes);
}

/* ---- places on links ---- */

struct link_end {
	int64_t step; /* of the last row seen */
	uint32_t turns, row, edge;
};

static void place_edge(struct link_end *end, int64_t step, uint32_t row, uint32_t edge, struct place *place)
{
	if (end->step != step)
		end->turns = 0;
	*place = (struct place){.turn = end->turns, .row_before = end->row, .edge_before = end->edge};
	*end = (struct link_end){.step = step, .turns = end->turns + 1, .row = row, .edge = edge};
}

static rr_status place_rows(struct maker *maker)
{
	const struct rr_schedule *rows = maker->rows;
	struct link_end *ends = calloc((size_t)rows->link_count * 2, sizeof(*ends));

	if (!ends)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for %u links", rows->link_count);
	for (uint32_t i = 0; i < rows->link_count * 2; i++)
		ends[i] = (struct link_end){.step = -1, .row = RR_ENQUEUE_NONE, .edge = RR_ENQUEUE_NONE};
	for (uint32_t r = 0; r < rows->row_count; r++) {
		const struct rr_row *row = &rows->rows[r];
		bool receives = row->receive_end > row->receive_begin;
		for (int32_t i = row->receive_begin; i < row->receive_end; i++)
			place_edge(&ends[rows->receives[i].link], row->step, r, (uint32_t)i, &maker->receives[i]);
		for (int32_t i = row->send_begin; i < row->send_end; i++)
			place_edge(&ends[rows->link_count + rows->sends[i].link], row->step + (receives ? 1 : 0), r, (uint32_t)i,
				   &maker->sends[i]);
	}
	free(ends);
	return RR_OK;
}

/* ---- the list ---- */

static bool grow(void **array, uint32_t *room, uint32_t need, size_t size)
{
	if (need <= *room)
		return true;
	uint32_t more = *room ? *room * 2 : 64;
	more = more < need ? need : more;
	void *grown = realloc(*array, (size_t)more * size);
	if (!grown)
		return false;
	*array = grown;
	*room = more;
	return true;
}

static rr_status put(struct maker *maker, uint32_t r, uint32_t slice, uint32_t send, uint32_t *place)
{
	struct rr_enqueue *list = maker->list;
	const struct rr_row *row = &maker->rows->rows[r];
	uint32_t receives = send == RR_ENQUEUE_NONE ? (uint32_t)(row->receive_end - row->receive_begin) : 0;
	uint32_t stream = 2 * (rr_row_channel(row) % list->channels) + (send == RR_ENQUEUE_NONE ? 0 : 1);
	struct rr_enqueue_item item = {.round = maker->round, .row = r, .slice = slice, .send = send, .stream = stream,
				       .event = RR_ENQUEUE_NONE, .wait_begin = list->wait_count};

	if (!grow((void **)&list->items, &maker->item_room, list->item_count + 1, sizeof(*list->items)) ||
	    !grow((void **)&list->waits, &maker->wait_room, list->wait_count + maker->stream_count, sizeof(*list->waits)) ||
	    !grow((void **)&list->numbers, &maker->number_room, list->number_count + receives + 1, sizeof(*list->numbers)))
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for a list of %u items", list->item_count);
	for (uint32_t s = 0; s < maker->stream_count; s++) {
		uint32_t *known = &maker->known[stream * maker->stream_count + s];
		if (s == stream || maker->needs[s] <= *known)
			continue;
		*known = maker->needs[s];
		list->waits[list->wait_count++] = maker->needs[s] - 1;
	}
	item.wait_end = list->wait_count;
	if (send != RR_ENQUEUE_NONE) {
		item.number = maker->numbers_out[maker->rows->sends[send].link]++;
	} else {
		item.number = list->number_count;
		for (int32_t i = row->receive_begin; i < row->receive_end; i++)
			list->numbers[list->number_count++] = maker->numbers_in[maker->rows->receives[i].link]++;
	}
	list->items[list->item_count] = item;
	*place = list->item_count++;
	return RR_OK;
}

static rr_status reach_pass(struct maker *maker, uint32_t row, uint32_t count, uint32_t depth);
static rr_status reach_send(struct maker *maker, uint32_t row, uint32_t send, uint32_t count, uint32_t depth);
static rr_status visit_needs(struct maker *maker, enum visit visit, uint32_t row, uint32_t slice, uint32_t depth);

static void need_place(struct maker *maker, uint32_t place)
{
	uint32_t *need = &maker->needs[maker->list->items[place].stream];

	*need = *need > place ? *need : place + 1;
}

/* `slices` of an earlier row, and perhaps their sends. */
static rr_status visit_need(struct maker *maker, enum visit visit, uint32_t earlier, uint32_t slices, bool released,
			    uint32_t depth)
{
	const struct rr_row *row = &maker->rows->rows[earlier];
	rr_status status = visit == REACH ? reach_pass(maker, earlier, slices, depth + 1) : RR_OK;

	for (int32_t i = row->send_begin; released && i < row->send_end && status == RR_OK; i++) {
		uint32_t send = (uint32_t)i;
		if (visit == REACH) {
			status = reach_send(maker, earlier, send, slices, depth + 1);
		} else {
			/* Once the whole row has been sent its end is as good, and serves the slices that follow too. */
			bool whole = maker->sends_done[send] == maker->slices[earlier];
			uint32_t slice = (whole ? maker->slices[earlier] : slices) - 1;
			need_place(maker, maker->send_at[maker->send_base[send] + slice]);
		}
	}
	if (row->action != RR_ACTION_NONE) {
		if (visit == COLLECT)
			need_place(maker, maker->pass_at[maker->pass_base[earlier] + slices - 1]);
		return status;
	}
	/* Nothing is done there: what it comes after counts. */
	for (uint32_t slice = 0; slice < slices && status == RR_OK; slice++)
		status = visit_needs(maker, visit, earlier, slice, depth + 1);
	return status;
}

static bool touches(const struct rr_row *row, int32_t cell)
{
	return (row->buffer == RR_SCRATCH && row->cell == cell) ||
	       (row->operand_buffer == RR_SCRATCH && row->operand_cell == cell);
}

/* An empty row does nothing: who overwrites its cell comes after the rows that it came after. */
static rr_status visit_cell(struct maker *maker, enum visit visit, uint32_t empty, int32_t cell, uint32_t depth)
{
	const struct rr_row *row = &maker->rows->rows[empty];
	rr_status status = RR_OK;

	if (depth > RR_ENQUEUE_DEPTH_MAX)
		return rr_fail(RR_ERR_UNSUPPORTED, "row %u and what it comes after are more than %u empty rows of one cell", empty,
			       RR_ENQUEUE_DEPTH_MAX);
	for (int32_t i = row->after_begin; i < row->after_end && status == RR_OK; i++) {
		const struct rr_after *after = &maker->rows->afters[i];
		uint32_t earlier = (uint32_t)after->row;
		if (!touches(&maker->rows->rows[earlier], cell))
			continue;
		status = length(maker, earlier)
			? visit_need(maker, visit, earlier, maker->slices[earlier], after->kind == RR_AFTER_RELEASED, depth)
			: visit_cell(maker, visit, earlier, cell, depth + 1);
	}
	return status;
}

/* What a slice comes after, by the engine's rule; engine_after.c. */
static rr_status visit_needs(struct maker *maker, enum visit visit, uint32_t r, uint32_t slice, uint32_t depth)
{
	const struct rr_row *row = &maker->rows->rows[r];
	struct rr_range whole = maker->ranges[r];
	uint64_t begin = whole.begin + (uint64_t)slice * maker->plan->slice_bytes;
	uint64_t end = begin + maker->plan->slice_bytes < whole.end ? begin + maker->plan->slice_bytes : whole.end;
	rr_status status = RR_OK;

	if (depth > RR_ENQUEUE_DEPTH_MAX)
		return rr_fail(RR_ERR_UNSUPPORTED, "row %u needs more than %u rows pulled forward one for another", r,
			       RR_ENQUEUE_DEPTH_MAX);
	for (int32_t i = row->after_begin; i < row->after_end && status == RR_OK; i++) {
		const struct rr_after *after = &maker->rows->afters[i];
		uint32_t earlier = (uint32_t)after->row;
		struct rr_range other = maker->ranges[earlier];
		uint64_t need;

		if (other.begin == other.end) {
			if (row->buffer == RR_SCRATCH)
				status = visit_cell(maker, visit, earlier, row->cell, depth);
			continue;
		}
		if (whole.begin >= other.end || whole.end <= other.begin)
			need = other.end - other.begin; /* they share a cell, not bytes of the vector */
		else if (begin >= other.end || end <= other.begin)
			continue;
		else
			need = (end < other.end ? end : other.end) - other.begin;
		status = visit_need(maker, visit, earlier, slices_of(maker, need), after->kind == RR_AFTER_RELEASED, depth);
	}
	return status;
}

static rr_status collect_pass(struct maker *maker, uint32_t row, uint32_t slice)
{
	memset(maker->needs, 0, maker->stream_count * sizeof(*maker->needs));
	if (maker->rows->rows[row].action == RR_ACTION_NONE)
		return RR_OK;
	rr_status status = visit_needs(maker, COLLECT, row, slice, 0);
	if (maker->round < 2) /* else its cells are those of two rounds before */
		return status;
	for (uint32_t s = 1; s < maker->stream_count; s += 2) {
		uint32_t copied = maker->copied[(maker->round - 2) * maker->stream_count + s];
		maker->needs[s] = maker->needs[s] > copied ? maker->needs[s] : copied;
	}
	return status;
}

/* The place whose link serves before it what has slices in this round. places: of sends, or of receives. */
static const struct place *past_empty(const struct maker *maker, const struct place *places, uint32_t edge)
{
	const struct place *place = &places[edge];

	while (place->row_before != RR_ENQUEUE_NONE && maker->slices[place->row_before] == 0)
		place = &places[place->edge_before];
	return place;
}

static rr_status reach_pass(struct maker *maker, uint32_t r, uint32_t count, uint32_t depth)
{
	const struct rr_row *row = &maker->rows->rows[r];
	rr_status status = RR_OK;

	if (depth > RR_ENQUEUE_DEPTH_MAX)
		return rr_fail(RR_ERR_UNSUPPORTED, "row %u needs more than %u rows pulled forward one for another", r,
			       RR_ENQUEUE_DEPTH_MAX);
	while (maker->passes_done[r] < count && status == RR_OK) {
		uint32_t slice = maker->passes_done[r];
		for (int32_t i = row->receive_begin; slice == 0 && i < row->receive_end && status == RR_OK; i++) {
			uint32_t before = past_empty(maker, maker->receives, (uint32_t)i)->row_before;
			if (before != RR_ENQUEUE_NONE)
				status = reach_pass(maker, before, maker->slices[before], depth + 1);
		}
		if (status == RR_OK)
			status = visit_needs(maker, REACH, r, slice, depth);
		if (status == RR_OK)
			status = collect_pass(maker, r, slice);
		if (status == RR_OK)
			status = put(maker, r, slice, RR_ENQUEUE_NONE, &maker->pass_at[maker->pass_base[r] + slice]);
		if (status == RR_OK)
			maker->passes_done[r]++;
	}
	return status;
}

static rr_status reach_send(struct maker *maker, uint32_t r, uint32_t send, uint32_t count, uint32_t depth)
{
	bool none = maker->rows->rows[r].action == RR_ACTION_NONE;
	rr_status status = RR_OK;

	if (depth > RR_ENQUEUE_DEPTH_MAX)
		return rr_fail(RR_ERR_UNSUPPORTED, "row %u needs more than %u rows pulled forward one for another", r,
			       RR_ENQUEUE_DEPTH_MAX);
	while (maker->sends_done[send] < count && status == RR_OK) {
		uint32_t slice = maker->sends_done[send];
		const struct place *place = past_empty(maker, maker->sends, send);
		if (slice == 0 && place->row_before != RR_ENQUEUE_NONE)
			status = reach_send(maker, place->row_before, place->edge_before, maker->slices[place->row_before], depth + 1);
		if (status == RR_OK)
			status = reach_pass(maker, r, slice + 1, depth + 1);
		memset(maker->needs, 0, maker->stream_count * sizeof(*maker->needs));
		if (status == RR_OK && none)
			status = visit_needs(maker, COLLECT, r, slice, depth);
		else if (status == RR_OK)
			need_place(maker, maker->pass_at[maker->pass_base[r] + slice]);
		if (status == RR_OK)
			status = put(maker, r, slice, send, &maker->send_at[maker->send_base[send] + slice]);
		if (status == RR_OK)
			maker->sends_done[send]++;
	}
	return status;
}

/* ---- rounds ---- */

static int by_key(const void *left, const void *right)
{
	const uint32_t *a = left, *b = right;

	for (size_t i = 0; i < sizeof(struct key) / sizeof(*a); i++)
		if (a[i] != b[i])
			return a[i] < b[i] ? -1 : 1;
	return 0;
}

/* Measure a round: ranges, slices, room. */
static rr_status begin_round(struct maker *maker, uint64_t *key_count)
{
	const struct rr_schedule *rows = maker->rows;
	uint64_t passes = 0, sends = 0;

	for (uint32_t r = 0; r < rows->row_count; r++) {
		const struct rr_row *row = &rows->rows[r];
		maker->ranges[r] = rr_enqueue_range(maker->plan, row, maker->round);
		maker->slices[r] = slices_of(maker, length(maker, r));
		maker->pass_base[r] = passes;
		passes += maker->slices[r];
		for (int32_t i = row->send_begin; i < row->send_end; i++) {
			maker->send_base[i] = sends;
			sends += maker->slices[r];
		}
	}
	memset(maker->passes_done, 0, rows->row_count * sizeof(*maker->passes_done));
	memset(maker->sends_done, 0, rows->send_count * sizeof(*maker->sends_done));
	free(maker->pass_at);
	free(maker->send_at);
	free(maker->keys);
	maker->pass_at = calloc(passes + 1, sizeof(*maker->pass_at));
	maker->send_at = calloc(sends + 1, sizeof(*maker->send_at));
	maker->keys = calloc(passes + sends + 1, sizeof(*maker->keys));
	*key_count = passes + sends;
	if (!maker->pass_at || !maker->send_at || !maker->keys || passes + sends > UINT32_MAX / 4)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for a list of %llu items", (unsigned long long)(passes + sends));
	return RR_OK;
}

static void fill_keys(struct maker *maker)
{
	struct key *key = maker->keys;

	for (uint32_t r = 0; r < maker->rows->row_count; r++) {
		const struct rr_row *row = &maker->rows->rows[r];
		bool receives = row->receive_end > row->receive_begin;
		uint32_t step = (uint32_t)row->step, turn = 0;
		for (int32_t i = row->receive_begin; i < row->receive_end; i++)
			turn = maker->receives[i].turn > turn ? maker->receives[i].turn : turn;
		for (uint32_t slice = 0; slice < maker->slices[r]; slice++) {
			/* Sends count from 1, so that the pass comes first. */
			*key++ = (struct key){step, turn, slice, receives ? 2 : 0, r, 0};
			for (int32_t i = row->send_begin; i < row->send_end; i++)
				*key++ = (struct key){step + (receives ? 1 : 0), maker->sends[i].turn, slice, 1, r, (uint32_t)i + 1};
		}
	}
}

static rr_status make_round(struct maker *maker)
{
	struct rr_enqueue *list = maker->list;
	uint32_t first = list->item_count;
	uint64_t key_count;
	rr_status status = begin_round(maker, &key_count);

	if (status < 0)
		return status;
	fill_keys(maker);
	qsort(maker->keys, key_count, sizeof(*maker->keys), by_key);
	for (uint64_t i = 0; i < key_count && status == RR_OK; i++) {
		const struct key *key = &maker->keys[i];
		status = key->send ? reach_send(maker, key->row, key->send - 1, key->slice + 1, 0)
				   : reach_pass(maker, key->row, key->slice + 1, 0);
	}
	for (uint32_t place = first; place < list->item_count; place++)
		if (list->items[place].send != RR_ENQUEUE_NONE)
			maker->copied[maker->round * maker->stream_count + list->items[place].stream] = place + 1;
	return status;
}

static rr_status allocate(struct maker *maker)
{
	const struct rr_schedule *rows = maker->rows;
	size_t row_count = (size_t)rows->row_count + 1, send_count = (size_t)rows->send_count + 1;

	maker->sends = calloc(send_count, sizeof(*maker->sends));
	maker->receives = calloc((size_t)rows->receive_count + 1, sizeof(*maker->receives));
	maker->numbers_out = calloc(rows->link_count, sizeof(uint32_t));
	maker->numbers_in = calloc(rows->link_count, sizeof(uint32_t));
	maker->ranges = calloc(row_count, sizeof(*maker->ranges));
	maker->slices = calloc(row_count, sizeof(uint32_t));
	maker->passes_done = calloc(row_count, sizeof(uint32_t));
	maker->sends_done = calloc(send_count, sizeof(uint32_t));
	maker->pass_base = calloc(row_count, sizeof(uint64_t));
	maker->send_base = calloc(send_count, sizeof(uint64_t));
	maker->needs = calloc(maker->stream_count, sizeof(uint32_t));
	maker->known = calloc((size_t)maker->stream_count * maker->stream_count, sizeof(uint32_t));
	maker->copied = calloc((size_t)maker->stream_count * maker->plan->round_count, sizeof(uint32_t));
	if (maker->sends && maker->receives && maker->numbers_out && maker->numbers_in && maker->ranges && maker->slices &&
	    maker->passes_done && maker->sends_done && maker->pass_base && maker->send_base && maker->needs && maker->known &&
	    maker->copied)
		return RR_OK;
	return rr_fail(RR_ERR_NO_MEMORY, "no memory for the list of %u rows", rows->row_count);
}

static void free_maker(struct maker *maker)
{
	free(maker->sends);
	free(maker->receives);
	free(maker->numbers_out);
	free(maker->numbers_in);
	free(maker->ranges);
	free(maker->slices);
	free(maker->passes_done);
	free(maker->sends_done);
	free(maker->pass_base);
	free(maker->send_base);
	free(maker->pass_at);
	free(maker->send_at);
	free(maker->keys);
	free(maker->needs);
	free(maker->known);
	free(maker->copied);
}

rr_status rr_enqueue_make(const struct rr_plan *plan, uint32_t channels, struct rr_enqueue **out)
{
	struct maker maker = {.plan = plan, .rows = plan->rows, .stream_count = 2 * channels};
	rr_status status;

	if (plan->mailbox || plan->paired)
		return rr_fail(RR_ERR_UNSUPPORTED, "the enqueue executor runs no %s plans",
			       plan->mailbox ? "mailbox" : "paired");
	maker.list = calloc(1, sizeof(*maker.list));
	if (!maker.list)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for a list");
	maker.list->plan = plan;
	maker.list->channels = channels;
	status = allocate(&maker);
	if (status == RR_OK)
		status = place_rows(&maker);
	for (; maker.round < plan->round_count && status == RR_OK; maker.round++)
		status = make_round(&maker);
	if (status == RR_OK)
		status = rr_enqueue_number_events(maker.list);
	free_maker(&maker);
	if (status < 0) {
		rr_enqueue_free(maker.list);
		return status;
	}
	*out = maker.list;
	return RR_OK;
}
