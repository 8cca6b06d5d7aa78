/*
 * device.h - where vectors are combined.
 *
 * combine() starts one pass and gives a token; ready() says when its destinations are written and its
 * sources no longer read. A commit waits for the token. On the CPU a token is ready at once; a GPU
 * has an event or stream order behind it.
 */
#ifndef RR_DEVICE_H
#define RR_DEVICE_H

#include <stdbool.h>

#include "rdmaring.h"
#include "reduce.h"

typedef uint64_t rr_token; /* 0: ready */

struct rr_device;

struct rr_device_ops {
	const char *name;
	rr_status (*combine)(struct rr_device *device, rr_combine_fn pass, const struct rr_combine *combine,
			     rr_token *token);
	bool (*ready)(struct rr_device *device, rr_token token);
};

struct rr_device {
	const struct rr_device_ops *ops;
};

extern struct rr_device rr_device_cpu;

#endif
