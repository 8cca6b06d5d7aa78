/* fuzz_hello.c - what other ranks tell when a communicator is made: checked, compared, used for addresses and rails. */
#include <stdlib.h>
#include <unistd.h>

#include "fuzz.h"
#include "hello.h"
#include "net.h"
#include "page.h"
#include "rows.h"
#include "shm.h"
#include "verbs_device.h"

#define WORLD_MAX 3

static int exchange(void *user, const void *mine, size_t bytes, void *all)
{
	struct fuzz_input *input = user;

	fuzz_take(input, all, bytes * WORLD_MAX);
	memcpy(all, mine, bytes); /* rank 0's own */
	return 0;
}

/* A rank of one node, whose far peers tell what they like. */
static void join(const struct rr_hello *hellos, struct fuzz_input *input)
{
	int32_t node[WORLD_MAX] = {0, 1, 2};
	rr_options options = {.slot_bytes = hellos[0].slot_bytes, .slot_count = hellos[0].slot_count, .memory_budget_bytes = 1 << 24};
	struct rr_hello hello = hellos[0];
	char reason[256];
	struct rr_shm shm;
	int listener = -1;

	if (rr_shm_prepare(0, WORLD_MAX, &options, &shm, &hello, &listener) == RR_OK)
		(void)rr_shm_join(&shm, hellos, node, listener, 0, exchange, input, reason, sizeof(reason));
	if (listener >= 0)
		close(listener);
	rr_shm_close(&shm);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_input input = {data, size};
	struct rr_hello *hellos = calloc(WORLD_MAX, sizeof(*hellos));
	struct rr_net_target targets[RR_NET_TARGETS_MAX];
	struct rr_rail_pair pair;
	int32_t node[WORLD_MAX];
	char why[64];

	rr_hello_fill(&hellos[0]);
	hellos[0].slot_bytes = 8192;
	hellos[0].slot_count = 2;
	hellos[0].left_bytes = hellos[0].budget_bytes = 1 << 24;
	hellos[0].channels = 1;
	for (int r = 1; r < WORLD_MAX; r++) {
		hellos[r] = hellos[0]; /* like ours, but for what the input lays over it */
		uint8_t *bytes = (uint8_t *)&hellos[r];
		for (uint32_t patches = fuzz_byte(&input) % 16; patches; patches--) {
			uint32_t at = fuzz_word(&input) % (uint32_t)sizeof(*hellos), count = fuzz_byte(&input);
			fuzz_take(&input, bytes + at, count < sizeof(*hellos) - at ? count : sizeof(*hellos) - at);
		}
	}
	if (rr_hello_check(hellos, 0, WORLD_MAX) == RR_OK) {
		rr_hello_nodes(hellos, WORLD_MAX, node);
		rr_net_targets(hellos[1].addresses, hellos[1].address_count, hellos[1].port, true, targets);
		rr_rails_match(hellos[1].rails, hellos[1].rail_count, hellos[2].rails, hellos[2].rail_count, 1, &pair, why, sizeof(why));
		join(hellos, &input);
	}
	free(hellos);
	return 0;
}
