/*
 * device.h - where vectors lie and are combined.
 *
 * combine() starts one pass and gives a token; ready() says when its destinations are written and its
 * sources no longer read. A commit waits for the token. On the CPU a token is ready at once; a GPU
 * has an event behind it. Passes of one device run in the order in which they were started.
 *
 * The caller's vectors lie in the device's memory; what links hand out (slots, staging) is the host's, see pin.h.
 */
#ifndef RR_DEVICE_H
#define RR_DEVICE_H

#include <stdbool.h>

#include "gdr.h"
#include "rdmaring.h"
#include "reduce.h"

typedef uint64_t rr_token; /* 0: ready */

/* In descriptors: ranks that keep a vector in different places are in different operations. */
enum rr_device_kind { RR_DEVICE_HOST = 0, RR_DEVICE_CUDA = 1 };

struct rr_device_ops {
	const char *name;
	enum rr_device_kind kind;
	rr_status (*combine)(struct rr_device *device, rr_combine_fn pass, const struct rr_combine *combine,
			     rr_token *token);
	/* RR_AGAIN: not yet. An error is the device's, and stays. */
	rr_status (*ready)(struct rr_device *device, rr_token token);

	/* ---- devices with memory of their own; NULL elsewhere ---- */

	/* Whether it can combine so; else the error, which says what is missing. */
	rr_status (*serves)(struct rr_device *device, rr_dtype dtype, rr_redop redop);
	rr_status (*alloc)(struct rr_device *device, uint64_t bytes, void **out);
	void (*free)(struct rr_device *device, void *address);
	/* Whatever was started is over; false: not within a few seconds. After an error. */
	bool (*settle)(struct rr_device *device);
	rr_status (*after)(struct rr_device *device, void *stream);
	rr_status (*set_kernel)(struct rr_device *device, rr_dtype dtype, rr_redop redop, void *function);
	void (*facts)(struct rr_device *device, rr_device_facts *out);
	/*
	 * The allocation that holds all of [address, address + bytes), as NICs may register it; id 0: there is none. For each
	 * operation anew: memory that was freed meanwhile is found out so.
	 */
	rr_status (*region)(struct rr_device *device, const void *address, uint64_t bytes, struct rr_gdr_region *out);
	/* A token that is ready when all is over that the device was given, or told to come after, so far. */
	rr_status (*mark)(struct rr_device *device, rr_token *token);
	void (*close)(struct rr_device *device);
};

struct rr_device {
	const struct rr_device_ops *ops;
	_Atomic uint32_t users; /* who opened it, and communicators: it is closed by the last */
};

/* api_device.c */
void rr_device_put(struct rr_device *device);

extern struct rr_device rr_device_cpu;

#endif
