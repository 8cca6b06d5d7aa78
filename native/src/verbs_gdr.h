/*
 * verbs_gdr.h - GPU memory registered with a NIC (GPUDirect RDMA), and the flush behind a NIC's writes into it; see gdr.h.
 *
 * Ways, best first; each that fails leaves its reason:
 *
 *   dma-buf      the GPU's driver exports the pages, ibv_reg_dmabuf_mr() takes them
 *   peer memory  ibv_reg_mr() of the device address, which a kernel module (nvidia_peermem) translates
 *   staged       neither: slots in pinned host memory
 *
 * A registration is of a whole allocation, with the GPU's addresses as those of RDMA.
 */
#ifndef RR_VERBS_GDR_H
#define RR_VERBS_GDR_H

#include <stdbool.h>
#include <stdint.h>

#include "gdr.h"
#include "verbs_api.h"

enum rr_gdr_way { RR_GDR_HOST = 0, RR_GDR_DMA_BUF = 1, RR_GDR_PEER_MEMORY = 2, RR_GDR_STAGED = 3 };

/* Which ways may be tried: rr_verbs_options.gpu_direct. */
enum rr_gdr_allowed { RR_GDR_ALLOW_ALL = 0, RR_GDR_ALLOW_DMA_BUF = 1, RR_GDR_ALLOW_PEER_MEMORY = 2, RR_GDR_ALLOW_NONE = 3 };

#define RR_GDR_REASON_BYTES 160u

/* What became of the last registration that was tried on a NIC. */
struct rr_gdr_outcome {
	enum rr_gdr_way way; /* RR_GDR_HOST: none was tried yet */
	enum rr_gdr_flush flush;
	char dma_buf[RR_GDR_REASON_BYTES]; /* why not so; "": it is so, or was not tried */
	char peer_memory[RR_GDR_REASON_BYTES];
};

struct rr_domain;
struct rr_registration;
struct rr_verbs_edge;
struct rr_transfer;

/* Register an allocation by the best way there is: registration->mr stays NULL where there is none, and the domain keeps why. */
void rr_verbs_gdr_register(struct rr_domain *domain, const struct rr_gdr_region *region, struct rr_registration *registration);
/* For people: "dma-buf; no flush is needed", or why each way was refused. */
void rr_verbs_gdr_words(const struct rr_gdr_outcome *outcome, const char *device, char *text, size_t size);

/*
 * The bytes of the transfer to be released next have landed in GPU memory: RR_OK once kernels started from now on see them,
 * RR_AGAIN while a flush is under way. One flush serves all that has arrived before it.
 */
rr_status rr_verbs_gdr_visible(struct rr_verbs_edge *edge, const struct rr_transfer *transfer);
/* The READ that flushes has ended. */
void rr_verbs_gdr_flushed(struct rr_verbs_edge *edge);

#endif
