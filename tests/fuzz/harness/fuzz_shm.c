/*
 * fuzz_shm.c - a rank of this node whose segment holds what it likes: OPEN, DATA, counters, slots, news on its socket.
 *
 * The input is a list of steps: a byte that says what, then what that step takes.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fuzz.h"
#include "link_shm.h"
#include "order.h"
#include "shm.h"

#define SLOT_BYTES 4096u
#define STEPS_MAX 64
#define NEWS_BYTES 16u /* of a message on a node's socket */
#define REGION_BYTES 8192u

struct node {
	struct rr_shm shm;
	struct rr_shm_peer peers[2];
	int32_t index[2];
	struct rr_link *out, *in;
	int socket; /* the peer's end */
};

static struct rr_page *make_segment(const struct rr_layout *layout)
{
	void *page = mmap(NULL, layout->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED)
		abort();
	return page;
}

static void open_node(struct node *node)
{
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
		abort();
	node->socket = pair[1];
	node->index[1] = 1;
	node->shm = (struct rr_shm){.world = 2, .count = 2, .index = node->index, .bell = -1, .memfd = -1, .peers = node->peers};
	rr_layout_set(&node->shm.layout, 2, SLOT_BYTES, 2);
	for (int r = 0; r < 2; r++)
		node->peers[r] = (struct rr_shm_peer){.page = make_segment(&node->shm.layout), .socket = r ? pair[0] : -1, .pidfd = -1,
						      .bell = -1, .pid = getpid()};
	node->shm.page = node->peers[0].page;
	if (rr_link_shm_open(&node->shm, 1, true, false, &node->out) < 0 || rr_link_shm_open(&node->shm, 1, false, false, &node->in) < 0)
		abort();
}

static void close_node(struct node *node)
{
	struct rr_shm_peer *peer = &node->peers[1];

	node->out->ops->close(node->out);
	node->in->ops->close(node->in);
	for (uint32_t i = 0; i < peer->mapping_count; i++)
		munmap(peer->mappings[i].address, peer->mappings[i].bytes);
	free(peer->mappings);
	close(peer->socket);
	close(node->socket);
	if (peer->bell >= 0)
		close(peer->bell);
	munmap(node->peers[0].page, node->shm.layout.bytes);
	munmap(node->peers[1].page, node->shm.layout.bytes);
	rr_common_free(node->shm.common);
}

/* The peer announces memory, of the size it has or of another. */
static void announce(struct node *node, struct fuzz_input *input, bool with_memory)
{
	uint8_t news[NEWS_BYTES + 8];
	size_t bytes = NEWS_BYTES + (fuzz_byte(input) & 3) - 2u;
	int fd = with_memory ? memfd_create("region", MFD_CLOEXEC) : -1;

	if (fd >= 0 && ftruncate(fd, REGION_BYTES) != 0)
		abort();
	fuzz_take(input, news, sizeof(news));
	(void)rr_shm_send(node->socket, news, bytes, fd);
	if (fd >= 0)
		close(fd);
}

static void take(struct node *node, uint8_t what)
{
	static uint8_t landing[SLOT_BYTES];
	static const enum rr_mode modes[] = {RR_MODE_SLOT, RR_MODE_SOURCE, RR_MODE_WRITE, RR_MODE_SLOT};
	struct rr_transfer transfer = {.op = 1, .order = what & 1, .bytes = what & 2 ? SLOT_BYTES : 64, .mode = modes[what >> 2 & 3],
				       .buffer = (enum rr_buffer_id)((what >> 4) % 3), .landing = landing, .row_bytes = what & 64 ? 65 : 0,
				       .implied = what >> 7 && (what >> 2 & 3) == 1};
	const void *data;

	if (node->in->ops->peek(node->in, &transfer, &data) != RR_OK)
		return;
	if (data != landing)
		memcpy(landing, data, transfer.bytes);
	node->in->ops->release(node->in, transfer.bytes);
}

static void give(struct node *node, uint8_t what)
{
	struct rr_transfer transfer = {.op = 1, .order = what & 1, .bytes = what & 2 ? SLOT_BYTES : 64,
				       .mode = what & 4 ? RR_MODE_WRITE : RR_MODE_SLOT, .buffer = (enum rr_buffer_id)((what >> 4) % 3),
				       .alike = what & 8 ? 2 : 1};
	void *place = NULL;

	if (node->out->ops->reserve(node->out, &transfer, &place) != RR_OK)
		return;
	if (place)
		memset(place, what, transfer.bytes);
	node->out->ops->commit(node->out, &transfer);
}

static void step(struct node *node, struct fuzz_input *input)
{
	uint64_t segment = node->shm.layout.bytes;
	uint8_t what = fuzz_byte(input);
	const struct rr_open *open;

	switch (what % 8) {
	case 0: { /* into its segment: near the beginning where the records lie, or anywhere */
		uint64_t at = fuzz_word(input) % (what & 8 ? segment : node->shm.layout.slots), bytes = fuzz_byte(input);
		fuzz_take(input, (char *)node->peers[1].page + at, bytes < segment - at ? bytes : segment - at);
		return;
	}
	case 1: take(node, fuzz_byte(input)); return;
	case 2: give(node, fuzz_byte(input)); return;
	case 3:
		if (node->in->ops->open_peek(node->in, 1 + what / 8 % 3, &open) == RR_OK) {
			node->in->ops->open_accept(node->in, open);
			node->out->ops->open_accept(node->out, open);
		}
		return;
	case 4: announce(node, input, what & 8); return;
	case 5: rr_shm_look(&node->shm); return;
	case 6: node->out->ops->released(node->out); return;
	case 7: { /* a DATA line that is next in turn, so that the search need not find its place */
		struct rr_data *line = rr_page_ring(node->peers[1].page, &node->shm.layout, 0) + node->in->sent % RR_RING_COUNT;
		uint8_t bytes[sizeof(*line)];
		fuzz_take(input, bytes, sizeof(bytes));
		memcpy((void *)line, bytes, sizeof(bytes));
		line->op = 1;
		rr_publish64(&line->serial, node->in->sent + 1);
		return;
	}
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_input input = {data, size};
	struct node node = {0};

	open_node(&node);
	for (int i = 0; i < STEPS_MAX && input.left; i++)
		step(&node, &input);
	close_node(&node);
	return 0;
}
