/* cuda_carried.c - see cuda_carried.h. */
#include "cuda_carried.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "order.h"
#include "status.h"

#define BUDGET_BYTES (64ull << 20) /* of pinned memory; beyond, an edge has one slot a direction */
#define FLAG_WORDS (RR_CACHE_LINE / sizeof(uint32_t))
#define ALIGN 4096u

struct edge {
	int32_t peer;
	uint32_t channel, slot_count;
	char *memory; /* registered */
	uint64_t bytes;
	rr_cuda_ptr address; /* as the GPU has it */
	struct edge *next;
};

struct rr_cuda_carried {
	const struct rr_cuda *cuda;
	uint64_t slot_bytes;
	uint32_t slot_count;
	pthread_mutex_t lock; /* of the list, which release() reads beside a caller that makes a plan */
	struct edge *edges;
	uint64_t bytes;
};

rr_status rr_cuda_carried_open(const struct rr_cuda *cuda, uint64_t slot_bytes, uint32_t slot_count, struct rr_cuda_carried **out)
{
	struct rr_cuda_carried *carried = calloc(1, sizeof(*carried));

	if (!carried)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for carried edges");
	carried->cuda = cuda;
	carried->slot_bytes = slot_bytes;
	carried->slot_count = slot_count;
	pthread_mutex_init(&carried->lock, NULL);
	*out = carried;
	return RR_OK;
}

static void free_edge(const struct rr_cuda *cuda, struct edge *edge)
{
	if (edge->address)
		(void)cuda->cuMemHostUnregister(edge->memory);
	if (edge->memory)
		(void)rr_memory_free(edge->memory);
	free(edge);
}

void rr_cuda_carried_close(struct rr_cuda_carried *carried)
{
	if (!carried)
		return;
	while (carried->edges) {
		struct edge *edge = carried->edges;
		carried->edges = edge->next;
		free_edge(carried->cuda, edge);
	}
	pthread_mutex_destroy(&carried->lock);
	free(carried);
}

static uint64_t slots_offset(const struct edge *edge)
{
	uint64_t bytes = 4ull * edge->slot_count * RR_CACHE_LINE;

	return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* Flags of one kind: 0 ready of out, 1 credit of out, 2 ready of in, 3 credit of in. */
static uint32_t *flags_at(const struct edge *edge, char *begin, uint32_t kind)
{
	return (uint32_t *)(void *)(begin + (uint64_t)kind * edge->slot_count * RR_CACHE_LINE);
}

static void store_flags(const struct edge *edge, uint32_t ready, uint32_t credit)
{
	for (uint32_t i = 0; i < 4 * edge->slot_count; i++) {
		_Atomic uint32_t *flag = (_Atomic uint32_t *)flags_at(edge, edge->memory, 0) + i * FLAG_WORDS;
		rr_publish32(flag, i / edge->slot_count % 2 ? credit : ready); /* pairs with the waits of lists */
	}
}

static rr_status pin(const struct rr_cuda *cuda, struct edge *edge)
{
	rr_status status = RR_CUDA(cuda, cuMemHostRegister, edge->memory, edge->bytes, RR_CUDA_HOST_PORTABLE | RR_CUDA_HOST_MAPPED);

	if (status < 0) {
		snprintf(rr_error_here()->hint, sizeof(rr_error_here()->hint),
			 "%llu bytes of slots must be pinned: is the limit of locked memory (ulimit -l) below that, or memory short?",
			 (unsigned long long)edge->bytes);
		return status;
	}
	status = RR_CUDA(cuda, cuMemHostGetDevicePointer, &edge->address, edge->memory, 0);
	if (status < 0)
		(void)cuda->cuMemHostUnregister(edge->memory);
	return status;
}

static rr_status make(struct rr_cuda_carried *carried, int32_t peer, uint32_t channel, struct edge **out)
{
	struct edge *edge = calloc(1, sizeof(*edge));
	void *memory = NULL;
	rr_status status;

	if (!edge)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for a carried edge");
	*edge = (struct edge){.peer = peer, .channel = channel, .slot_count = carried->slot_count};
	if (carried->bytes + 2ull * edge->slot_count * carried->slot_bytes > BUDGET_BYTES)
		edge->slot_count = 1;
	edge->bytes = slots_offset(edge) + 2ull * edge->slot_count * carried->slot_bytes;
	status = rr_memory_alloc(edge->bytes, &memory);
	edge->memory = memory;
	if (status == RR_OK)
		status = pin(carried->cuda, edge);
	if (status < 0) {
		free_edge(carried->cuda, edge);
		return status;
	}
	store_flags(edge, 0, 1);
	*out = edge;
	return RR_OK;
}

static struct rr_enqueued_link direction(const struct rr_cuda_carried *carried, const struct edge *edge, char *begin, bool in)
{
	uint64_t slots = slots_offset(edge) + (in ? edge->slot_count * carried->slot_bytes : 0);

	return (struct rr_enqueued_link){
		.slots = begin + slots,
		.slot_bytes = carried->slot_bytes,
		.slot_count = edge->slot_count,
		.flag_stride = FLAG_WORDS,
		.ready = flags_at(edge, begin, in ? 2 : 0),
		.credit = flags_at(edge, begin, in ? 3 : 1),
	};
}

rr_status rr_cuda_carried_edge(struct rr_cuda_carried *carried, int32_t peer, uint32_t channel, struct rr_cuda_carried_edge *out)
{
	struct edge *edge = carried->edges; /* written by this thread alone */
	rr_status status = RR_OK;

	while (edge && (edge->peer != peer || edge->channel != channel))
		edge = edge->next;
	if (!edge) {
		status = make(carried, peer, channel, &edge);
		if (status < 0)
			return status;
		pthread_mutex_lock(&carried->lock);
		edge->next = carried->edges;
		carried->edges = edge;
		carried->bytes += edge->bytes;
		pthread_mutex_unlock(&carried->lock);
	}
	char *device = (char *)(uintptr_t)edge->address;
	*out = (struct rr_cuda_carried_edge){.out = direction(carried, edge, device, false), .in = direction(carried, edge, device, true),
					     .host_out = direction(carried, edge, edge->memory, false),
					     .host_in = direction(carried, edge, edge->memory, true)};
	return RR_OK;
}

void rr_cuda_carried_release(struct rr_cuda_carried *carried)
{
	pthread_mutex_lock(&carried->lock);
	for (const struct edge *edge = carried->edges; edge; edge = edge->next)
		store_flags(edge, 1, 1);
	pthread_mutex_unlock(&carried->lock);
}

uint64_t rr_cuda_carried_bytes(struct rr_cuda_carried *carried)
{
	pthread_mutex_lock(&carried->lock);
	uint64_t bytes = carried->bytes;
	pthread_mutex_unlock(&carried->lock);
	return bytes;
}
