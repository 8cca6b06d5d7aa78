/*
 * watch.c - stands before the operations of a link that ships.
 *
 * By seed a call is told to come again, and a transfer or an OPEN is seen later than it was sent; a link keeps its order.
 * Nothing stores into a place after its bytes have landed: what a transfer held when it was committed is what its
 * receiver is given, and what still lies there when the receiver lets it go.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "engine_slice.h"
#include "shipping.h"
#include "status.h"

#define OPENS 16u /* operations that a sender may be ahead */

struct sent {
	uint64_t arrives_ns;
	uint8_t *bytes; /* as committed; NULL: implied, and not seen yet */
	uint32_t size;
	bool implied, compared;
};

struct watch {
	struct shipping *world;
	int32_t from, to;
	struct rr_link *out, *in;
	const struct rr_link_ops *out_real, *in_real;
	struct rr_link_ops out_ops, in_ops;
	struct sent *sent; /* [room], by number of the transfer */
	uint64_t count, room;
	uint64_t last_arrival_ns;
	uint64_t held_until_ns[2]; /* the sender, the receiver */
	const uint8_t *place;      /* of the reserve under way */
	const uint8_t *lies;       /* what the transfer at the front was given as; NULL: not to be looked at */
	uint64_t open_ops[OPENS], open_ns[OPENS];
};

static struct watch *of_out(struct rr_link *link)
{
	return (struct watch *)((char *)(uintptr_t)link->ops - offsetof(struct watch, out_ops));
}

static struct watch *of_in(struct rr_link *link)
{
	return (struct watch *)((char *)(uintptr_t)link->ops - offsetof(struct watch, in_ops));
}

static uint64_t delay(struct rr_sim *sim)
{
	return sim->spec.latency_ns + (sim->spec.jitter_ns ? rr_sim_random(sim, sim->spec.jitter_ns + 1) : 0);
}

static void hold(struct watch *watch, int end)
{
	struct rr_sim *sim = watch->world->sim;

	watch->held_until_ns[end] = sim->now_ns + 1 + rr_sim_random(sim, sim->spec.jitter_ns + 100);
	rr_sim_due(sim, watch->held_until_ns[end]);
}

static bool drawn(struct watch *watch, uint32_t more)
{
	return watch->world->spec.hold && !rr_sim_random(watch->world->sim, watch->world->spec.hold * more);
}

/* One of so many calls is told to come again, and so are all that follow for a while. */
static bool held(struct watch *watch, int end)
{
	if (!rr_sim_due(watch->world->sim, watch->held_until_ns[end]))
		return true;
	if (!drawn(watch, 1))
		return false;
	hold(watch, end);
	return true;
}

/* ---- OPEN ---- */

static rr_status open_post(struct rr_link *link, const struct rr_open *open, const struct rr_descriptor *descriptor)
{
	struct watch *watch = of_out(link);
	uint64_t op = rr_own64(&open->op);
	rr_status status = watch->out_real->open_post(link, open, descriptor);

	if (status == RR_OK) {
		watch->open_ops[op % OPENS] = op;
		watch->open_ns[op % OPENS] = watch->world->sim->now_ns + delay(watch->world->sim);
	}
	return status;
}

static rr_status open_peek(struct rr_link *link, uint64_t op, const struct rr_open **open)
{
	struct watch *watch = of_in(link);

	if (watch->open_ops[op % OPENS] == op && !rr_sim_due(watch->world->sim, watch->open_ns[op % OPENS]))
		return RR_AGAIN;
	return watch->in_real->open_peek(link, op, open);
}

/* ---- sender ---- */

static uint64_t in_flight(const struct watch *watch)
{
	uint64_t count = 0;

	for (uint64_t n = watch->in->sent; n < watch->count; n++)
		count += !watch->sent[n].implied;
	return count;
}

/*
 * A pass may store its result where one of its sources lies, element by element: the memory of the peer that it read. What
 * lay there is not looked at again.
 */
static void note_source_as_target(const struct watch *watch, const uint8_t *place)
{
	const struct shipping *world = watch->world;

	for (uint32_t w = 0; w < world->watch_count; w++)
		if (world->watches[w]->to == watch->from && world->watches[w]->lies == place)
			world->watches[w]->lies = NULL;
}

static rr_status reserve(struct rr_link *link, const struct rr_transfer *transfer, void **place)
{
	struct watch *watch = of_out(link);

	if (held(watch, 0) || (watch->world->spec.window && in_flight(watch) >= watch->world->spec.window))
		return RR_AGAIN;
	rr_status status = watch->out_real->reserve(link, transfer, place);
	/*
	 * As if its pass had failed. Not over verbs: what is aborted holds room until the transfers before it are credited, which
	 * their receiver only does when told that room is short; a link is not used after an abort there.
	 */
	if (status == RR_OK && link->kind != RR_LINK_RDMA && drawn(watch, 4)) {
		watch->out_real->abort(link);
		hold(watch, 0);
		return RR_AGAIN;
	}
	watch->place = status == RR_OK ? *place : NULL;
	if (watch->place && transfer->mode == RR_MODE_WRITE)
		note_source_as_target(watch, watch->place);
	return status;
}

/* Room for one more record. */
static struct sent *record(struct watch *watch)
{
	if (watch->count == watch->room) {
		uint64_t room = watch->room ? 2 * watch->room : 64;
		struct sent *larger = realloc(watch->sent, room * sizeof(*larger));
		if (!larger)
			return NULL;
		watch->sent = larger;
		watch->room = room;
	}
	watch->sent[watch->count] = (struct sent){0};
	return &watch->sent[watch->count];
}

/* What a transfer holds: from the place that was filled, from pieces, or from where peers read it. */
static void copy_sent(const struct watch *watch, const struct rr_transfer *transfer, uint8_t *to)
{
	struct rr_engine *engine = &watch->world->sim->engines[watch->from];
	struct rr_buffer buffer = engine->buffers[transfer->buffer];
	uint64_t done = 0;

	if (watch->place) {
		memcpy(to, watch->place, transfer->bytes);
		return;
	}
	for (uint32_t i = 0; i < transfer->piece_count; i++) {
		memcpy(to + done, transfer->pieces[i].iov_base, transfer->pieces[i].iov_len);
		done += transfer->pieces[i].iov_len;
	}
	while (done < transfer->bytes) {
		uint64_t run = transfer->bytes - done;
		const char *from = rr_slice_address(&buffer, transfer->coordinate + done, &run);
		memcpy(to + done, from, run);
		done += run;
	}
}

static void commit(struct rr_link *link, const struct rr_transfer *transfer)
{
	struct watch *watch = of_out(link);
	struct rr_sim *sim = watch->world->sim;
	struct sent *sent = record(watch);

	if (sent && !transfer->implied)
		sent->bytes = malloc(transfer->bytes ? transfer->bytes : 1);
	if (!sent || (!transfer->implied && !sent->bytes)) {
		rr_fail(RR_ERR_NO_MEMORY, "no memory to watch a link");
		shipping_fault(watch->world);
		return;
	}
	sent->implied = transfer->implied;
	sent->size = transfer->bytes;
	if (!transfer->implied) {
		copy_sent(watch, transfer, sent->bytes);
		sent->arrives_ns = sim->now_ns + delay(sim);
		if (sent->arrives_ns < watch->last_arrival_ns)
			sent->arrives_ns = watch->last_arrival_ns;
		watch->last_arrival_ns = sent->arrives_ns;
	}
	sim->result.transfers++;
	sim->result.transfer_bytes += transfer->bytes;
	watch->place = NULL;
	watch->out_real->commit(link, transfer);
	watch->count++;
}

static void abort_reserve(struct rr_link *link)
{
	of_out(link)->place = NULL;
	of_out(link)->out_real->abort(link);
}

/* ---- receiver ---- */

static rr_status differs(const struct watch *watch, uint64_t number, const uint8_t *is, const uint8_t *was, uint32_t bytes,
			 const char *when)
{
	uint32_t at = 0;

	while (at < bytes && is[at] == was[at])
		at++;
	return rr_fail(RR_ERR_PROTOCOL, "%s link from rank %d to rank %d, transfer %llu of %u bytes: byte %u was 0x%02x %s, and is 0x%02x",
		       watch->in_real->transport, watch->from, watch->to, (unsigned long long)number, bytes, at, was[at], when, is[at]);
}

/* As a bad wire, or a bad memory of the link, would. */
static void corrupt(struct watch *watch, const struct rr_transfer *transfer, uint64_t number)
{
	struct rr_sim *sim = watch->world->sim;

	if (!sim->spec.corrupt_transfer || sim->result.transfers < sim->spec.corrupt_transfer || sim->result.corrupted ||
	    !transfer->bytes || transfer->implied || transfer->mode == RR_MODE_SOURCE)
		return;
	((uint8_t *)(uintptr_t)watch->lies)[rr_sim_random(sim, transfer->bytes)] ^= (uint8_t)(1u << rr_sim_random(sim, 8));
	free(watch->sent[number].bytes); /* it is another now */
	watch->sent[number].bytes = NULL;
	sim->result.corrupted = 1;
}

static rr_status peek(struct rr_link *link, const struct rr_transfer *transfer, const void **data)
{
	struct watch *watch = of_in(link);
	uint64_t number = link->sent;
	struct sent *sent = number < watch->count ? &watch->sent[number] : NULL;

	if (held(watch, 1) || (!transfer->implied && (!sent || !rr_sim_due(watch->world->sim, sent->arrives_ns))))
		return RR_AGAIN;
	rr_status status = watch->in_real->peek(link, transfer, data);
	if (status != RR_OK)
		return status;
	watch->lies = *data;
	if (!sent || sent->compared)
		return RR_OK; /* implied, and ahead of the sender: its memory is all there is to compare with */
	if (!transfer->implied && (sent->size != transfer->bytes || memcmp(*data, sent->bytes, sent->size) != 0))
		return sent->size != transfer->bytes
			       ? rr_fail(RR_ERR_PROTOCOL, "transfer %llu has %u bytes, not %u", (unsigned long long)number, sent->size,
					 transfer->bytes)
			       : differs(watch, number, *data, sent->bytes, sent->size, "at its commit");
	sent->compared = true;
	corrupt(watch, transfer, number);
	return RR_OK;
}

static void release(struct rr_link *link, uint32_t bytes)
{
	struct watch *watch = of_in(link);
	uint64_t number = link->sent;
	struct sent *sent = number < watch->count ? &watch->sent[number] : NULL;

	if (sent && sent->bytes && watch->lies && memcmp(watch->lies, sent->bytes, bytes) != 0) {
		differs(watch, number, watch->lies, sent->bytes, bytes, "when it came");
		shipping_fault(watch->world);
	}
	if (sent) {
		free(sent->bytes);
		sent->bytes = NULL;
	}
	watch->lies = NULL;
	watch->in_real->release(link, bytes);
}

/* ---- both ---- */

rr_status shipping_watch(struct shipping *world, int32_t from, int32_t to, struct rr_link *out, struct rr_link *in)
{
	struct watch *watch = calloc(1, sizeof(*watch));
	struct watch **larger = realloc(world->watches, (world->watch_count + 1) * sizeof(*larger));

	world->watches = larger ? larger : world->watches;
	if (!watch || !larger) {
		free(watch);
		return rr_fail(RR_ERR_NO_MEMORY, "no memory to watch a link");
	}
	world->watches[world->watch_count++] = watch;
	*watch = (struct watch){.world = world, .from = from, .to = to, .out = out, .in = in, .out_real = out->ops, .in_real = in->ops};
	watch->out_ops = *out->ops;
	watch->out_ops.open_post = open_post;
	watch->out_ops.reserve = reserve;
	watch->out_ops.commit = commit;
	watch->out_ops.abort = abort_reserve;
	watch->in_ops = *in->ops;
	watch->in_ops.open_peek = open_peek;
	watch->in_ops.peek = peek;
	watch->in_ops.release = release;
	out->ops = &watch->out_ops;
	in->ops = &watch->in_ops;
	return RR_OK;
}

void shipping_unwatch(struct shipping *world)
{
	for (uint32_t w = 0; w < world->watch_count; w++) {
		struct watch *watch = world->watches[w];
		watch->out->ops = watch->out_real;
		watch->in->ops = watch->in_real;
		for (uint64_t n = 0; n < watch->count; n++)
			free(watch->sent[n].bytes);
		free(watch->sent);
		free(watch);
	}
	free(world->watches);
	world->watches = NULL;
	world->watch_count = 0;
}
