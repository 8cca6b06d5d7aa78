/*
 * stream_device.h - where the enqueue executor puts its list: streams of a device that work by themselves.
 *
 * Every call appends one operation to a stream and returns. Operations of one stream run one after the other; of
 * several, in any order but for flags and events. Streams and events are numbered by the executor
 * (rr_enqueue_stream_count(), rr_enqueue_event_count()); stream 0 is the one that the list begins and ends on.
 * Flags are words of device memory with one setter and one resetter each; both see what was written before the flag.
 *
 * cuda_stream.c serves it by a driver, enqueue_sim.c by a recorder. Threads: one at a time.
 */
#ifndef RR_STREAM_DEVICE_H
#define RR_STREAM_DEVICE_H

#include <stdint.h>

#include "rdmaring.h"
#include "reduce.h"

struct rr_stream_device;

struct rr_stream_device_ops {
	const char *name;
	/* Until every flag is 1; then they are set to 0. One batch. */
	rr_status (*wait_flags)(struct rr_stream_device *device, uint32_t stream, uint32_t *const *flags, uint32_t count);
	/* Flag = 1, in our memory or a peer's. */
	rr_status (*set_flag)(struct rr_stream_device *device, uint32_t stream, uint32_t *flag);
	rr_status (*copy)(struct rr_stream_device *device, uint32_t stream, void *to, const void *from, uint64_t bytes);
	/* combine and the arrays it points to are not kept. */
	rr_status (*combine)(struct rr_stream_device *device, uint32_t stream, rr_combine_fn pass,
			     const struct rr_combine *combine);
	/* An event number is used again for a later record: a wait means the record that was put in last. */
	rr_status (*record)(struct rr_stream_device *device, uint32_t stream, uint32_t event);
	rr_status (*wait_event)(struct rr_stream_device *device, uint32_t stream, uint32_t event);
};

struct rr_stream_device {
	const struct rr_stream_device_ops *ops;
};

#endif
