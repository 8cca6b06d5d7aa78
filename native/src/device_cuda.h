/*
 * device_cuda.h - the files of a CUDA device: passes, the host memory that it reads and writes, and NICs that reach its own.
 *
 *   device_cuda.c      passes on a stream of its own, their events, kernels
 *   device_cuda_pin.c  host addresses of links as the GPU sees them
 *   device_cuda_gdr.c  its memory as NICs see it
 *
 * Threads: any; `lock` is held by whoever touches a device, and its context is current then.
 */
#ifndef RR_DEVICE_CUDA_H
#define RR_DEVICE_CUDA_H

#include <pthread.h>

#include "cuda_api.h"
#include "device.h"
#include "gdr.h"
#include "pin.h"

#define RR_CUDA_EVENTS 256u /* a pass's token is its number; its event is that of number % this */
#define RR_CUDA_OPS 4u      /* sum, prod, min, max */

/* A range of a link as the GPU sees it. */
struct rr_cuda_pinned {
	char *begin;
	uint64_t bytes;
	rr_cuda_ptr device;
};

struct rr_cuda_device {
	struct rr_device device;
	struct rr_cuda *cuda;
	void *context;
	void *stream;
	int32_t ordinal;
	uint32_t blocks_max;
	pthread_mutex_t lock;
	void *kernels[RR_DTYPE_COUNT][RR_CUDA_OPS];
	void *events[RR_CUDA_EVENTS];
	void *after;            /* event of rr_device_after() */
	uint64_t issued;        /* passes */
	_Atomic uint64_t ended; /* of them, without a gap */
	rr_cuda_ptr partial;    /* sums of sources beyond one launch */
	uint64_t partial_bytes;
	bool failed; /* an error of the driver stays: nothing is started any more */
	rr_error failure;
	struct rr_pin_watch watch;
	struct rr_cuda_pinned *pinned;
	uint32_t pinned_count, pinned_room, pinned_recent;
	rr_device_facts facts;
	struct rr_gdr_owner gdr;
	bool gdr_there; /* the driver tells of allocations */
	bool dma_buf;   /* and offers descriptors of them */
};

/* The address as the GPU has it: of a link's memory, which is pinned now if it is not yet; any other is the GPU's. */
rr_status rr_cuda_pin_address(struct rr_cuda_device *this, const void *address, rr_cuda_ptr *out);
/* Undo all. Errors are those of a driver that is gone: nothing is pinned then. */
void rr_cuda_unpin_all(struct rr_cuda_device *this);
/* See pin.h. */
void rr_cuda_pin_gone(struct rr_pin_watch *watch, const char *begin);

/* ---- device_cuda_gdr.c ---- */

/* With the context current. */
void rr_cuda_gdr_open(struct rr_cuda_device *this);
void rr_cuda_gdr_close(struct rr_cuda_device *this);
/* See device.h. */
rr_status rr_cuda_region(struct rr_device *device, const void *address, uint64_t bytes, struct rr_gdr_region *out);
rr_status rr_cuda_mark(struct rr_device *device, rr_token *token);

#endif
