/*
 * verbs_device.h - rails: the active RDMA ports of this machine, and which two of them serve an edge.
 *
 * A rail travels in the communicator's hello, so both ends of an edge know all rails of both and compute the
 * same pair. Nothing here allocates anything of a device for longer than a call.
 */
#ifndef RR_VERBS_DEVICE_H
#define RR_VERBS_DEVICE_H

#include <stdbool.h>

#include "verbs_gid.h"

#define RR_RAILS_MAX 8u
#define RR_RAIL_GIDS_MAX 4u

struct rr_rail_gid {
	uint8_t gid[16];
	uint16_t index;
	uint8_t type; /* enum rr_gid_type */
	uint8_t kind; /* enum rr_gid_kind */
};
_Static_assert(sizeof(struct rr_rail_gid) == 20, "GIDs travel in the hello");

/* Fixed layout, little-endian: it travels. */
struct rr_rail {
	char device[32];
	uint8_t port;
	uint8_t link_layer; /* enum rr_ibv_link_layer */
	uint8_t state;      /* enum rr_ibv_port_state */
	uint8_t gid_count;
	uint16_t lid;
	uint16_t reserved;
	uint32_t mtu_bytes; /* active */
	uint32_t rate_mbit; /* of the port: width x speed; 0: unknown */
	struct rr_rail_gid gids[RR_RAIL_GIDS_MAX]; /* best first */
};
_Static_assert(sizeof(struct rr_rail) == 128, "rails travel in the hello");

/* One edge's rails as this end sees them. */
struct rr_rail_pair {
	uint32_t our_rail, their_rail;
	struct rr_rail_gid our_gid, their_gid;
	uint16_t their_lid;
	bool global; /* addressed by GID; else by LID, inside one InfiniBand subnet */
	uint32_t mtu_bytes; /* the smaller of both */
};

/*
 * The active ports, in the order of device names, numbered alike on every node: at most RR_RAILS_MAX. RR_OK with
 * *count 0 where there is none; reason then says why. Never an error of the caller's operation.
 */
rr_status rr_rails_find(const rr_verbs_options *options, struct rr_rail *rails, uint32_t *count, char *reason,
			size_t size);

/*
 * Which rails and GIDs serve an edge: rail i with rail i, beginning at `turn` modulo rails, unless ports have
 * neighbours in their own subnets under other numbers alone: then these, in turn; else the best crossed pair. Equal at both ends (with the roles swapped) if both give equal `turn`: the local rank of the edge's lower rank.
 * False: none, and why. What the peer said is bounded here.
 */
bool rr_rails_match(const struct rr_rail *ours, uint32_t our_count, const struct rr_rail *theirs, uint32_t their_count,
		    uint32_t turn, struct rr_rail_pair *out, char *reason, size_t size);
/* The same among the rails whose bits are set, and not `except` (NULL: none). */
struct rr_rails_sought {
	const struct rr_rail *ours, *theirs;
	uint32_t our_count, their_count;
	uint32_t our_bits, their_bits;
	uint32_t turn;
	const struct rr_rail_pair *except;
};
bool rr_rails_match_among(const struct rr_rails_sought *sought, struct rr_rail_pair *out, char *reason, size_t size);

const char *rr_port_state_name(int state);
const char *rr_link_layer_name(int layer);
/* Of a port's width and speed codes; 0: unknown. */
uint32_t rr_port_rate_mbit(uint8_t width, uint8_t speed);
/* 0: no such code. */
uint32_t rr_mtu_bytes(int code);
int rr_mtu_code(uint32_t bytes);

/* Calls `each` for every port of every device that options name. Failing: RR_ERR_UNSUPPORTED with the reason. */
struct rr_port {
	const struct rr_verbs *verbs;
	struct rr_ibv_device *device;
	struct rr_ibv_context *context; /* NULL: the device could not be opened; problem says why */
	struct rr_ibv_device_attr attributes;
	uint8_t number;
	struct rr_ibv_port_attr port;
	const char *problem; /* NULL: port holds what the device says */
};
rr_status rr_ports_each(const rr_verbs_options *options, void (*each)(void *user, const struct rr_port *port), void *user);

#endif
