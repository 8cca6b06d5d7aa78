/* comm.c - communicators: made, and what they tell of themselves. */
#include "comm.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "forked.h"
#include "memory.h"
#include "order.h"
#include "status.h"
#include "verbs_qp.h"

#define TIMEOUT_NS_DEFAULT (300 * RR_NS_PER_S)
#define SLOT_BYTES_DEFAULT (256u << 10) /* a slice of ordinary memory by CMA is best at 128-256 KiB */
#define SLOT_COUNT_DEFAULT 4u
#define FAR_SLOT_COUNT_DEFAULT 16u /* a credit takes a trip: measured over soft-RoCE, 4 MiB in 302 ms with 4, 213 ms with 16 */
#define MEMORY_BUDGET_DEFAULT (512ull << 20)
#define TCP_STREAMS_DEFAULT 2u

static rr_status check_options(rr_options *options, const rr_options *given, uint32_t *far_slot_count)
{
	*options = given ? *given : (rr_options){0};
	options->timeout_ns = options->timeout_ns ? options->timeout_ns : TIMEOUT_NS_DEFAULT;
	options->slot_bytes = options->slot_bytes ? options->slot_bytes : SLOT_BYTES_DEFAULT;
	options->setup_ns = options->setup_ns ? options->setup_ns : options->timeout_ns;
	*far_slot_count = options->slot_count ? options->slot_count : FAR_SLOT_COUNT_DEFAULT;
	options->slot_count = options->slot_count ? options->slot_count : SLOT_COUNT_DEFAULT;
	options->tcp_streams = options->tcp_streams ? options->tcp_streams : TCP_STREAMS_DEFAULT;
	options->channels = options->channels ? options->channels : 1;
	options->transports = options->transports ? options->transports : RR_TRANSPORT_TCP | RR_TRANSPORT_VERBS;
	if (!options->memory_budget_bytes)
		options->memory_budget_bytes = MEMORY_BUDGET_DEFAULT;
	if (options->channels > RR_CHANNELS_MAX)
		return rr_fail(RR_ERR_ARGUMENT, "channels is %u: accepted are 1..%u", options->channels, RR_CHANNELS_MAX);
	if (options->slot_bytes % RR_SLOT_BYTES_STEP || options->slot_bytes > RR_LINK_BYTES_MAX || options->slot_count > RR_LINK_BYTES_MAX / options->slot_bytes)
		return rr_fail(RR_ERR_ARGUMENT, "slots of %u x %llu bytes: slot_bytes must be a multiple of 4096, a link's slots at most %llu bytes",
			       options->slot_count, (unsigned long long)options->slot_bytes, (unsigned long long)RR_LINK_BYTES_MAX);
	return rr_qp_settings_set(&options->verbs, &(struct rr_qp_settings){0});
}

static rr_status make_statistics(struct rr_comm *comm)
{
	size_t world = (size_t)comm->world;

	comm->sent_before = calloc(world, sizeof(uint64_t));
	comm->received_before = calloc(world, sizeof(uint64_t));
	comm->link_stats = calloc(world, sizeof(rr_link_stats));
	comm->node = calloc(world, sizeof(int32_t));
	comm->edge_channels = calloc(world, sizeof(uint32_t));
	comm->pages = calloc(world, sizeof(struct rr_page *));
	comm->not_verbs = calloc(world, sizeof(*comm->not_verbs));
	comm->message_out = calloc(world, sizeof(struct rr_link *));
	comm->message_in = calloc(world, sizeof(struct rr_link *));
	if (comm->not_verbs && comm->message_out && comm->message_in && comm->sent_before && comm->received_before && comm->link_stats && comm->node && comm->edge_channels && comm->pages)
		return RR_OK;
	return rr_fail(RR_ERR_NO_MEMORY, "no memory for statistics of %d links", comm->world);
}

rr_status rr_comm_create(int32_t rank, int32_t world, rr_exchange_fn exchange, void *user,
			 const rr_options *options, rr_comm **out)
{
	struct rr_comm *comm;
	rr_status status;

	if (world < 1 || rank < 0 || rank >= world)
		return rr_fail(RR_ERR_ARGUMENT, "rank %d of world %d: accepted are 0 <= rank < world", rank, world);
	if (world > 1 && !exchange)
		return rr_fail(RR_ERR_ARGUMENT, "exchange is NULL: a world of %d ranks needs it", world);
	comm = calloc(1, sizeof(*comm));
	if (!comm)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for a communicator");
	static _Atomic uint64_t numbers;
	comm->number = 1 + atomic_fetch_add_explicit(&numbers, 1, memory_order_relaxed);
	comm->references = 1;
	comm->rank = rank;
	comm->world = world;
	rr_drive_watch_forks();
	comm->process_mark = rr_forked_mark();
	comm->shm.memfd = comm->shm.bell = -1;
	status = check_options(&comm->options, options, &comm->far_slot_count);
	comm->setup_until_ns = rr_now_ns() + comm->options.setup_ns;
	if (status >= 0)
		status = make_statistics(comm);
	if (status >= 0)
		status = rr_engine_init(&comm->engine, rank, world, comm->options.channels);
	if (status >= 0)
		status = rr_setup(comm, exchange, user);
	if (status < 0)
		goto give_back;
	/* A pass over sockets is no pause; one over verbs reads memory, as one over shared memory does. */
	comm->spin.pauses = rr_wait_pauses((int32_t)comm->shm.layout.count); /* also where the node came apart */
	comm->shm.crowded = comm->spin.pauses == 0;
	if (comm->far && rr_far_pass_is_dear(comm->far))
		comm->spin.pauses = 0;
	comm->mailbox.shm = &comm->shm;
	comm->mailbox.serial = (uint32_t)comm->options.serial_start;
	comm->engine.position = &comm->shm.page->position;
	rr_judge_begin(comm);
	*out = comm;
	return RR_OK;

give_back:
	rr_comm_give_back(comm);
	rr_comm_release(comm);
	return status;
}

void rr_comm_wake_all(struct rr_comm *comm)
{
	rr_store_before_load();
	for (int32_t r = 0; r < comm->world; r++)
		if (r != comm->rank && rr_shm_has(&comm->shm, r))
			rr_shm_wake(&comm->shm, r);
}

int32_t rr_comm_node(const rr_comm *comm, int32_t rank)
{
	return rank >= 0 && rank < comm->world ? comm->node[rank] : -1;
}

static int take_apart_note(rr_comm *comm, char *text, size_t size)
{
	if (!comm->apart[0] || comm->apart_told || comm->shm.index[comm->rank] != 0)
		return 0;
	comm->apart_told = true;
	snprintf(text, size, "shared memory between rank %d and the %u other ranks of its node was given up, other transports serve them: %s",
		 comm->rank, comm->shm.layout.count - 1, comm->apart);
	return 1;
}

int rr_comm_note(rr_comm *comm, char *text, size_t size)
{
	int found;

	if (!rr_comm_hold(comm))
		return 0;
	found = take_apart_note(comm, text, size) || (comm->far && rr_far_take_note(comm->far, text, size));
	rr_comm_let_go(comm);
	return found;
}

uint64_t rr_comm_strangers(rr_comm *comm, char *last, size_t size)
{
	uint64_t count = 0;

	if (size)
		last[0] = 0;
	if (rr_drive_is_shut(comm)) {
		snprintf(last, size, "%s", comm->stranger);
		return comm->strangers;
	}
	if (rr_comm_begin_lost(comm) < 0)
		return 0;
	if (comm->far)
		count = rr_far_strangers(comm->far, last, size);
	rr_drive_leave(comm);
	return count;
}

#define NAME(number) #number
#define WIRE_NAME(wire, page) "rdmaring " RDMARING_VERSION " wire " NAME(wire) " page " NAME(page)

const char *rr_wire_name(void)
{
	return WIRE_NAME(RR_WIRE_VERSION, RR_PAGE_VERSION);
}

rr_status rr_comm_scratch(struct rr_comm *comm, uint64_t bytes)
{
	void *larger = NULL;

	if (bytes <= comm->scratch_bytes)
		return RR_OK;
	rr_status status = rr_memory_alloc(bytes, &larger);
	if (status < 0)
		return status;
	if (comm->scratch)
		rr_memory_free(comm->scratch);
	comm->scratch = larger;
	comm->scratch_bytes = bytes;
	return RR_OK;
}

rr_status rr_comm_device_scratch(struct rr_comm *comm, uint64_t bytes)
{
	struct rr_device *device = comm->device;
	void *larger = NULL;

	if (bytes <= comm->device_scratch_bytes)
		return RR_OK;
	rr_status status = device->ops->alloc(device, bytes, &larger);
	if (status < 0)
		return status;
	if (comm->device_scratch)
		device->ops->free(device, comm->device_scratch);
	comm->device_scratch = larger;
	comm->device_scratch_bytes = bytes;
	return RR_OK;
}

rr_status rr_comm_message_links(struct rr_comm *comm, int32_t peer, struct rr_link **out, struct rr_link **in)
{
	if (peer < 0 || peer >= comm->world || peer == comm->rank)
		return rr_fail(RR_ERR_ARGUMENT, "peer %d: accepted are ranks 0..%d but %d", peer, comm->world - 1, comm->rank);
	*out = comm->message_out[peer];
	*in = comm->message_in[peer];
	return RR_OK;
}

static void near_facts(const rr_comm *comm, int32_t peer, rr_link_facts *out)
{
	const struct rr_shm_peer *other = &comm->shm.peers[peer];

	out->peer_pid = other->pid;
	strcpy(out->transport, "shm");
	strcpy(out->ordinary, other->cma && other->cma_of_us ? "cma" : "slots");
	if (other->cma && other->cma_of_us)
		snprintf(out->reason, sizeof(out->reason), "the kernel lets both read each other's memory");
	else if (!comm->shm.cma_wanted || other->cma_errno == ECANCELED)
		snprintf(out->reason, sizeof(out->reason), "CMA is switched off (RDMARING_CMA=0)");
	else if (!other->cma)
		snprintf(out->reason, sizeof(out->reason), "process_vm_readv of rank %d: %s (Yama's ptrace_scope, a seccomp filter or another user)",
			 peer, strerror(other->cma_errno));
	else
		snprintf(out->reason, sizeof(out->reason), "rank %d may not read this rank's memory", peer);
	out->slot_bytes = comm->shm.layout.slot_bytes;
	out->slot_count = comm->shm.layout.slot_count;
	out->huge_pages = rr_memory_is_huge((const char *)comm->shm.page + comm->shm.layout.slots);
	struct rr_link *link = comm->engine.out[peer];
	link->ops->describe(link, out);
}

rr_link_stats rr_comm_moved(const struct rr_comm *comm, int32_t peer)
{
	rr_link_stats moved = {.peer = peer};

	for (uint32_t channel = 0; channel < comm->edge_channels[peer]; channel++) {
		size_t at = (size_t)channel * (size_t)comm->world + (size_t)peer;
		moved.sent_bytes += comm->engine.out[at]->bytes;
		moved.received_bytes += comm->engine.in[at]->bytes;
	}
	return moved;
}

/* What each channel tells: sums, the first one's words, and each rail once. */
static void far_facts(rr_comm *comm, int32_t peer, rr_link_facts *out)
{
	uint32_t streams = 0;

	for (uint32_t channel = comm->edge_channels[peer]; channel-- > 0;) { /* the first one's words stay */
		struct rr_link *link = comm->engine.out[(size_t)channel * (size_t)comm->world + (size_t)peer];
		link->ops->describe(link, out);
		streams += out->streams;
		if (out->rail >= 0)
			out->rails |= 1u << out->rail;
	}
	out->streams = streams;
	out->peer_pid = comm->pages[peer]->pid;
	rr_far_facts(comm->far, peer, out);
	if (rr_shm_parted(&comm->shm, peer)) /* nothing else is said of ranks of one host */
		snprintf(out->reason, sizeof(out->reason), "no shared memory: %.230s", comm->apart);
	if (comm->not_verbs[peer][0]) {
		size_t used = strlen(out->reason);
		snprintf(out->reason + used, sizeof(out->reason) - used, "%s%s", used ? "; " : "", comm->not_verbs[peer]);
	}
}

rr_status rr_comm_link_facts(rr_comm *comm, int32_t peer, rr_link_facts *out)
{
	rr_status status;

	if (peer < 0 || peer >= comm->world || peer == comm->rank)
		return rr_fail(RR_ERR_ARGUMENT, "peer %d: accepted are ranks 0..%d but %d", peer, comm->world - 1, comm->rank);
	status = rr_comm_begin_lost(comm); /* a fail-over frees what is described */
	if (status < 0)
		return status;
	memset(out, 0, sizeof(*out));
	out->peer = peer;
	out->peer_node = comm->node[peer];
	out->rail = -1;
	out->channels = comm->edge_channels[peer];
	if (rr_shm_has(&comm->shm, peer))
		near_facts(comm, peer, out);
	else
		far_facts(comm, peer, out);
	rr_link_stats moved = rr_comm_moved(comm, peer);
	out->sent_bytes = moved.sent_bytes + comm->mailbox_sent_bytes;
	out->received_bytes = moved.received_bytes + comm->mailbox_sent_bytes;
	out->sent_slices = comm->mailbox_sent_slices;
	out->received_slices = comm->mailbox_sent_slices;
	for (uint32_t channel = 0; channel < out->channels; channel++) {
		size_t at = (size_t)channel * (size_t)comm->world + (size_t)peer;
		out->sent_slices += comm->engine.out[at]->sent;
		out->received_slices += comm->engine.in[at]->sent;
	}
	rr_drive_leave(comm);
	return RR_OK;
}

rr_status rr_comm_last_stats(rr_comm *comm, rr_run_stats *out)
{
	rr_status status = rr_comm_begin_lost(comm);

	if (status < 0)
		return status;
	*out = comm->stats;
	rr_drive_leave(comm);
	return RR_OK;
}

rr_link_stats rr_comm_link_stats(const struct rr_comm *comm, int32_t peer)
{
	rr_link_stats stats = {.peer = peer};

	if (peer == comm->rank || !comm->stats.op)
		return stats;
	if (comm->last_mailbox) {
		stats.sent_bytes = comm->last_mailbox_bytes;
		stats.received_bytes = comm->last_mailbox_bytes;
		return stats;
	}
	stats = comm->link_stats[peer];
	stats.peer = peer;
	return stats;
}

static rr_status check_peer(int32_t peer, int32_t world)
{
	if (peer >= 0 && peer < world)
		return RR_OK;
	return rr_fail(RR_ERR_ARGUMENT, "peer %d: accepted are 0..%d", peer, world - 1);
}

rr_status rr_comm_last_link_stats(rr_comm *comm, int32_t peer, rr_link_stats *out)
{
	rr_status status = check_peer(peer, comm->world);

	if (status >= 0)
		status = rr_comm_begin_lost(comm);
	if (status < 0)
		return status;
	*out = rr_comm_link_stats(comm, peer);
	rr_drive_leave(comm);
	return RR_OK;
}

rr_status rr_work_link_stats(const rr_work *work, int32_t peer, rr_link_stats *out)
{
	rr_status status = check_peer(peer, work->world);

	if (status < 0)
		return status;
	if (rr_observe32(&work->state) != RR_WORK_DONE)
		return RR_AGAIN;
	*out = work->link_stats[peer];
	return RR_OK;
}
