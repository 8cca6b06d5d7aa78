/* message.c - messages of two ranks; see message.h. */
#include "message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "comm.h"
#include "order.h"
#include "status.h"

#define INLINE_BYTES 40u
#define SLICE_BYTES_MIN 64u

/* Slice 0 of a message. */
struct head {
	uint64_t serial;
	uint64_t bytes;
	int32_t dtype;
	uint32_t slice_bytes;
	uint8_t payload[INLINE_BYTES]; /* all of it, if it is no more */
};
_Static_assert(sizeof(struct head) == 64, "a message's head is 64 bytes on the wire");

struct queue {
	struct rr_work *first, *last;
	uint64_t serial; /* the last one given out */
};

struct rr_messages {
	uint32_t count; /* of works in all queues */
	struct queue *out, *in; /* [world] */
};

static struct queue *queue_of(const struct rr_comm *comm, const struct rr_message *message)
{
	return (message->outgoing ? comm->messages->out : comm->messages->in) + message->peer;
}

void rr_message_text(const struct rr_work *work, char *text, size_t size)
{
	const struct rr_message *message = &work->message;

	snprintf(text, size, "%s %llu of %llu bytes %s rank %d", message->outgoing ? "send" : "recv",
		 (unsigned long long)message->serial, (unsigned long long)message->bytes, message->outgoing ? "to" : "from",
		 message->peer);
}

/* ---- slices ---- */

static uint64_t slices_of(uint64_t bytes, uint32_t slice_bytes)
{
	return 1 + (bytes <= INLINE_BYTES ? 0 : (bytes + slice_bytes - 1) / slice_bytes);
}

static uint64_t offset_of(const struct rr_message *message, uint64_t slice)
{
	return (slice - 1) * message->slice_bytes;
}

/* What both ends say of a slice. */
static void describe(const struct rr_link *link, const struct rr_message *message, uint64_t slice,
		     struct rr_transfer *transfer)
{
	*transfer = (struct rr_transfer){
		.op = message->serial,
		.slice = (uint32_t)slice,
		.bytes = sizeof(struct head),
		.mode = link->kind == RR_LINK_STREAM ? RR_MODE_STREAM : RR_MODE_SLOT,
		.buffer = RR_INPUT,
	};
	if (slice) {
		uint64_t left = message->bytes - offset_of(message, slice);
		transfer->bytes = left < message->slice_bytes ? (uint32_t)left : message->slice_bytes;
	}
}

static void fill(void *place, const struct rr_message *message, uint64_t slice, uint32_t bytes)
{
	struct head head = {.serial = message->serial, .bytes = message->bytes, .dtype = message->dtype,
			    .slice_bytes = message->slice_bytes};

	if (slice) {
		memcpy(place, message->address + offset_of(message, slice), bytes);
		return;
	}
	if (message->bytes && message->bytes <= INLINE_BYTES)
		memcpy(head.payload, message->address, message->bytes);
	memcpy(place, &head, sizeof(head));
}

static rr_status send_slices(struct rr_comm *comm, struct rr_message *message, bool *moved)
{
	struct rr_link *out = comm->message_out[message->peer];

	while (message->moved < message->slices) {
		struct rr_transfer transfer;
		void *place = NULL;

		describe(out, message, message->moved, &transfer);
		if (message->moved && out->kind != RR_LINK_MAPPED) {
			transfer.pieces[0].iov_base = message->address + offset_of(message, message->moved);
			transfer.pieces[0].iov_len = transfer.bytes;
			transfer.piece_count = 1;
		}
		rr_status status = out->ops->reserve(out, &transfer, &place);
		if (status != RR_OK)
			return status;
		if (place)
			fill(place, message, message->moved, transfer.bytes);
		out->ops->commit(out, &transfer);
		message->moved++;
		message->end = out->sent;
		*moved = true;
	}
	/* A stream that has not taken all of it would stand still when nobody drives it. */
	if ((out->kind == RR_LINK_STREAM || out->held_end) && out->ops->released(out) < message->end)
		return RR_AGAIN;
	return RR_OK;
}

static rr_status differs(const struct rr_comm *comm, const struct rr_message *message, const struct head *head)
{
	const char *theirs = head->dtype >= 0 && head->dtype < (int32_t)RR_DTYPE_COUNT ? rr_dtype_name((rr_dtype)head->dtype)
										       : "no dtype";

	rr_fail(RR_ERR_MISMATCH, "ranks disagree in message %llu from rank %d to rank %d: it is sent as %llu bytes of %s, and received as %llu bytes of %s",
		(unsigned long long)message->serial, message->peer, comm->rank, (unsigned long long)head->bytes, theirs,
		(unsigned long long)message->bytes, rr_dtype_name((rr_dtype)message->dtype));
	strcpy(rr_error_here()->hint, "the k-th send of one rank to another meets the k-th recv there: give both arrays one dtype and count");
	return RR_ERR_MISMATCH;
}

static rr_status take_head(struct rr_comm *comm, struct rr_message *message)
{
	struct rr_link *in = comm->message_in[message->peer];
	struct rr_transfer transfer;
	struct head head;
	const void *data;

	describe(in, message, 0, &transfer);
	rr_status status = in->ops->peek(in, &transfer, &data);
	if (status != RR_OK)
		return status;
	memcpy(&head, data, sizeof(head));
	in->ops->release(in, sizeof(head));
	if (head.serial != message->serial || head.slice_bytes < SLICE_BYTES_MIN)
		return rr_fail(RR_ERR_PROTOCOL, "rank %d sent message %llu in slices of %u bytes, expected was message %llu",
			       message->peer, (unsigned long long)head.serial, head.slice_bytes,
			       (unsigned long long)message->serial);
	if (head.bytes != message->bytes || head.dtype != message->dtype)
		return differs(comm, message, &head);
	message->slice_bytes = head.slice_bytes;
	message->slices = slices_of(message->bytes, message->slice_bytes);
	message->moved = 1;
	if (message->bytes && message->slices == 1)
		memcpy(message->address, head.payload, message->bytes);
	return RR_OK;
}

static rr_status receive_slices(struct rr_comm *comm, struct rr_message *message, bool *moved)
{
	struct rr_link *in = comm->message_in[message->peer];

	if (!message->slices) {
		rr_status status = take_head(comm, message);
		if (status != RR_OK)
			return status;
		*moved = true;
	}
	while (message->moved < message->slices) {
		char *to = message->address + offset_of(message, message->moved);
		struct rr_transfer transfer;
		const void *data;

		describe(in, message, message->moved, &transfer);
		if (transfer.mode == RR_MODE_STREAM)
			transfer.landing = to;
		rr_status status = in->ops->peek(in, &transfer, &data);
		if (status != RR_OK)
			return status;
		if (data != to)
			memcpy(to, data, transfer.bytes);
		in->ops->release(in, transfer.bytes);
		message->moved++;
		*moved = true;
	}
	return RR_OK;
}

/* ---- works ---- */

static void finish(struct rr_comm *comm, struct rr_work *work)
{
	const struct rr_message *message = &work->message;
	struct queue *queue = queue_of(comm, message);
	uint64_t sent = message->outgoing ? message->bytes : 0, received = message->outgoing ? 0 : message->bytes;

	queue->first = work->next;
	if (!queue->first)
		queue->last = NULL;
	comm->messages->count--;
	work->stats = (rr_run_stats){.op = message->serial, .steps = 1, .sent_bytes = sent, .received_bytes = received,
				     .elapsed_ns = rr_now_ns() - work->started_ns};
	work->link_stats[message->peer].sent_bytes = sent;
	work->link_stats[message->peer].received_bytes = received;
	work->status = RR_OK;
	atomic_fetch_sub_explicit(&comm->unfinished, 1, memory_order_relaxed);
	rr_publish32(&work->state, RR_WORK_DONE); /* pairs with rr_work_wait() */
}

static rr_status lose(struct rr_comm *comm, const struct rr_work *work, rr_status status)
{
	rr_error *error = rr_error_here();

	error->peer = work->message.peer;
	error->op = (int64_t)work->message.serial;
	rr_watch_fail(comm, error);
	return status;
}

/* All that is in turn in one queue. */
static rr_status go_on(struct rr_comm *comm, struct queue *queue, bool *moved)
{
	while (queue->first) {
		struct rr_work *work = queue->first;
		struct rr_message *message = &work->message;
		rr_status status = message->outgoing ? send_slices(comm, message, moved) : receive_slices(comm, message, moved);

		if (status == RR_AGAIN)
			return RR_AGAIN;
		if (status < 0)
			return lose(comm, work, status);
		finish(comm, work);
		*moved = true;
	}
	return RR_OK;
}

static rr_status move_far(struct rr_comm *comm, int32_t peer)
{
	struct rr_link *links[2] = {comm->message_out[peer], comm->message_in[peer]};

	for (int i = 0; i < 2; i++) {
		rr_status status = links[i]->ops->progress ? links[i]->ops->progress(links[i]) : RR_OK;
		if (status < 0)
			return lose(comm, rr_message_turn(comm, peer), status);
	}
	return RR_OK;
}

static void flush(struct rr_comm *comm, int32_t peer)
{
	struct rr_link *out = comm->message_out[peer], *in = comm->message_in[peer];

	if (!out->dirty && !in->dirty)
		return;
	rr_store_before_load(); /* what we published, before we look who sleeps */
	out->dirty = false;
	in->dirty = false;
	out->ops->flush(out);
}

rr_status rr_message_progress(struct rr_comm *comm, bool *moved)
{
	struct rr_messages *messages = comm->messages;

	if (!messages || !messages->count)
		return RR_OK;
	for (int32_t r = 0; r < comm->world; r++) {
		if (!rr_message_turn(comm, r))
			continue;
		rr_status status = move_far(comm, r);
		if (status >= 0)
			status = go_on(comm, &messages->out[r], moved);
		if (status >= 0)
			status = go_on(comm, &messages->in[r], moved);
		flush(comm, r);
		if (status < 0)
			return status;
	}
	return messages->count ? RR_AGAIN : RR_OK;
}

struct rr_work *rr_message_turn(const struct rr_comm *comm, int32_t peer)
{
	const struct rr_messages *messages = comm->messages;

	if (!messages || !messages->count)
		return NULL;
	return messages->out[peer].first ? messages->out[peer].first : messages->in[peer].first;
}

static void end_queue(struct rr_comm *comm, struct queue *queue)
{
	for (struct rr_work *work = queue->first, *next; work; work = next) {
		next = work->next;
		work->error = comm->failure;
		work->error.op = (int64_t)work->message.serial;
		strcpy(work->error.collective, work->message.outgoing ? "send" : "recv");
		work->status = (rr_status)comm->failure.status;
		comm->messages->count--;
		atomic_fetch_sub_explicit(&comm->unfinished, 1, memory_order_relaxed);
		rr_publish32(&work->state, RR_WORK_DONE);
	}
	queue->first = NULL;
	queue->last = NULL;
}

void rr_message_end(struct rr_comm *comm)
{
	for (int32_t r = 0; comm->messages && r < comm->world; r++) {
		end_queue(comm, &comm->messages->out[r]);
		end_queue(comm, &comm->messages->in[r]);
	}
}

void rr_message_free(struct rr_comm *comm)
{
	if (!comm->messages)
		return;
	free(comm->messages->out);
	free(comm->messages->in);
	free(comm->messages);
}

/* ---- started ---- */

static rr_status make_queues(struct rr_comm *comm)
{
	struct rr_messages *messages;

	if (comm->messages)
		return RR_OK;
	messages = calloc(1, sizeof(*messages));
	if (!messages)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for messages");
	messages->out = calloc((size_t)comm->world, sizeof(*messages->out));
	messages->in = calloc((size_t)comm->world, sizeof(*messages->in));
	comm->messages = messages;
	if (messages->out && messages->in)
		return RR_OK;
	rr_message_free(comm);
	comm->messages = NULL;
	return rr_fail(RR_ERR_NO_MEMORY, "no memory for messages to %d ranks", comm->world);
}

/* Two slices in flight, so that one is filled while the other is read. */
static uint32_t slice_bytes_of(const struct rr_comm *comm, int32_t peer)
{
	uint64_t slots = rr_shm_has(&comm->shm, peer) ? comm->shm.layout.message_bytes : comm->options.slot_bytes;
	uint64_t bytes = (slots / 2 - sizeof(struct head)) / 64 * 64;

	return bytes < SLICE_BYTES_MIN ? SLICE_BYTES_MIN : (uint32_t)bytes;
}

static rr_status check(const struct rr_comm *comm, int32_t peer, const void *address, uint64_t count, int32_t dtype)
{
	if (peer < 0 || peer >= comm->world || peer == comm->rank)
		return rr_fail(RR_ERR_ARGUMENT, "peer is %d: accepted are ranks 0..%d but %d, this one", peer, comm->world - 1,
			       comm->rank);
	if (dtype < 0 || dtype >= (int32_t)RR_DTYPE_COUNT)
		return rr_fail(RR_ERR_ARGUMENT, "dtype %d: see rr_dtype", dtype);
	if (count > UINT64_MAX / 16 || (count && !address))
		return rr_fail(RR_ERR_ARGUMENT, "%llu elements at %p: they do not fit an address space, or begin at NULL",
			       (unsigned long long)count, address);
	return RR_OK;
}

/* The driver is in hand. */
static rr_status enqueue(struct rr_comm *comm, struct rr_work *work)
{
	struct rr_message *message = &work->message;
	rr_status status = make_queues(comm);
	struct queue *queue;
	bool moved = false;

	if (status < 0)
		return status;
	if (message->outgoing) {
		message->slice_bytes = slice_bytes_of(comm, message->peer);
		message->slices = slices_of(message->bytes, message->slice_bytes);
	}
	queue = queue_of(comm, message);
	message->serial = ++queue->serial;
	work->op = message->serial;
	if (queue->last)
		queue->last->next = work;
	else
		queue->first = work;
	queue->last = work;
	comm->messages->count++;
	atomic_fetch_add_explicit(&comm->unfinished, 1, memory_order_seq_cst);
	rr_message_progress(comm, &moved); /* what can be done at once; an error is kept in the work */
	return RR_OK;
}

static rr_status start(struct rr_comm *comm, const struct rr_message *message, uint64_t timeout_ns, int32_t background,
		       rr_work **out)
{
	struct rr_work *work = rr_work_make(comm);
	rr_status status;

	if (!work)
		return RR_ERR_NO_MEMORY;
	work->message = *message;
	work->status = RR_AGAIN;
	rr_note32(&work->state, RR_WORK_RUNNING);
	work->started_ns = rr_now_ns();
	work->deadline_ns = work->started_ns + (timeout_ns ? timeout_ns : comm->options.timeout_ns);
	status = rr_comm_begin(comm);
	if (status >= 0) {
		status = enqueue(comm, work);
		rr_drive_leave(comm);
	}
	if (status < 0) {
		rr_work_unmake(work);
		return status;
	}
	if (background && rr_own32(&comm->unfinished) && rr_drive_hand_over(comm) < 0)
		rr_comm_abort(comm, "no progress thread"); /* the work is done then, with this error */
	*out = work;
	return RR_OK;
}

rr_status rr_send_start(rr_comm *comm, int32_t peer, const void *data, uint64_t count, int32_t dtype, uint64_t timeout_ns,
			int32_t background, rr_work **out)
{
	rr_status status = check(comm, peer, data, count, dtype);

	if (status < 0)
		return status;
	struct rr_message message = {.peer = peer, .outgoing = true, .dtype = dtype, .address = (char *)(uintptr_t)data,
				     .bytes = count * rr_dtype_bytes((rr_dtype)dtype)};
	return start(comm, &message, timeout_ns, background, out);
}

rr_status rr_recv_start(rr_comm *comm, int32_t peer, void *data, uint64_t count, int32_t dtype, uint64_t timeout_ns,
			int32_t background, rr_work **out)
{
	rr_status status = check(comm, peer, data, count, dtype);

	if (status < 0)
		return status;
	struct rr_message message = {.peer = peer, .dtype = dtype, .address = data,
				     .bytes = count * rr_dtype_bytes((rr_dtype)dtype)};
	return start(comm, &message, timeout_ns, background, out);
}
