/*
 * cuda_stream.h - streams of a CUDA device as stream_device.h wants them.
 *
 * Addresses are the GPU's. The caller has entered the context (rr_cuda_enter()). Threads: one at a time.
 */
#ifndef RR_CUDA_STREAM_H
#define RR_CUDA_STREAM_H

#include "cuda_api.h"
#include "stream_device.h"

struct rr_cuda_streams {
	struct rr_stream_device device;
	const struct rr_cuda *cuda;
	void **streams; /* [stream_count] */
	void **events;  /* [event_count] */
	uint32_t stream_count, event_count;
	void *kernel;
	uint32_t element_bytes;
	uint32_t blocks_max;
	rr_cuda_ptr one; /* a word that is 1: flags are set by copies of it; 0: by memory operations */
	uint64_t calls;
};

/* Makes streams and events; the other members are the caller's to set. On failure nothing is left. */
rr_status rr_cuda_streams_open(struct rr_cuda_streams *this, const struct rr_cuda *cuda, uint32_t stream_count,
			       uint32_t event_count);
/* At least so many events, for a list that needs them. */
rr_status rr_cuda_streams_need(struct rr_cuda_streams *this, uint32_t event_count);
void rr_cuda_streams_close(struct rr_cuda_streams *this);

#endif
