/*
 * gdr.h - GPU memory as a NIC reaches it (GPUDirect RDMA): between the device that owns it and the links that register it.
 *
 * A device notes an allocation when an operation first uses it, under an id of the numbering of memory.h. Links register whole
 * allocations by that id, once a NIC, as they do regions of host memory; bytes are found by address. An id is never used
 * again: memory that was freed, and taken anew at the same address, is another allocation.
 *
 * What a NIC has written into GPU memory is seen by kernels that are started later only if the device says so; else
 * somebody must flush first, see rr_gdr_flush_choose().
 *
 * Threads: any.
 */
#ifndef RR_GDR_H
#define RR_GDR_H

#include <stdbool.h>
#include <stdint.h>

#include "rdmaring.h"

/* What makes a NIC's writes visible to kernels. */
enum rr_gdr_flush {
	RR_GDR_FLUSH_NONE = 0,   /* they are, once their completion is seen */
	RR_GDR_FLUSH_DRIVER = 1, /* a call of the driver */
	RR_GDR_FLUSH_READ = 2    /* an RDMA READ of the memory by the NIC that wrote: it may not overtake the writes */
};

/*
 * ordering: the device's attribute GPU_DIRECT_RDMA_WRITES_ORDERING (0 none, 100 to the owner, 200 to all devices);
 * options: its GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS (bit 0: the driver's call flushes); call: the driver has that call.
 */
enum rr_gdr_flush rr_gdr_flush_choose(int ordering, int options, bool call);
const char *rr_gdr_flush_name(enum rr_gdr_flush flush);

struct rr_gdr_owner;

struct rr_gdr_owner_ops {
	/* A dma-buf of whole pages, the caller's to close. An error says why there is none. */
	rr_status (*dma_buf)(struct rr_gdr_owner *owner, uint64_t begin, uint64_t bytes, int *fd);
	/* RR_GDR_FLUSH_DRIVER. What NICs have written is seen by kernels that are started from now on. */
	rr_status (*flush)(struct rr_gdr_owner *owner);
};

struct rr_gdr_owner {
	const struct rr_gdr_owner_ops *ops;
	enum rr_gdr_flush flush;
};

#define RR_GDR_REFUSAL_BYTES 120u

/* One allocation. Addresses are the GPU's. */
struct rr_gdr_region {
	uint32_t id; /* as in memory.h */
	uint64_t allocation; /* the driver's id of it */
	uint64_t begin, bytes;
	struct rr_gdr_owner *owner;
	char refusal[RR_GDR_REFUSAL_BYTES]; /* why no NIC may have it; "": nothing is against it */
};

/* ---- for devices ---- */

/* The region of an allocation known by the driver's id, of this owner. */
bool rr_gdr_known(const struct rr_gdr_owner *owner, uint64_t allocation, struct rr_gdr_region *out);
/* A new one; it gets its id. Those that overlap it are gone: their memory was freed. */
rr_status rr_gdr_note(struct rr_gdr_region *region);
/* Drop those for which lives() is false; NULL: all of the owner. */
void rr_gdr_sweep(struct rr_gdr_owner *owner, bool (*lives)(struct rr_gdr_owner *owner, const struct rr_gdr_region *region));

/* ---- for links ---- */

bool rr_gdr_find(const void *address, uint64_t bytes, struct rr_gdr_region *out);
bool rr_gdr_by_id(uint32_t id, struct rr_gdr_region *out);
/* In a child of a fork: the allocations are the parent's. */
void rr_gdr_forget(void);

#endif
