/* verbs_gdr.c - see verbs_gdr.h. */
#include "verbs_gdr.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "status.h"
#include "verbs_edge.h"

#define PATH_BYTES 256

/* ---- registration ---- */

static int access_of(const struct rr_gdr_region *region)
{
	return RR_IBV_ACCESS_LOCAL_WRITE | RR_IBV_ACCESS_REMOTE_WRITE |
	       (region->owner->flush == RR_GDR_FLUSH_READ ? RR_IBV_ACCESS_REMOTE_READ : 0);
}

/* Whole pages around the allocation; the registration begins inside the first. */
static struct rr_ibv_mr *by_dma_buf(struct rr_domain *domain, const struct rr_gdr_region *region, char *why)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t begin = region->begin / page * page;
	uint64_t end = (region->begin + region->bytes + page - 1) / page * page;
	struct rr_ibv_mr *mr;
	int fd = -1;

	if (!domain->verbs->reg_dmabuf_mr) {
		snprintf(why, RR_GDR_REASON_BYTES, "libibverbs has no ibv_reg_dmabuf_mr (rdma-core 34)");
		return NULL;
	}
	if (region->owner->ops->dma_buf(region->owner, begin, end - begin, &fd) < 0) {
		snprintf(why, RR_GDR_REASON_BYTES, "%.150s", rr_error_here()->message);
		return NULL;
	}
	mr = domain->verbs->reg_dmabuf_mr(domain->pd, region->begin - begin, region->bytes, region->begin, fd, access_of(region));
	if (!mr)
		snprintf(why, RR_GDR_REASON_BYTES, "%.31s refuses it: %.60s", domain->device, strerror(errno));
	close(fd); /* the registration keeps the memory */
	return mr;
}

static bool peer_module(void)
{
	static const char *const files[] = {"module/nvidia_peermem/version", "kernel/mm/memory_peers/nv_mem/version",
					    "kernel/mm/memory_peers/nv_mem_nc/version"};
	const char *sysfs = getenv("RDMARING_SYSFS");
	char path[PATH_BYTES];

	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		snprintf(path, sizeof(path), "%.180s/%s", sysfs && sysfs[0] ? sysfs : "/sys", files[i]);
		if (access(path, F_OK) == 0)
			return true;
	}
	return false;
}

static struct rr_ibv_mr *by_peer_memory(struct rr_domain *domain, const struct rr_gdr_region *region, char *why)
{
	struct rr_ibv_mr *mr = domain->verbs->reg_mr(domain->pd, (void *)(uintptr_t)region->begin, region->bytes, access_of(region));

	int error = errno;

	if (!mr)
		snprintf(why, RR_GDR_REASON_BYTES, "%.31s refuses it: %.40s%s", domain->device, strerror(error),
			 peer_module() ? "" : "; nvidia_peermem is not loaded");
	return mr;
}

void rr_verbs_gdr_register(struct rr_domain *domain, const struct rr_gdr_region *region, struct rr_registration *registration)
{
	struct rr_gdr_outcome *outcome = &domain->gdr;
	bool dma_buf = domain->gdr_allowed == RR_GDR_ALLOW_ALL || domain->gdr_allowed == RR_GDR_ALLOW_DMA_BUF;
	bool peer = domain->gdr_allowed == RR_GDR_ALLOW_ALL || domain->gdr_allowed == RR_GDR_ALLOW_PEER_MEMORY;
	const char *off = region->refusal[0] ? region->refusal : "switched off (RDMARING_VERBS_GPU_DIRECT)";

	dma_buf = dma_buf && !region->refusal[0];
	peer = peer && !region->refusal[0];
	*registration = (struct rr_registration){.region = region->id, .address = (const char *)(uintptr_t)region->begin,
						 .bytes = region->bytes, .owner = region->owner};
	memset(outcome, 0, sizeof(*outcome));
	outcome->flush = region->owner->flush;
	if (dma_buf)
		registration->mr = by_dma_buf(domain, region, outcome->dma_buf);
	else
		snprintf(outcome->dma_buf, sizeof(outcome->dma_buf), "%s", off);
	outcome->way = RR_GDR_DMA_BUF;
	if (!registration->mr) {
		if (peer)
			registration->mr = by_peer_memory(domain, region, outcome->peer_memory);
		else
			snprintf(outcome->peer_memory, sizeof(outcome->peer_memory), "%s", off);
		outcome->way = registration->mr ? RR_GDR_PEER_MEMORY : RR_GDR_STAGED;
	}
}

void rr_verbs_gdr_words(const struct rr_gdr_outcome *outcome, const char *device, char *text, size_t size)
{
	switch (outcome->way) {
	case RR_GDR_HOST:
		snprintf(text, size, "not tried yet: the first operation on GPU memory registers it with %s", device);
		return;
	case RR_GDR_DMA_BUF:
		snprintf(text, size, "dma-buf; %s", rr_gdr_flush_name(outcome->flush));
		return;
	case RR_GDR_PEER_MEMORY:
		snprintf(text, size, "peer memory; %s; dma-buf: %s", rr_gdr_flush_name(outcome->flush), outcome->dma_buf);
		return;
	case RR_GDR_STAGED:
		if (strcmp(outcome->dma_buf, outcome->peer_memory) == 0)
			snprintf(text, size, "%s", outcome->dma_buf);
		else
			snprintf(text, size, "dma-buf: %s; peer memory: %s", outcome->dma_buf, outcome->peer_memory);
		return;
	}
	snprintf(text, size, "invalid");
}

/* ---- the flush behind a NIC's writes ---- */

/* A queue pair that is its own peer: its READ may not overtake what the NIC wrote before. */
static rr_status make_loop(struct rr_verbs_edge *edge)
{
	struct rr_ibv_qp_init_attr made = {.qp_context = edge, .send_cq = edge->cq, .recv_cq = edge->cq, .qp_type = RR_IBV_QPT_RC};
	struct rr_rail_pair self = edge->pair;
	rr_status status;

	made.cap.max_send_wr = 1;
	made.cap.max_recv_wr = 1;
	made.cap.max_send_sge = 1;
	made.cap.max_recv_sge = 1;
	edge->loop = edge->verbs->create_qp(edge->domain->pd, &made);
	if (!edge->loop)
		return rr_fail(RR_ERR_LINK, "device %s gives no queue pair for the flush of GPU memory: %s", edge->rail.device,
			       strerror(errno));
	self.their_gid = self.our_gid;
	self.their_lid = edge->rail.lid;
	status = rr_qp_init_read(edge->verbs, edge->loop, edge->rail.port, "to itself");
	if (status == RR_OK)
		status = rr_qp_rtr(edge->verbs, edge->loop, edge->rail.port, &edge->settings, &self, edge->loop->qp_num, 0, "to itself");
	return status == RR_OK ? rr_qp_rts(edge->verbs, edge->loop, &edge->settings, 0, "to itself") : status;
}

static rr_status post_read(struct rr_verbs_edge *edge, uint64_t address, uint32_t key)
{
	struct rr_ibv_sge sge = {.addr = (uint64_t)(uintptr_t)(edge->outbound + edge->flush_at), .length = 1,
				 .lkey = edge->outbound_mr->lkey};
	struct rr_ibv_send_wr wr = {.wr_id = RR_WR_FLUSH, .sg_list = &sge, .num_sge = 1, .opcode = RR_IBV_WR_RDMA_READ,
				    .send_flags = RR_IBV_SEND_SIGNALED};
	struct rr_ibv_send_wr *bad = NULL;
	int result;

	wr.wr.rdma.remote_addr = address;
	wr.wr.rdma.rkey = key;
	result = edge->verbs->post_send(edge->loop, &wr, &bad);
	if (result)
		return rr_fail(RR_ERR_LINK, "posting the flush of GPU memory on device %s failed: %s", edge->rail.device,
			       rr_verbs_error(result));
	edge->flushing = edge->arrived;
	edge->flush_posted = true;
	return RR_OK;
}

void rr_verbs_gdr_flushed(struct rr_verbs_edge *edge)
{
	edge->flushed |= edge->flushing;
	edge->flush_posted = false;
}

static rr_status flush_by_read(struct rr_verbs_edge *edge, const struct rr_registration *registration,
			       const struct rr_transfer *transfer)
{
	rr_status status = RR_OK;

	if (edge->flush_posted || edge->state != RR_VERBS_UP)
		return RR_AGAIN;
	if (!edge->loop)
		status = make_loop(edge);
	if (status == RR_OK)
		status = post_read(edge, (uint64_t)(uintptr_t)transfer->landing, registration->mr->rkey);
	if (status == RR_OK)
		return RR_AGAIN;
	rr_verbs_lose(edge);
	return status;
}

rr_status rr_verbs_gdr_visible(struct rr_verbs_edge *edge, const struct rr_transfer *transfer)
{
	const struct rr_registration *registration = NULL;
	rr_status status;

	if (edge->flushed & 1ull << edge->next % RR_RING_COUNT)
		return RR_OK;
	if (!edge->domain)
		return RR_AGAIN; /* it goes to another rail */
	status = rr_domain_find(edge->domain, transfer->landing, transfer->bytes, &registration);
	if (status < 0)
		return status;
	if (!registration || !registration->owner)
		return rr_fail(RR_ERR_PROTOCOL, "rank %d wrote to GPU memory that this rank has not registered", edge->peer);
	switch (registration->owner->flush) {
	case RR_GDR_FLUSH_NONE:
		return RR_OK;
	case RR_GDR_FLUSH_DRIVER:
		status = registration->owner->ops->flush(registration->owner);
		if (status == RR_OK)
			edge->flushed |= edge->arrived;
		return status;
	case RR_GDR_FLUSH_READ:
		return flush_by_read(edge, registration, transfer);
	}
	return RR_OK;
}
