/* hello.c - see hello.h. */
#define _GNU_SOURCE
#include "hello.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "page.h"
#include "status.h"
#include "wire.h"

static void read_boot_id(char *text, size_t size)
{
	FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");

	if (!file)
		return;
	if (fgets(text, (int)size, file))
		text[strcspn(text, "\n")] = 0;
	fclose(file);
}

void rr_hello_fill(struct rr_hello *hello)
{
	const char *given = getenv("RDMARING_HOST_ID");
	struct stat network;

	hello->wire_version = RR_WIRE_VERSION;
	hello->page_version = RR_PAGE_VERSION;
	hello->pid = getpid();
	read_boot_id(hello->boot_id, sizeof(hello->boot_id));
	if (given && *given)
		snprintf(hello->host_id, sizeof(hello->host_id), "%s", given);
	else
		memcpy(hello->host_id, hello->boot_id, sizeof(hello->host_id));
	gethostname(hello->host_name, sizeof(hello->host_name) - 1);
	if (stat("/proc/self/ns/net", &network) == 0)
		hello->network = network.st_ino;
}

uint64_t rr_hello_process(const struct rr_hello *hello)
{
	uint64_t hash = rr_hash_bytes(hello->boot_id, sizeof(hello->boot_id), hello->network);

	return rr_hash_bytes(hello->host_id, sizeof(hello->host_id), hash ^ (uint32_t)hello->pid);
}

static const char *transport_of(const struct rr_hello *hello)
{
	return hello->transport[0] ? hello->transport : "rdmaring";
}

static bool ends(const char *text, size_t size)
{
	return memchr(text, 0, size) != NULL;
}

/* What another rank told is used as it is from here on: texts end where their room ends, counts fit their tables. */
static const char *beyond_bounds(const struct rr_hello *hello)
{
	if (!ends(hello->host_id, sizeof(hello->host_id)) || !ends(hello->boot_id, sizeof(hello->boot_id)) ||
	    !ends(hello->host_name, sizeof(hello->host_name)) || !ends(hello->socket_name, sizeof(hello->socket_name)) ||
	    !ends(hello->transport, sizeof(hello->transport)) || !ends(hello->message, sizeof(hello->message)) ||
	    !ends(hello->rail_reason, sizeof(hello->rail_reason)))
		return "a text that does not end";
	if (hello->address_count > RR_NET_ADDRESSES_MAX)
		return "too many addresses";
	if (hello->rail_count > RR_RAILS_MAX)
		return "too many RDMA ports";
	for (uint32_t i = 0; i < hello->rail_count; i++)
		if (!ends(hello->rails[i].device, sizeof(hello->rails[i].device)) || hello->rails[i].gid_count > RR_RAIL_GIDS_MAX)
			return "an RDMA port that does not fit its room";
	if (!hello->slot_bytes || hello->slot_bytes % RR_SLOT_BYTES_STEP || hello->slot_bytes > RR_LINK_BYTES_MAX)
		return "slots of an impossible size";
	return NULL;
}

rr_status rr_hello_check(const struct rr_hello *hellos, int32_t rank, int32_t world)
{
	const struct rr_hello *own = &hellos[rank];

	for (int32_t r = 0; r < world; r++) {
		const struct rr_hello *other = &hellos[r];
		if (other->wire_version != RR_WIRE_VERSION || other->page_version != RR_PAGE_VERSION)
			return rr_fail(RR_ERR_SETUP, "rank %d speaks wire version %u.%u, this build %u.%u: install the same version everywhere",
				       r, other->wire_version, other->page_version, RR_WIRE_VERSION, RR_PAGE_VERSION);
		if (other->status < 0)
			return rr_fail(RR_ERR_SETUP, "rank %d could not set up: %.255s", r, other->message);
		const char *wrong = beyond_bounds(other);
		if (wrong)
			return rr_fail(RR_ERR_PROTOCOL, "rank %d introduced itself with %s", r, wrong);
		if (other->slot_count != own->slot_count)
			return rr_fail(RR_ERR_SETUP, "rank %d has %u slots a link, rank %d has %u: options must be equal on all ranks",
				       r, other->slot_count, rank, own->slot_count);
		if (strncmp(other->transport, own->transport, sizeof(own->transport)) != 0)
			return rr_fail(RR_ERR_SETUP, "rank %d wants edges between nodes served by %.15s, rank %d by %.15s: name the same transport on all ranks",
				       r, transport_of(other), rank, transport_of(own));
		if (other->channels != own->channels)
			return rr_fail(RR_ERR_SETUP, "rank %d has channels=%u, rank %d channels=%u: channels must be equal on all ranks (RDMARING_CHANNELS)",
				       r, other->channels, rank, own->channels);
	}
	return RR_OK;
}

static bool one_host(const struct rr_hello *a, const struct rr_hello *b)
{
	/* Abstract unix sockets, by which a node joins, belong to a network namespace. */
	return strncmp(a->host_id, b->host_id, sizeof(a->host_id)) == 0 &&
	       strncmp(a->boot_id, b->boot_id, sizeof(a->boot_id)) == 0 && a->network == b->network;
}

void rr_hello_nodes(const struct rr_hello *hellos, int32_t world, int32_t *node)
{
	int32_t count = 0;

	for (int32_t r = 0; r < world; r++) {
		node[r] = -1;
		for (int32_t earlier = 0; earlier < r && node[r] < 0; earlier++)
			if (one_host(&hellos[earlier], &hellos[r]))
				node[r] = node[earlier];
		if (node[r] < 0)
			node[r] = count++;
	}
}
