/* mailbox.c - see mailbox.h. */
#include "mailbox.h"

#include <string.h>

#include "order.h"
#include "status.h"

static uint64_t tag_of(const struct rr_mailbox *mailbox, const struct rr_plan *plan)
{
	return (uint64_t)mailbox->serial << 32 | (uint32_t)plan->descriptor.hash;
}

static uint8_t *payload_of(const struct rr_mailbox *mailbox, struct rr_page *page, uint64_t bytes)
{
	uint32_t which = mailbox->serial & 1;

	if (bytes <= RR_MAILBOX_LINE_BYTES)
		return rr_page_mailbox(page, &mailbox->shm->layout)[which].payload;
	return rr_page_mailbox_payload(page, &mailbox->shm->layout, which);
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

void rr_mailbox_post(struct rr_mailbox *mailbox, const struct rr_plan *plan, const struct rr_buffer *input)
{
	struct rr_shm *shm = mailbox->shm;

	mailbox->serial++;
	mailbox->checked = 1; /* our own */
	uint8_t *payload = payload_of(mailbox, shm->page, plan->vector_bytes);
	if (input->count)
		gather(payload, input);
	else if (plan->vector_bytes == 8) /* the size for which a call of memcpy would be felt */
		memcpy(payload, input->zero, 8);
	else if (plan->vector_bytes)
		memcpy(payload, input->zero, plan->vector_bytes);
	/* pairs with rr_mailbox_poll() */
	rr_publish64(&rr_page_mailbox(shm->page, &shm->layout)[mailbox->serial & 1].tag, tag_of(mailbox, plan));
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
		if (r != shm->rank)
			rr_shm_wake(shm->peers[r].page);
}

rr_status rr_mailbox_poll(struct rr_mailbox *mailbox, const struct rr_plan *plan, const struct rr_buffer *output)
{
	struct rr_shm *shm = mailbox->shm;
	uint64_t expected = tag_of(mailbox, plan);
	const void *sources[RR_MAILBOX_WORLD_MAX];

	for (; mailbox->checked < shm->world; mailbox->checked++) {
		int32_t peer = shm->rank + mailbox->checked;
		peer -= peer >= shm->world ? shm->world : 0;
		uint64_t tag = rr_observe64(&rr_page_mailbox(shm->peers[peer].page, &shm->layout)[mailbox->serial & 1].tag);
		if (tag == expected)
			continue;
		if (tag >> 32 != mailbox->serial)
			return RR_AGAIN;
		mailbox->mismatch = peer;
		return rr_fail(RR_ERR_MISMATCH, "rank %d called another operation", peer);
	}
	if (!plan->vector_bytes)
		return RR_OK;
	for (int32_t r = 0; r < shm->world; r++)
		sources[r] = payload_of(mailbox, shm->peers[r].page, plan->vector_bytes);
	uint8_t packed[RR_MAILBOX_BYTES];
	void *result = output->count ? (void *)packed : output->zero;
	struct rr_combine pass = {.dst = &result, .dst_count = 1, .src = sources, .src_count = (uint32_t)shm->world,
				  .count = plan->descriptor.count, .post = plan->post, .factor = plan->factor};
	plan->pass(&pass);
	if (output->count)
		scatter(output, packed);
	return RR_OK;
}
