/*
 * hello.h - what every rank tells all others when a communicator is made, and what follows from it.
 *
 *   1 exchange   hello: versions, host, where to reach me, memory I may use
 *   2 segment    of the node: made with the smallest slots that any of its ranks asked for
 *   3 exchange   how that went
 *   4 sockets    inside the node, each rank connects to the lower ones; both send their segment's descriptor
 *   5 proof      the mapped page holds the token told in 1: the same node, whatever names say
 *   6 exchange   how it went, and whose ordinary memory can be read
 *
 * A rank that fails goes on to the next exchange, so that all fail together and name it.
 */
#ifndef RR_HELLO_H
#define RR_HELLO_H

#include "net.h"
#include "rdmaring.h"
#include "verbs_device.h"

#define RR_TOKEN_BYTES 16u
#define RR_SLOT_BYTES_STEP 4096u
#define RR_LINK_BYTES_MAX (8ull << 20) /* whatever the options say */

struct rr_hello {
	uint32_t wire_version;
	uint32_t page_version;
	int32_t status;
	int32_t pid;
	uint64_t slot_bytes;
	uint64_t budget_bytes; /* of the process */
	uint64_t left_bytes;   /* of it, beside other communicators */
	uint32_t slot_count;
	uint32_t cma_wanted;
	uint64_t token_address; /* where the token lies in that process, for the probe of CMA */
	uint64_t network;       /* the network namespace: its inode */
	uint8_t token[RR_TOKEN_BYTES];
	char host_id[40]; /* RDMARING_HOST_ID, or boot_id */
	char boot_id[40];
	char host_name[40];
	char socket_name[40];
	char transport[16]; /* of edges between nodes, if it is none of ours */
	char message[256];
	uint16_t port; /* of this rank's listener, for other nodes */
	uint16_t channels; /* links of operations that an edge between nodes has */
	uint32_t address_count;
	struct rr_net_address addresses[RR_NET_ADDRESSES_MAX];
	char rail_reason[192]; /* why there are no rails, or not more */
	uint32_t rail_count;
	struct rr_rail rails[RR_RAILS_MAX]; /* RDMA ports that may serve edges to other nodes */
};

/* All but what shm and far fill in. */
void rr_hello_fill(struct rr_hello *hello);
/* A number that differs between processes, and not between the communicators of one. */
uint64_t rr_hello_process(const struct rr_hello *hello);
/* Versions equal, no rank failed, options alike; the same verdict on all ranks. */
rr_status rr_hello_check(const struct rr_hello *hellos, int32_t rank, int32_t world);
/* node[r]: which node rank r is on, numbered from 0 in order of their first ranks. */
void rr_hello_nodes(const struct rr_hello *hellos, int32_t world, int32_t *node);

#endif
