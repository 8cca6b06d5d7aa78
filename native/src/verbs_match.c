/*
 * verbs_match.c - which two rails, and which two GIDs, serve an edge; see verbs_device.h.
 *
 * Every comparison is symmetric in the two ends: each computes the pair from the same rails with the roles swapped.
 */
#include <stdio.h>
#include <string.h>

#include "verbs_device.h"

/* Smaller is better. Equal for (a, b) and (b, a). */
struct rank_of_pair {
	uint32_t version; /* RoCE v2 first */
	uint32_t local;   /* link-local last */
	uint32_t far;     /* 128 less the leading bits that are equal: the peer's subnet first */
	uint32_t kind;    /* IPv4 first */
	uint32_t high_index, low_index;
	uint32_t identity; /* of the GIDs, if all else is equal */
};

static uint32_t hash_gid(const uint8_t gid[16])
{
	uint32_t hash = 2166136261u;

	for (int i = 0; i < 16; i++)
		hash = (hash ^ gid[i]) * 16777619u;
	return hash;
}

static struct rank_of_pair rank_pair(const struct rr_rail_gid *a, const struct rr_rail_gid *b)
{
	uint32_t common = rr_gid_common_bits(a->gid, b->gid);
	bool local = a->kind == RR_GID_LINK_LOCAL;

	return (struct rank_of_pair){
		.version = a->type == RR_GID_ROCE_V1,
		.local = local,
		.far = local ? 0 : 128 - common,
		.kind = a->kind,
		.high_index = a->index > b->index ? a->index : b->index,
		.low_index = a->index > b->index ? b->index : a->index,
		.identity = hash_gid(a->gid) + hash_gid(b->gid),
	};
}

static int compare_ranks(const struct rank_of_pair *a, const struct rank_of_pair *b)
{
	const uint32_t *x = &a->version, *y = &b->version;

	for (size_t i = 0; i < sizeof(*a) / sizeof(*x); i++)
		if (x[i] != y[i])
			return x[i] < y[i] ? -1 : 1;
	return 0;
}

static bool bounded(const struct rr_rail *rails, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		if (rails[i].gid_count > RR_RAIL_GIDS_MAX || !memchr(rails[i].device, 0, sizeof(rails[i].device)))
			return false;
	return true;
}

/* Can these two ports reach each other? Then by which GIDs. */
static bool match_ports(const struct rr_rail *a, const struct rr_rail *b, struct rr_rail_pair *out,
			struct rank_of_pair *rank, char *reason, size_t size)
{
	bool found = false;

	if (a->link_layer != b->link_layer) {
		snprintf(reason, size, "%s is %s, the peer's %s is %s", a->device, rr_link_layer_name(a->link_layer), b->device,
			 rr_link_layer_name(b->link_layer));
		return false;
	}
	for (uint32_t i = 0; i < a->gid_count; i++) {
		for (uint32_t j = 0; j < b->gid_count; j++) {
			const struct rr_rail_gid *x = &a->gids[i], *y = &b->gids[j];
			struct rank_of_pair this;

			if (x->type != y->type || x->kind != y->kind)
				continue;
			this = rank_pair(x, y);
			if (found && compare_ranks(&this, rank) >= 0)
				continue;
			found = true;
			*rank = this;
			out->our_gid = *x;
			out->their_gid = *y;
		}
	}
	if (!found) {
		snprintf(reason, size, "%s and the peer's %s have no GIDs of one RoCE version and address family", a->device,
			 b->device);
		return false;
	}
	/*
	 * InfiniBand inside one subnet (equal prefix) is addressed by LID, without a global header; between subnets
	 * by GID. Never run on InfiniBand by us: no such hardware was at hand.
	 */
	out->global = a->link_layer != RR_IBV_LAYER_INFINIBAND || memcmp(out->our_gid.gid, out->their_gid.gid, 8) != 0;
	if (!out->global && (!a->lid || !b->lid)) {
		snprintf(reason, size, "%s or the peer's %s has no LID: is a subnet manager running?", a->device, b->device);
		return false;
	}
	out->their_lid = b->lid;
	out->mtu_bytes = a->mtu_bytes < b->mtu_bytes ? a->mtu_bytes : b->mtu_bytes;
	return true;
}

static bool sought_pair(const struct rr_rails_sought *sought, uint32_t ours, uint32_t theirs)
{
	const struct rr_rail_pair *except = sought->except;

	return sought->our_bits >> ours & 1 && sought->their_bits >> theirs & 1 &&
	       !(except && except->our_rail == ours && except->their_rail == theirs);
}

/* Leading bits of a GID that networks of their own are told apart by, as a guess: /24 of IPv4, /64 of the others. */
static bool is_near(const struct rr_rail_pair *pair)
{
	uint32_t wanted = pair->our_gid.kind == RR_GID_IPV4 ? 96 + 24 : 64;

	return rr_gid_common_bits(pair->our_gid.gid, pair->their_gid.gid) >= wanted;
}

static bool near_pair(const struct rr_rails_sought *sought, uint32_t ours, uint32_t theirs, struct rr_rail_pair *out,
		      struct rank_of_pair *rank)
{
	char none[8];

	return sought_pair(sought, ours, theirs) &&
	       match_ports(&sought->ours[ours], &sought->theirs[theirs], out, rank, none, sizeof(none)) && is_near(out);
}

/* Are rails numbered otherwise at the other end? Then some port has a neighbour there, under another number alone. */
static bool are_crossed(const struct rr_rails_sought *sought)
{
	struct rank_of_pair rank;
	struct rr_rail_pair pair;
	bool crossed = false;

	for (uint32_t i = 0; i < sought->our_count; i++) {
		for (uint32_t j = 0; j < sought->their_count; j++) {
			if (!near_pair(sought, i, j, &pair, &rank))
				continue;
			if (i == j)
				return false;
			crossed = true;
		}
	}
	return crossed;
}

/* Neighbours in pairs, nearest first, each port once: pair number `turn` of them, in turn. */
static void take_crossed(const struct rr_rails_sought *sought, struct rr_rail_pair *out)
{
	struct rr_rail_pair pairs[RR_RAILS_MAX], pair;
	struct rank_of_pair rank, best = {0};
	bool our_used[RR_RAILS_MAX] = {false}, their_used[RR_RAILS_MAX] = {false};
	uint32_t count = 0;

	for (bool found = true; found && count < RR_RAILS_MAX; count += found) {
		found = false;
		for (uint32_t i = 0; i < sought->our_count; i++) {
			for (uint32_t j = 0; j < sought->their_count; j++) {
				if (our_used[i] || their_used[j] || !near_pair(sought, i, j, &pair, &rank) ||
				    (found && compare_ranks(&rank, &best) >= 0))
					continue;
				found = true;
				best = rank;
				pairs[count] = pair;
				pairs[count].our_rail = i;
				pairs[count].their_rail = j;
			}
		}
		if (found) {
			our_used[pairs[count].our_rail] = true;
			their_used[pairs[count].their_rail] = true;
		}
	}
	*out = pairs[sought->turn % count];
}

bool rr_rails_match_among(const struct rr_rails_sought *sought, struct rr_rail_pair *out, char *reason, size_t size)
{
	uint32_t our_count = sought->our_count, their_count = sought->their_count;
	const struct rr_rail *ours = sought->ours, *theirs = sought->theirs;
	uint32_t both = our_count < their_count ? our_count : their_count;
	struct rank_of_pair rank, best;
	struct rr_rail_pair pair;
	bool found = false;

	if (our_count > RR_RAILS_MAX || their_count > RR_RAILS_MAX || !bounded(theirs, their_count)) {
		snprintf(reason, size, "the peer told of rails beyond their bounds");
		return false;
	}
	snprintf(reason, size, "%s", our_count ? "the peer has no active RDMA port" : "this rank has no active RDMA port");
	if (are_crossed(sought)) {
		take_crossed(sought, out);
		return true;
	}
	for (uint32_t k = 0; k < both; k++) {
		uint32_t i = (sought->turn + k) % both;
		if (sought_pair(sought, i, i) && match_ports(&ours[i], &theirs[i], out, &rank, reason, size)) {
			out->our_rail = i;
			out->their_rail = i;
			return true;
		}
	}
	/* Ports in another order on the other node, or of several fabrics. */
	for (uint32_t i = 0; i < our_count; i++) {
		for (uint32_t j = 0; j < their_count; j++) {
			if (i == j || !sought_pair(sought, i, j) || !match_ports(&ours[i], &theirs[j], &pair, &rank, reason, size))
				continue;
			if (found && compare_ranks(&rank, &best) >= 0)
				continue;
			found = true;
			best = rank;
			*out = pair;
			out->our_rail = i;
			out->their_rail = j;
		}
	}
	return found;
}

bool rr_rails_match(const struct rr_rail *ours, uint32_t our_count, const struct rr_rail *theirs, uint32_t their_count,
		    uint32_t turn, struct rr_rail_pair *out, char *reason, size_t size)
{
	const struct rr_rails_sought all = {.ours = ours, .theirs = theirs, .our_count = our_count, .their_count = their_count,
					    .our_bits = UINT32_MAX, .their_bits = UINT32_MAX, .turn = turn};

	return rr_rails_match_among(&all, out, reason, size);
}
