/* setup.c - how a communicator's ranks meet: hello, node, far ranks, links. The steps are in hello.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm.h"
#include "forked.h"
#include "link_message.h"
#include "link_shm.h"
#include "link_tcp.h"
#include "link_verbs.h"
#include "order.h"
#include "status.h"

/* Taken-apart nodes have odd numbers: number all from 0 in order of their first ranks. */
static void number_nodes(int32_t *node, int32_t world)
{
	int32_t count = 0;

	for (int32_t r = 0; r < world; r++) {
		int32_t old = node[r];
		if (old < -1)
			continue;
		for (int32_t later = r; later < world; later++)
			if (node[later] == old)
				node[later] = -2 - count; /* below all old numbers: done */
		count++;
	}
	for (int32_t r = 0; r < world; r++)
		node[r] = -2 - node[r];
}

/* An embedder without a secret of its own: the tokens, which only the exchange has seen. */
static void choose_key(const struct rr_comm *comm, const struct rr_hello *hellos, uint8_t key[RR_KEY_BYTES])
{
	static const uint8_t none[RR_KEY_BYTES];

	memcpy(key, comm->options.key, RR_KEY_BYTES);
	if (memcmp(key, none, RR_KEY_BYTES) != 0)
		return;
	for (int32_t r = 0; r < comm->world; r++)
		for (size_t i = 0; i < RR_KEY_BYTES; i++)
			key[i] ^= hellos[r].token[i];
}

static rr_status open_near(struct rr_comm *comm, int32_t r)
{
	struct rr_link **ends[2][2] = {{&comm->engine.out[r], &comm->engine.in[r]},
				       {&comm->message_out[r], &comm->message_in[r]}};
	rr_status status = RR_OK;

	for (int messages = 0; messages < 2 && status >= 0; messages++) {
		status = rr_link_shm_open(&comm->shm, r, true, messages, ends[messages][0]);
		if (status >= 0)
			status = rr_link_shm_open(&comm->shm, r, false, messages, ends[messages][1]);
		if (status >= 0)
			rr_link_shm_pair(*ends[messages][0], *ends[messages][1]);
	}
	comm->pages[r] = comm->shm.peers[r].page;
	return status;
}

/* The local rank of the edge's lower rank: both ends take turns among the rails alike, and channels go on from there. */
static uint32_t turn_of(const struct rr_comm *comm, int32_t r)
{
	int32_t lower = r < comm->rank ? r : comm->rank;
	uint32_t turn = 0;

	for (int32_t i = 0; i < lower; i++)
		turn += comm->node[i] == comm->node[lower];
	return turn;
}

/* Both ends compute the same from the hellos. The reason tells why it is not verbs. */
static bool match_rails(struct rr_comm *comm, const struct rr_hello *hellos, int32_t r, uint32_t channel,
			struct rr_rail_pair *pair)
{
	const struct rr_hello *ours = &hellos[comm->rank], *theirs = &hellos[r];
	char why[192] = "";

	if (rr_rails_match(ours->rails, ours->rail_count, theirs->rails, theirs->rail_count, turn_of(comm, r) + channel,
			   pair, why, sizeof(why)))
		return true;
	if (!ours->rail_count)
		snprintf(comm->not_verbs[r], sizeof(comm->not_verbs[r]), "no RDMA: rank %d: %.150s", comm->rank, ours->rail_reason);
	else if (!theirs->rail_count)
		snprintf(comm->not_verbs[r], sizeof(comm->not_verbs[r]), "no RDMA: rank %d: %.150s", r, theirs->rail_reason);
	else
		snprintf(comm->not_verbs[r], sizeof(comm->not_verbs[r]), "no RDMA: %.170s", why);
	return false;
}

/* One channel of an edge; the last carries messages, and comes up late: few ranks exchange any. */
static rr_status open_channel(struct rr_comm *comm, const struct rr_hello *hellos, int32_t r, uint32_t channel)
{
	bool messages = channel == comm->options.channels;
	size_t at = (size_t)channel * (size_t)comm->world + (size_t)r;
	struct rr_link **out = messages ? &comm->message_out[r] : &comm->engine.out[at];
	struct rr_link **in = messages ? &comm->message_in[r] : &comm->engine.in[at];
	struct rr_rail_pair pair = {0};

	if (comm->transport) {
		uint64_t largest = comm->options.slot_bytes < RR_MAILBOX_BYTES ? RR_MAILBOX_BYTES : comm->options.slot_bytes;
		return rr_link_message_open(comm->far, comm->transport, comm->rank, comm->world, r, largest, messages, out, in);
	}
	rr_options options = comm->options;
	options.slot_count = messages ? comm->options.slot_count : comm->far_slot_count;
	if (match_rails(comm, hellos, r, messages ? 0 : channel, &pair))
		return rr_link_verbs_open(comm->far, comm->rank, r, &hellos[comm->rank].rails[pair.our_rail], &pair,
					  turn_of(comm, r) + (messages ? 0 : channel), &options, messages, out, in);
	if (comm->options.require_rdma || !(comm->options.transports & RR_TRANSPORT_TCP)) {
		rr_fail(RR_ERR_SETUP, "RDMA is required, and the edge to rank %d has none: %s", r, comm->not_verbs[r]);
		strcpy(rr_error_here()->hint, "rdmaring doctor shows this machine's RDMA devices and what is wrong with them");
		return RR_ERR_SETUP;
	}
	return rr_link_tcp_open(comm->far, r, messages ? 1 : comm->options.tcp_streams, comm->options.slot_bytes, messages, out,
				in);
}

static rr_status open_far(struct rr_comm *comm, const struct rr_hello *hellos, int32_t r)
{
	rr_status status = RR_OK;

	comm->pages[r] = rr_far_page(comm->far, r);
	for (uint32_t channel = 0; channel <= comm->options.channels && status >= 0; channel++)
		status = open_channel(comm, hellos, r, channel);
	return status;
}

static rr_status open_links(struct rr_comm *comm, const struct rr_hello *hellos)
{
	rr_status status = RR_OK;

	for (int32_t r = 0; r < comm->world && status >= 0; r++) {
		/* Memory has no second rail: all channels share the one link. */
		comm->edge_channels[r] = r == comm->rank || rr_shm_has(&comm->shm, r) ? 1 : comm->options.channels;
		if (r == comm->rank)
			comm->pages[r] = comm->shm.page;
		else
			status = rr_shm_has(&comm->shm, r) ? open_near(comm, r) : open_far(comm, hellos, r);
	}
	return status;
}

static rr_status find_rails(const struct rr_comm *comm, struct rr_hello *own)
{
	if (comm->options.transports & RR_TRANSPORT_VERBS)
		return rr_rails_find(&comm->options.verbs, own->rails, &own->rail_count, own->rail_reason,
				     sizeof(own->rail_reason));
	snprintf(own->rail_reason, sizeof(own->rail_reason), "its settings allow TCP only");
	return RR_OK;
}

/* After the last exchange: all that follows is this rank's own. */
static rr_status join_far(struct rr_comm *comm, const struct rr_hello *hellos)
{
	uint8_t key[RR_KEY_BYTES];
	rr_status status;

	if (comm->shm.count == comm->world) { /* all on one node: nobody needs the listener */
		rr_far_close(comm->far);
		comm->far = NULL;
		return RR_OK;
	}
	choose_key(comm, hellos, key);
	status = rr_far_start(comm->far, hellos, comm->node, key, comm->shm.page);
	rr_far_neighbours(comm->far, rr_judge_neighbour, rr_judge_sent, comm);
	comm->mailbox.out = comm->engine.out;
	comm->mailbox.in = comm->engine.in;
	return status;
}

static rr_status meet(struct rr_comm *comm, rr_exchange_fn exchange, void *user, struct rr_hello *own,
		      struct rr_hello *hellos, int listener)
{
	rr_status status;

	if (exchange(user, own, sizeof(*own), hellos) != 0)
		return rr_fail(RR_ERR_SETUP, "the exchange among the ranks failed");
	status = rr_hello_check(hellos, comm->rank, comm->world);
	if (status < 0) /* all ranks see the same hellos, so all leave here */
		return status;
	rr_hello_nodes(hellos, comm->world, comm->node);
	status = rr_shm_join(&comm->shm, hellos, comm->node, listener, comm->setup_until_ns, exchange, user, comm->apart,
			     sizeof(comm->apart));
	if (status < 0)
		return status;
	number_nodes(comm->node, comm->world);
	return join_far(comm, hellos);
}

/* A transport that is not ours, if one is asked for; all ranks must have the same. */
static rr_status find_transport(struct rr_comm *comm, struct rr_hello *own)
{
	const rr_options *options = &comm->options;
	rr_status status;

	if (options->link_library && options->link_transport)
		return rr_fail(RR_ERR_ARGUMENT, "link_library and link_transport are both given: accepted is one of them");
	if (options->link_library)
		status = rr_message_load(options->link_library, &comm->transport_library, &comm->transport);
	else if (options->link_transport)
		status = rr_message_check(options->link_transport, "link_transport");
	else
		return RR_OK;
	if (status < 0)
		return status;
	if (options->link_transport)
		comm->transport = options->link_transport;
	comm->options.link_library = NULL; /* the caller's text */
	snprintf(own->transport, sizeof(own->transport), "%s", comm->transport->name);
	return RR_OK;
}

/* Before the page says RUNNING. */
static void name_page(struct rr_comm *comm, const struct rr_hello *own, const struct rr_hello *hellos)
{
	const struct rr_hello *first = comm->world == 1 ? own : &hellos[0];

	comm->shm.page->process = rr_hello_process(own);
	comm->shm.page->comm = rr_hash_bytes(first->token, sizeof(first->token), 0);
	for (int32_t r = 0; r < comm->world; r++)
		if (!rr_shm_has(&comm->shm, r))
			comm->pages[r]->comm = comm->shm.page->comm;
}

rr_status rr_setup(struct rr_comm *comm, rr_exchange_fn exchange, void *user)
{
	struct rr_hello *own = calloc(1, sizeof(*own));
	struct rr_hello *hellos = calloc((size_t)comm->world, sizeof(*hellos));
	int listener = -1;
	rr_status status;

	if (!own || !hellos) {
		status = rr_fail(RR_ERR_NO_MEMORY, "no memory for %d hellos", comm->world);
		goto free_both;
	}
	rr_hello_fill(own);
	own->channels = (uint16_t)comm->options.channels;
	status = rr_shm_prepare(comm->rank, comm->world, &comm->options, &comm->shm, own, &listener);
	if (status >= 0)
		status = find_transport(comm, own);
	if (comm->world == 1) {
		status = status < 0 ? status : rr_shm_alone(&comm->shm, own);
		goto close_listener;
	}
	if (status >= 0)
		status = rr_far_prepare(comm->rank, comm->world, own, &comm->far);
	if (status >= 0 && !comm->transport)
		status = find_rails(comm, own);
	if (!comm->shm.peers || !comm->shm.index) /* without them nothing can go on, not even together */
		goto close_listener;
	own->status = status;
	if (status < 0)
		snprintf(own->message, sizeof(own->message), "%.255s", rr_error_here()->message);
	rr_error ours = *rr_error_here();
	rr_status met = meet(comm, exchange, user, own, hellos, listener);
	status = status < 0 ? rr_error_set(&ours) : met; /* what the others make of it is not the cause */

close_listener:
	if (listener >= 0)
		rr_own_close(listener);
	if (status >= 0)
		status = open_links(comm, hellos);
	if (status >= 0)
		name_page(comm, own, hellos);
	if (status >= 0)
		status = rr_shm_start(&comm->shm, comm->far ? rr_far_bell(comm->far) : -1);
free_both:
	free(own);
	free(hellos);
	return status;
}
