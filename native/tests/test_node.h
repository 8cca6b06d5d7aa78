/* test_node.h - the ranks of one node in one process: their segments, made as set-up leaves them. */
#ifndef RR_TEST_NODE_H
#define RR_TEST_NODE_H

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "order.h"
#include "shm.h"

#define NODE_WORLD_MAX 8

struct node {
	int32_t world;
	struct rr_shm shms[NODE_WORLD_MAX];
	struct rr_shm_peer peers[NODE_WORLD_MAX][NODE_WORLD_MAX];
	int32_t index[NODE_WORLD_MAX];
};

static void node_make(struct node *node, int32_t world, uint64_t slot_bytes, uint32_t slot_count, uint64_t serial_start)
{
	*node = (struct node){.world = world};
	for (int32_t r = 0; r < world; r++) {
		struct rr_shm *shm = &node->shms[r];
		*shm = (struct rr_shm){.rank = r, .world = world, .count = world, .index = node->index, .peers = node->peers[r],
				       .serial_start = serial_start};
		rr_layout_set(&shm->layout, (uint32_t)world, slot_bytes, slot_count);
		node->index[r] = r;
		shm->page = aligned_alloc(4096, shm->layout.bytes);
		assert(shm->page);
		memset(shm->page, 0, shm->layout.bytes);
		for (int32_t p = 0; p < world; p++) {
			node->peers[p][r] = (struct rr_shm_peer){.page = shm->page, .socket = -1, .pidfd = -1, .bell = -1,
								 .pid = (int32_t)getpid(), .cma = true, .cma_of_us = true};
			rr_note64(&rr_page_consumed(shm->page, &shm->layout, (uint32_t)p)->value, serial_start);
		}
	}
}

static void node_free(struct node *node)
{
	for (int32_t r = 0; r < node->world; r++) {
		rr_common_free(node->shms[r].common);
		free(node->shms[r].page);
	}
}

#endif
