/*
 * fuzz_stream.c - frames of an edge of streams (TCP, or somebody else's transport): OPEN, DATA, tiny messages.
 *
 *   bytes 0..31  what this rank asks for, in turn (steps)
 *   bytes 32..   what comes out of the streams, cut into pieces of up to the first byte's size
 */
#include <errno.h>
#include <stdlib.h>

#include "far_inside.h"
#include "fuzz.h"
#include "order.h"
#include "status.h"
#include "stream_edge.h"

#define STEPS 32
#define SLOT_BYTES 4096u
#define STREAMS 2u

static struct fuzz_input wire;
static size_t piece_max;

static ssize_t write_nothing(struct rr_stream_edge *edge, struct rr_stream *stream, const struct iovec *parts, uint32_t count)
{
	(void)edge, (void)stream, (void)parts, (void)count;
	return -EAGAIN;
}

static ssize_t read_wire(struct rr_stream_edge *edge, struct rr_stream *stream, const struct iovec parts[2])
{
	const struct iovec *part = parts[0].iov_len ? &parts[0] : &parts[1];
	size_t bytes = part->iov_len < piece_max ? part->iov_len : piece_max;

	(void)edge, (void)stream;
	if (!wire.left)
		return -EAGAIN;
	bytes = bytes < wire.left ? bytes : wire.left;
	fuzz_take(&wire, part->iov_base, bytes);
	return (ssize_t)bytes;
}

static rr_status lost(struct rr_stream_edge *edge)
{
	return rr_fail(RR_ERR_LINK, "the edge to rank %d ended", edge->peer);
}

static const struct rr_stream_io io = {.write = write_nothing, .read = read_wire, .lost = lost};
static const struct rr_link_ops ops = {.transport = "fuzz"};

/* One thing an engine does; false once the edge has failed. */
static bool step(struct rr_stream_edge *edge, uint8_t what)
{
	struct rr_link *in = &edge->in.link;
	static uint8_t landing[SLOT_BYTES];
	const struct rr_open *open;
	const void *data = NULL;
	uint64_t tag;
	uint32_t bytes = 0;
	rr_status status;

	if (what < 64) {
		status = rr_stream_open_peek(in, 1 + what % 3, &open);
	} else if (what < 128) {
		status = rr_stream_tiny_peek(in, 1 + what % 3, &tag, &data, &bytes);
		if (status == RR_OK && bytes && ((const volatile uint8_t *)data)[bytes - 1] == 7)
			landing[0]++;
	} else {
		struct rr_transfer transfer = {.op = 1, .order = what & 1, .slice = what >> 1 & 1, .bytes = what & 4 ? SLOT_BYTES : 64,
					       .mode = RR_MODE_STREAM, .row_bytes = what & 8 ? 65 : 0,
					       .landing = what & 16 ? landing : NULL};
		status = rr_stream_peek(in, &transfer, &data);
		if (status == RR_OK)
			rr_stream_release(in, transfer.bytes);
	}
	return status >= 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct rr_page *page = aligned_alloc(RR_CACHE_LINE, sizeof(*page));
	struct rr_edge edges[2] = {{0}};
	struct rr_far far = {.world = 2, .edges = edges};
	struct rr_stream_edge edge = {0};
	uint8_t steps[STEPS];

	wire = (struct fuzz_input){data, size};
	fuzz_take(&wire, steps, sizeof(steps));
	piece_max = 1 + steps[0];
	memset(page, 0, sizeof(*page));
	rr_note32(&page->state, RR_PAGE_RUNNING);
	edges[1].page = page;
	if (rr_stream_edge_init(&edge, &far, 1, STREAMS, SLOT_BYTES, &io, &ops) != RR_OK)
		abort();
	for (uint32_t s = 0; s < STREAMS; s++)
		edge.streams[s].socket = 0; /* it may be used */
	for (int i = 0; i < STEPS; i++)
		if (!step(&edge, steps[i]))
			break;
	rr_stream_edge_clear(&edge);
	free(page);
	return 0;
}
