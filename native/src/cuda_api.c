/* cuda_api.c - see cuda_api.h. */
#include "cuda_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "order.h"
#include "status.h"

/* What is wanted, and where it goes. */
static const struct {
	const char *name;
	int32_t version;
	int32_t needed;
	size_t offset;
} wanted[] = {
#define WANTED(name, version, needed, parameters) {#name, version, needed, offsetof(struct rr_cuda, name)},
	RR_CUDA_CALLS(WANTED)
#undef WANTED
};

#define WANTED_COUNT (sizeof(wanted) / sizeof(wanted[0]))

uint32_t rr_cuda_want_count(void)
{
	return WANTED_COUNT;
}

rr_status rr_cuda_want_at(uint32_t index, rr_cuda_want *out)
{
	if (index >= WANTED_COUNT)
		return rr_fail(RR_ERR_ARGUMENT, "function %u of the CUDA driver: accepted are 0..%zu", index, WANTED_COUNT - 1);
	*out = (rr_cuda_want){.version = wanted[index].version, .needed = wanted[index].needed};
	snprintf(out->name, sizeof(out->name), "%s", wanted[index].name);
	return RR_OK;
}

static void *address_of(const rr_cuda_entry *entries, uint32_t count, const char *name)
{
	for (uint32_t i = 0; i < count; i++)
		if (strcmp(entries[i].name, name) == 0)
			return entries[i].address;
	return NULL;
}

rr_status rr_cuda_open(const rr_cuda_entry *entries, uint32_t count, rr_cuda **out)
{
	struct rr_cuda *cuda = calloc(1, sizeof(*cuda));

	if (!cuda)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for the table of the CUDA driver");
	for (size_t i = 0; i < WANTED_COUNT; i++) {
		void *address = address_of(entries, count, wanted[i].name);
		if (!address && wanted[i].needed) {
			free(cuda);
			rr_fail(RR_ERR_UNSUPPORTED, "the CUDA driver's function %s (of version %d.%d) is missing", wanted[i].name,
				wanted[i].version / 1000, wanted[i].version % 1000 / 10);
			strcpy(rr_error_here()->hint, "a driver of CUDA 11.7 or later has all of them: update the GPU's driver");
			return RR_ERR_UNSUPPORTED;
		}
		memcpy((char *)cuda + wanted[i].offset, &address, sizeof(address));
	}
	rr_note32(&cuda->users, 1);
	*out = cuda;
	return RR_OK;
}

void rr_cuda_hold(struct rr_cuda *cuda)
{
	atomic_fetch_add_explicit(&cuda->users, 1, memory_order_relaxed);
}

void rr_cuda_put(struct rr_cuda *cuda)
{
	if (atomic_fetch_sub_explicit(&cuda->users, 1, memory_order_acq_rel) == 1)
		free(cuda);
}

void rr_cuda_close(rr_cuda *cuda)
{
	if (cuda)
		rr_cuda_put(cuda);
}

const char *rr_cuda_result_name(const struct rr_cuda *cuda, rr_cuda_result result)
{
	const char *name = NULL;

	if (cuda->cuGetErrorName(result, &name) != RR_CUDA_SUCCESS || !name)
		return "an error without a name";
	return name;
}

rr_status rr_cuda_fail(const struct rr_cuda *cuda, const char *call, rr_cuda_result result)
{
	const char *text = NULL;

	rr_fail(RR_ERR_DEVICE, "%s failed: %s (%d)", call, rr_cuda_result_name(cuda, result), result);
	if (cuda->cuGetErrorString(result, &text) == RR_CUDA_SUCCESS && text)
		snprintf(rr_error_here()->hint, sizeof(rr_error_here()->hint), "the driver says: %s", text);
	return RR_ERR_DEVICE;
}
