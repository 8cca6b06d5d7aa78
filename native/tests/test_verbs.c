/* test_verbs.c - what both ends of an edge over verbs must compute alike, and the arithmetic of queue pairs. */
#include <stdio.h>
#include <string.h>

#include "verbs_edge.h"
#include "verbs_qp.h"

static int failures;

static void expect(int condition, const char *what)
{
	if (!condition) {
		fprintf(stderr, "FAILED: %s\n", what);
		failures++;
	}
}

static uint32_t random_state;

static uint32_t next_random(uint32_t below)
{
	random_state = random_state * 1664525u + 1013904223u;
	return (random_state >> 8) % below;
}

static void random_gid(struct rr_rail_gid *gid)
{
	memset(gid, 0, sizeof(*gid));
	gid->type = (uint8_t)(RR_GID_ROCE_V1 + next_random(2));
	gid->kind = (uint8_t)next_random(3);
	gid->index = (uint16_t)next_random(6);
	if (gid->kind == RR_GID_IPV4) {
		gid->gid[10] = gid->gid[11] = 0xff;
		gid->gid[12] = 10;
	} else {
		gid->gid[0] = gid->kind == RR_GID_LINK_LOCAL ? 0xfe : 0xfd;
		gid->gid[1] = 0x80;
	}
	gid->gid[13] = (uint8_t)next_random(2);
	gid->gid[14] = (uint8_t)next_random(256); /* no two ports have one address */
	gid->gid[15] = (uint8_t)next_random(256);
}

static void random_rails(struct rr_rail *rails, uint32_t *count)
{
	*count = 1 + next_random(4);
	memset(rails, 0, *count * sizeof(*rails));
	for (uint32_t i = 0; i < *count; i++) {
		snprintf(rails[i].device, sizeof(rails[i].device), "mlx5_%u", i);
		rails[i].link_layer = (uint8_t)(next_random(4) ? RR_IBV_LAYER_ETHERNET : RR_IBV_LAYER_INFINIBAND);
		rails[i].mtu_bytes = 1024u << next_random(3);
		rails[i].lid = (uint16_t)(1 + next_random(100));
		rails[i].gid_count = (uint8_t)(1 + next_random(4));
		for (uint32_t g = 0; g < rails[i].gid_count; g++) {
			random_gid(&rails[i].gids[g]);
			if (rails[i].link_layer == RR_IBV_LAYER_INFINIBAND)
				rails[i].gids[g].type = RR_GID_IB;
		}
	}
}

/* Both ends compute the same pair, each from its own side; thousands of worlds by seed. */
static void both_ends_agree(void)
{
	uint32_t matched = 0;

	for (uint32_t seed = 1; seed <= 20000; seed++) {
		struct rr_rail ours[RR_RAILS_MAX], theirs[RR_RAILS_MAX];
		struct rr_rail_pair here = {0}, there = {0};
		uint32_t our_count, their_count, turn;
		char reason[192], text[64];

		random_state = seed;
		random_rails(ours, &our_count);
		random_rails(theirs, &their_count);
		turn = next_random(8);
		bool a = rr_rails_match(ours, our_count, theirs, their_count, turn, &here, reason, sizeof(reason));
		bool b = rr_rails_match(theirs, their_count, ours, our_count, turn, &there, reason, sizeof(reason));
		snprintf(text, sizeof(text), "seed %u", seed);
		expect(a == b, text);
		if (!a || !b)
			continue;
		matched++;
		expect(here.our_rail == there.their_rail && here.their_rail == there.our_rail, text);
		expect(memcmp(&here.our_gid, &there.their_gid, sizeof(here.our_gid)) == 0, text);
		expect(memcmp(&here.their_gid, &there.our_gid, sizeof(here.our_gid)) == 0, text);
		expect(here.global == there.global && here.mtu_bytes == there.mtu_bytes, text);
		expect(ours[here.our_rail].link_layer == theirs[here.their_rail].link_layer, text);
	}
	expect(matched > 5000, "most worlds have a pair");
}

/* What a peer tells is bounded before it is used. */
static void strange_rails_are_refused(void)
{
	struct rr_rail ours[RR_RAILS_MAX], theirs[RR_RAILS_MAX];
	struct rr_rail_pair pair;
	uint32_t count, their_count;
	char reason[192];

	random_state = 5;
	random_rails(ours, &count);
	memcpy(theirs, ours, sizeof(ours));
	their_count = count;
	expect(rr_rails_match(ours, count, theirs, their_count, 0, &pair, reason, sizeof(reason)), "equal rails match");
	theirs[0].gid_count = RR_RAIL_GIDS_MAX + 1;
	expect(!rr_rails_match(ours, count, theirs, their_count, 0, &pair, reason, sizeof(reason)), "too many GIDs");
	theirs[0] = ours[0];
	memset(theirs[0].device, 'x', sizeof(theirs[0].device));
	expect(!rr_rails_match(ours, count, theirs, their_count, 0, &pair, reason, sizeof(reason)), "a name without an end");
	theirs[0] = ours[0];
	expect(!rr_rails_match(ours, count, theirs, RR_RAILS_MAX + 1, 0, &pair, reason, sizeof(reason)), "too many rails");
	expect(strstr(reason, "beyond their bounds") != NULL, "and says so");
	expect(!rr_rails_match(ours, count, theirs, 0, 0, &pair, reason, sizeof(reason)), "no rails");
}

static void timeouts_are_rounded_up(void)
{
	for (uint8_t code = 1; code < 31; code++) {
		uint64_t ns = 4096ull << code;
		expect(rr_qp_timeout_code(ns) == code, "an exact time");
		expect(rr_qp_timeout_code(ns + 1) == code + 1, "one nanosecond more");
		expect(rr_qp_timeout_code(ns - 1) == code, "one nanosecond less");
	}
	expect(rr_qp_timeout_code(1) == 1, "the shortest");
	expect(rr_qp_timeout_code(UINT64_MAX) == 31, "the longest");
}

static void codes_are_those_of_the_standard(void)
{
	expect(rr_mtu_bytes(RR_IBV_MTU_256) == 256 && rr_mtu_bytes(RR_IBV_MTU_4096) == 4096, "MTU codes");
	expect(rr_mtu_bytes(0) == 0 && rr_mtu_bytes(6) == 0, "no such MTU codes");
	for (uint32_t bytes = 256; bytes <= 4096; bytes *= 2) {
		expect(rr_mtu_bytes(rr_mtu_code(bytes)) == bytes, "an MTU and back");
		expect(rr_mtu_bytes(rr_mtu_code(bytes + 1)) == bytes, "rounded down");
	}
	expect(rr_mtu_code(0) == RR_IBV_MTU_256, "never below the smallest");
	expect(rr_port_rate_mbit(2, 32) == 100000, "4x EDR is 100 Gbit/s");
	expect(rr_port_rate_mbit(2, 128) == 400000, "4x NDR is 400 Gbit/s");
	expect(rr_port_rate_mbit(1, 3) == 0, "an unknown speed");
}

/* A line of which only some words are the new message's must not pass, whatever was there before. */
static void torn_short_messages_are_told(void)
{
	uint64_t old[8], new[8], seen[8];

	random_state = 5;
	for (uint32_t round = 0; round < 200; round++) {
		for (uint32_t w = 0; w < 7; w++) {
			old[w] = (uint64_t)next_random(3) << 40 | next_random(2);
			new[w] = round % 2 ? old[w] : (uint64_t)next_random(3) << 40 | next_random(2);
		}
		old[0] = (uint64_t)round << 32 | 7;
		new[0] = (uint64_t)(round + 2) << 32 | 7;
		old[7] = round ? rr_tiny_check(old) : 0;
		new[7] = rr_tiny_check(new);
		for (uint32_t arrived = 0; arrived < 256; arrived++) {
			uint32_t same = 0;
			for (uint32_t w = 0; w < 8; w++) {
				seen[w] = arrived >> w & 1 ? new[w] : old[w];
				same += seen[w] == new[w];
			}
			if (seen[0] != new[0])
				continue; /* another serial: nobody looks further */
			expect((seen[7] == rr_tiny_check(seen)) == (same == 8), "a torn line is told from a whole one");
		}
	}
	memset(seen, 0, sizeof(seen));
	expect(seen[7] != rr_tiny_check(seen), "zeros are no message");
}

int main(void)
{
	both_ends_agree();
	strange_rails_are_refused();
	timeouts_are_rounded_up();
	codes_are_those_of_the_standard();
	torn_short_messages_are_told();
	if (failures)
		fprintf(stderr, "%d failures\n", failures);
	return failures != 0;
}
