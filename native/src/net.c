/* net.c - see net.h. */
#define _GNU_SOURCE
#include "net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "forked.h"
#include "status.h"

#define BACKLOG 512
#define KEEPALIVE_IDLE_S 1
#define KEEPALIVE_INTERVAL_S 1
#define KEEPALIVE_PROBES 3
#define USER_TIMEOUT_MS 4000

static uint8_t prefix_of(const struct sockaddr *mask, int family)
{
	const uint8_t *bytes;
	size_t size;
	uint8_t bits = 0;

	if (!mask)
		return family == AF_INET ? 32 : 128;
	bytes = family == AF_INET ? (const uint8_t *)&((const struct sockaddr_in *)(const void *)mask)->sin_addr
				  : (const uint8_t *)&((const struct sockaddr_in6 *)(const void *)mask)->sin6_addr;
	size = family == AF_INET ? 4 : 16;
	for (size_t i = 0; i < size; i++)
		for (int b = 7; b >= 0 && bytes[i] >> b & 1; b--)
			bits++;
	return bits;
}

static bool take_address(const struct ifaddrs *item, struct rr_net_address *out)
{
	memset(out, 0, sizeof(*out));
	if (!item->ifa_addr || !(item->ifa_flags & IFF_UP))
		return false;
	out->loopback = (item->ifa_flags & IFF_LOOPBACK) != 0;
	if (item->ifa_addr->sa_family == AF_INET) {
		out->family = 4;
		memcpy(out->bytes, &((const struct sockaddr_in *)(const void *)item->ifa_addr)->sin_addr, 4);
	} else if (item->ifa_addr->sa_family == AF_INET6) {
		const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)(const void *)item->ifa_addr;
		out->family = 6;
		out->scoped = IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr);
		memcpy(out->bytes, &six->sin6_addr, 16);
	} else {
		return false;
	}
	out->prefix_bits = prefix_of(item->ifa_netmask, item->ifa_addr->sa_family);
	return true;
}

rr_status rr_net_addresses(struct rr_net_address *out, uint32_t *count)
{
	struct ifaddrs *list;
	struct rr_net_address one;

	*count = 0;
	if (getifaddrs(&list) != 0)
		return rr_fail(RR_ERR_SYSTEM, "cannot list this host's addresses (getifaddrs): %s", strerror(errno));
	for (int loopback = 0; loopback < 2; loopback++)
		for (const struct ifaddrs *item = list; item && *count < RR_NET_ADDRESSES_MAX; item = item->ifa_next)
			if (take_address(item, &one) && one.loopback == loopback)
				out[(*count)++] = one;
	freeifaddrs(list);
	return RR_OK;
}

static bool same_subnet(const struct rr_net_address *a, const struct rr_net_address *b)
{
	uint8_t bits = a->prefix_bits;

	if (a->family != b->family || a->loopback || b->loopback)
		return false;
	for (uint8_t i = 0; i < bits; i++)
		if ((a->bytes[i / 8] ^ b->bytes[i / 8]) >> (7 - i % 8) & 1)
			return false;
	return true;
}

static bool have(const struct rr_net_address *ours, uint32_t count, const struct rr_net_address *one)
{
	for (uint32_t i = 0; i < count; i++)
		if (ours[i].family == one->family && memcmp(ours[i].bytes, one->bytes, sizeof(one->bytes)) == 0)
			return true;
	return false;
}

static struct rr_net_target target_of(const struct rr_net_address *one, uint16_t port, uint32_t scope)
{
	struct rr_net_target target = {0};

	if (one->family == 4) {
		struct sockaddr_in *four = (struct sockaddr_in *)&target.address;
		four->sin_family = AF_INET;
		four->sin_port = htons(port);
		memcpy(&four->sin_addr, one->bytes, 4);
		target.size = sizeof(*four);
	} else {
		struct sockaddr_in6 *six = (struct sockaddr_in6 *)&target.address;
		six->sin6_family = AF_INET6;
		six->sin6_port = htons(port);
		six->sin6_scope_id = scope;
		memcpy(&six->sin6_addr, one->bytes, 16);
		target.size = sizeof(*six);
	}
	return target;
}

/* A link-local address says nothing of the wire: try it on each interface of ours that has one. */
static uint32_t scoped_targets(const struct rr_net_address *one, uint16_t port, struct rr_net_target *out, uint32_t count)
{
	struct ifaddrs *list;
	struct rr_net_address own;

	if (getifaddrs(&list) != 0)
		return count;
	for (const struct ifaddrs *item = list; item && count < RR_NET_TARGETS_MAX; item = item->ifa_next)
		if (take_address(item, &own) && own.scoped && !own.loopback)
			out[count++] = target_of(one, port, if_nametoindex(item->ifa_name));
	freeifaddrs(list);
	return count;
}

/* 0: on a subnet of ours; 1: elsewhere; 2: link-local; 3: equal to one of ours (this host, or a bridge all hosts have); 4: loopback */
static int rank_of(const struct rr_net_address *ours, uint32_t our_count, const struct rr_net_address *one)
{
	if (one->loopback)
		return 4;
	if (have(ours, our_count, one))
		return 3;
	if (one->scoped)
		return 2;
	for (uint32_t i = 0; i < our_count; i++)
		if (same_subnet(&ours[i], one))
			return 0;
	return 1;
}

uint32_t rr_net_targets(const struct rr_net_address *peer, uint32_t peer_count, uint16_t port, bool same_kernel,
			struct rr_net_target *out)
{
	struct rr_net_address ours[RR_NET_ADDRESSES_MAX];
	uint32_t our_count, count = 0;

	if (rr_net_addresses(ours, &our_count) < 0)
		our_count = 0;
	for (int rank = 0; rank <= 4; rank++) {
		for (uint32_t i = 0; i < peer_count && i < RR_NET_ADDRESSES_MAX && count < RR_NET_TARGETS_MAX; i++) {
			const struct rr_net_address *one = &peer[i];
			if ((one->family != 4 && one->family != 6) || rank_of(ours, our_count, one) != rank)
				continue;
			if (rank == 4 && !same_kernel)
				continue;
			if (one->scoped)
				count = scoped_targets(one, port, out, count);
			else
				out[count++] = target_of(one, port, 0);
		}
	}
	return count;
}

const char *rr_net_text(const struct sockaddr_storage *address, char text[RR_NET_TEXT_BYTES])
{
	char host[INET6_ADDRSTRLEN] = "?", zone[IF_NAMESIZE + 1] = "";

	if (address->ss_family == AF_INET) {
		const struct sockaddr_in *four = (const struct sockaddr_in *)address;
		inet_ntop(AF_INET, &four->sin_addr, host, sizeof(host));
		snprintf(text, RR_NET_TEXT_BYTES, "%s:%u", host, ntohs(four->sin_port));
		return text;
	}
	const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)address;
	if (IN6_IS_ADDR_V4MAPPED(&six->sin6_addr)) {
		inet_ntop(AF_INET, (const uint8_t *)&six->sin6_addr + 12, host, sizeof(host));
		snprintf(text, RR_NET_TEXT_BYTES, "%s:%u", host, ntohs(six->sin6_port));
		return text;
	}
	inet_ntop(AF_INET6, &six->sin6_addr, host, sizeof(host));
	if (six->sin6_scope_id) {
		zone[0] = '%';
		if (!if_indextoname(six->sin6_scope_id, zone + 1))
			zone[0] = 0;
	}
	snprintf(text, RR_NET_TEXT_BYTES, "[%s%s]:%u", host, zone, ntohs(six->sin6_port));
	return text;
}

rr_status rr_net_listen(int *out, uint16_t *port)
{
	struct sockaddr_storage bound = {0};
	struct sockaddr_in6 six = {.sin6_family = AF_INET6};
	struct sockaddr_in four = {.sin_family = AF_INET};
	socklen_t size = sizeof(bound);
	int no = 0, failed = 0;
	int fd = RR_OWN(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));

	if (fd >= 0) {
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
		failed = bind(fd, (struct sockaddr *)&six, sizeof(six));
		if (failed) { /* IPv6 is compiled in and switched off */
			rr_own_close(fd);
			fd = -1;
		}
	}
	if (fd < 0) {
		fd = RR_OWN(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
		failed = fd < 0 || bind(fd, (struct sockaddr *)&four, sizeof(four));
	}
	if (failed || listen(fd, BACKLOG) != 0 || getsockname(fd, (struct sockaddr *)&bound, &size) != 0) {
		rr_status status = rr_fail(RR_ERR_SYSTEM, "cannot listen on a TCP port: %s", strerror(errno));
		if (fd >= 0)
			rr_own_close(fd);
		return status;
	}
	*port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
						  : ((struct sockaddr_in *)&bound)->sin_port);
	*out = fd;
	return RR_OK;
}

int rr_net_dial(const struct rr_net_target *target)
{
	int fd = RR_OWN(socket(target->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));

	if (fd < 0)
		return -errno;
	rr_net_prepare(fd);
	if (connect(fd, (const struct sockaddr *)&target->address, target->size) != 0 && errno != EINPROGRESS) {
		int failed = errno;
		rr_own_close(fd);
		return -failed;
	}
	return fd;
}

void rr_net_prepare(int socket)
{
	int yes = 1;

	setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
}

void rr_net_watch_host(int socket)
{
	int yes = 1, idle = KEEPALIVE_IDLE_S, interval = KEEPALIVE_INTERVAL_S, probes = KEEPALIVE_PROBES;
	unsigned int timeout_ms = USER_TIMEOUT_MS;

	setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof(yes));
	setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
	setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
	setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof(timeout_ms));
}
