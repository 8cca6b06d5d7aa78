/* mailbox.c - see mailbox.h. */
#include "mailbox.h"

#include <string.h>

#include "order.h"
#include "status.h"

static uint64_t tag_of(const struct rr_mailbox *mailbox, const struct rr_plan *plan)
{
	return (uint64_t)mailbox->serial << 32 | (uint32_t)plan->descriptor.hash;
}

/* Shorter sums are made as fast as copied. */
#define SHARED_BYTES_MIN 1024u

static struct rr_mailbox_line *line_of(const struct rr_mailbox *mailbox, struct rr_page *page)
{
	return &rr_page_mailbox(page, &mailbox->shm->layout)[mailbox->serial & 1];
}

static uint8_t *payload_of(const struct rr_mailbox *mailbox, struct rr_page *page, uint64_t bytes)
{
	if (bytes <= RR_MAILBOX_LINE_BYTES)
		return line_of(mailbox, page)->payload;
	return rr_page_mailbox_payload(page, &mailbox->shm->layout, mailbox->serial & 1);
}

static void gather(uint8_t *payload, const struct rr_buffer *input)
{
	for (uint32_t i = 0; i < input->count; i++) {
		memcpy(payload, input->extents[i].address, input->extents[i].bytes);
		payload += input->extents[i].bytes;
	}
}

static void scatter(const struct rr_buffer *output, const uint8_t *result)
{
	for (uint32_t i = 0; i < output->count; i++) {
		memcpy(output->extents[i].address, result, output->extents[i].bytes);
		result += output->extents[i].bytes;
	}
}

/* To ranks on other nodes it goes as a message. An error is told by the next poll. */
static void post_far(struct rr_mailbox *mailbox, const struct rr_plan *plan, const uint8_t *payload)
{
	struct rr_shm *shm = mailbox->shm;

	mailbox->status = RR_OK;
	for (int32_t r = 0; r < shm->world; r++) {
		struct rr_link *out = mailbox->out[r];
		if (rr_shm_has(shm, r))
			continue;
		rr_status status = out->ops->tiny_post(out, tag_of(mailbox, plan), payload, (uint32_t)plan->vector_bytes);
		if (status == RR_AGAIN) /* all earlier messages were taken: it is the operation before this that failed */
			status = rr_fail(RR_ERR_PROTOCOL, "rank %d does not take tiny messages", r);
		if (status < 0 && mailbox->status >= 0) {
			rr_error_here()->peer = r;
			mailbox->status = status;
			mailbox->error = *rr_error_here();
		}
	}
}

/* All of them each time: a rank that waits for one peer still owes its message to the others. */
static rr_status move_far(struct rr_mailbox *mailbox)
{
	struct rr_shm *shm = mailbox->shm;

	for (int32_t r = 0; r < shm->world; r++) {
		if (rr_shm_has(shm, r))
			continue;
		rr_status status = mailbox->out[r]->ops->progress(mailbox->out[r]);
		if (status >= 0)
			status = mailbox->in[r]->ops->progress(mailbox->in[r]);
		if (status < 0) {
			rr_error_here()->peer = r;
			return status;
		}
	}
	return RR_OK;
}

/* RR_OK: the far peer's message is here, and it is the one expected. */
static rr_status peek_far(struct rr_mailbox *mailbox, const struct rr_plan *plan, int32_t peer, uint64_t expected)
{
	struct rr_link *in = mailbox->in[peer];
	uint64_t tag;
	uint32_t bytes;
	rr_status status = in->ops->tiny_peek(in, mailbox->serial, &tag, &mailbox->payloads[peer], &bytes);

	if (status < 0)
		rr_error_here()->peer = peer;
	if (status != RR_OK)
		return status;
	if (tag == expected && bytes == plan->vector_bytes)
		return RR_OK;
	/* Another operation: the watch tells which, when both have told each other what they are in. */
	return RR_AGAIN;
}

void rr_mailbox_post(struct rr_mailbox *mailbox, const struct rr_plan *plan, const struct rr_buffer *input)
{
	struct rr_shm *shm = mailbox->shm;

	mailbox->serial++;
	mailbox->checked = 1; /* our own */
	uint8_t *payload = payload_of(mailbox, shm->page, plan->vector_bytes);
	if (plan->vector_bytes > RR_MAILBOX_LINE_BYTES)
		rr_note64(&line_of(mailbox, shm->page)->summed, 0);
	if (input->count)
		gather(payload, input);
	else if (plan->vector_bytes == 8) /* the size for which a call of memcpy would be felt */
		memcpy(payload, input->zero, 8);
	else if (plan->vector_bytes >= RR_APART_BYTES_MIN)
		rr_plan_copy(plan, payload, input->zero, plan->vector_bytes,
			     rr_apart_look_common(shm, (uint32_t)plan->vector_bytes));
	else if (plan->vector_bytes)
		memcpy(payload, input->zero, plan->vector_bytes);
	if (mailbox->out)
		post_far(mailbox, plan, payload);
	/* pairs with rr_mailbox_poll() */
	rr_publish64(&line_of(mailbox, shm->page)->tag, tag_of(mailbox, plan));
	mailbox->unrung = true;
}

void rr_mailbox_ring(struct rr_mailbox *mailbox)
{
	struct rr_shm *shm = mailbox->shm;

	if (!mailbox->unrung)
		return;
	mailbox->unrung = false;
	rr_store_before_load();
	for (int32_t r = 0; r < shm->world; r++)
		if (r != shm->rank && rr_shm_has(shm, r))
			rr_shm_wake(shm, r);
}

/* To where the result belongs. */
static void give(const struct rr_plan *plan, const struct rr_buffer *output, const uint8_t *result)
{
	if (output->count)
		scatter(output, result);
	else
		rr_plan_copy(plan, output->zero, result, plan->vector_bytes, false);
}

/* The sum that a rank of this node has left, or NULL. Neighbours first: theirs is likelier in this processor's cache. */
static const uint8_t *sum_left(const struct rr_mailbox *mailbox, uint64_t expected)
{
	struct rr_shm *shm = mailbox->shm;

	for (int32_t away = 1; away < shm->world; away++) {
		for (int32_t side = -1; side <= 1; side += 2) {
			int32_t peer = shm->rank + side * away;
			if (peer < 0 || peer >= shm->world || !rr_shm_has(shm, peer))
				continue;
			struct rr_page *page = shm->peers[peer].page;
			if (rr_observe64(&line_of(mailbox, page)->summed) == expected) /* pairs with combine() */
				return rr_page_mailbox_sum(page, &shm->layout, mailbox->serial & 1);
		}
	}
	return NULL;
}

/* All payloads are there. */
static void combine(struct rr_mailbox *mailbox, const struct rr_plan *plan, const struct rr_buffer *output)
{
	struct rr_shm *shm = mailbox->shm;
	const void *sources[RR_MAILBOX_WORLD_MAX];
	bool shares = shm->crowded && plan->vector_bytes >= SHARED_BYTES_MIN;
	bool beside = shares || output->count; /* where the pass cannot put it in its place, or others shall find it */
	const uint8_t *left = shares ? sum_left(mailbox, tag_of(mailbox, plan)) : NULL;
	void *result = beside ? (void *)rr_page_mailbox_sum(shm->page, &shm->layout, mailbox->serial & 1) : output->zero;

	if (left) {
		give(plan, output, left);
		return;
	}
	for (int32_t r = 0; r < shm->world; r++)
		sources[r] = rr_shm_has(shm, r) ? payload_of(mailbox, shm->peers[r].page, plan->vector_bytes)
						: mailbox->payloads[r];
	struct rr_combine pass = {.dst = &result, .dst_count = 1, .src = sources, .src_count = (uint32_t)shm->world,
				  .count = plan->descriptor.count, .post = plan->post, .factor = plan->factor};
	plan->pass(&pass);
	for (int32_t r = 0; r < shm->world && plan->vector_bytes >= RR_APART_BYTES_MIN; r++)
		if (r != shm->rank && rr_shm_has(shm, r))
			rr_apart_answer(shm, r, true, (uint32_t)plan->vector_bytes);
	if (shares)
		rr_publish64(&line_of(mailbox, shm->page)->summed, tag_of(mailbox, plan)); /* pairs with sum_left() */
	if (beside)
		give(plan, output, result);
}

rr_status rr_mailbox_poll(struct rr_mailbox *mailbox, const struct rr_plan *plan, const struct rr_buffer *output)
{
	struct rr_shm *shm = mailbox->shm;
	uint64_t expected = tag_of(mailbox, plan);

	if (mailbox->status < 0)
		return rr_error_set(&mailbox->error);
	if (mailbox->out) {
		rr_status status = move_far(mailbox);
		if (status < 0)
			return status;
	}
	for (; mailbox->checked < shm->world; mailbox->checked++) {
		int32_t peer = shm->rank + mailbox->checked;
		peer -= peer >= shm->world ? shm->world : 0;
		if (!rr_shm_has(shm, peer)) {
			rr_status status = peek_far(mailbox, plan, peer, expected);
			if (status != RR_OK)
				return status;
			continue;
		}
		uint64_t tag = rr_observe64(&line_of(mailbox, shm->peers[peer].page)->tag);
		if (tag == expected)
			continue;
		if (tag >> 32 != mailbox->serial)
			return RR_AGAIN;
		mailbox->mismatch = peer;
		return rr_fail(RR_ERR_MISMATCH, "rank %d called another operation", peer);
	}
	if (plan->vector_bytes)
		combine(mailbox, plan, output);
	return RR_OK;
}
