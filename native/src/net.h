/*
 * net.h - sockets between nodes: this host's addresses, in which order to try a peer's, TCP options.
 *
 * Threads: any; there is no state.
 */
#ifndef RR_NET_H
#define RR_NET_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "rdmaring.h"

#define RR_NET_ADDRESSES_MAX 16u /* of one host, told to the others */
#define RR_NET_TARGETS_MAX 64u   /* ways to try one peer */
#define RR_NET_TEXT_BYTES 80u

/* An address of a host, as it travels in the hello. */
struct rr_net_address {
	uint8_t family; /* 4, 6, or 0: none */
	uint8_t prefix_bits;
	uint8_t scoped; /* link-local: means something only on its own wire */
	uint8_t loopback;
	uint8_t bytes[16];
};
_Static_assert(sizeof(struct rr_net_address) == 20, "addresses travel between ranks");

struct rr_net_target {
	struct sockaddr_storage address;
	socklen_t size;
};

/* This host's addresses on interfaces that are up, loopback last; at most RR_NET_ADDRESSES_MAX. */
rr_status rr_net_addresses(struct rr_net_address *out, uint32_t *count);
/*
 * Where to try a peer, best first: addresses on a subnet of ours, then others, link-local ones on each
 * of our interfaces, loopback last and only if the peer is on this kernel (same_kernel).
 */
uint32_t rr_net_targets(const struct rr_net_address *peer, uint32_t peer_count, uint16_t port, bool same_kernel,
			struct rr_net_target *out);
/* "10.0.0.1:4000", "[fe80::1%eth0]:4000". */
const char *rr_net_text(const struct sockaddr_storage *address, char text[RR_NET_TEXT_BYTES]);

/* A listening socket on all addresses, IPv6 and IPv4 where there is IPv6. Non-blocking. */
rr_status rr_net_listen(int *out, uint16_t *port);
/* Begins to connect; the socket is writable when that is decided. Returns -errno on failure. */
int rr_net_dial(const struct rr_net_target *target);
/* Non-blocking, no delay for small messages. */
void rr_net_prepare(int socket);
/*
 * A lost host ends the connection within about 4 s: keepalive (1 s, 1 s, 3) and user timeout. Not for data
 * sockets: a receiver that is merely late closes its window, which the user timeout does not forgive.
 */
void rr_net_watch_host(int socket);

#endif
