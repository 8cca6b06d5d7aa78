/* device_cuda_pin.c - see device_cuda.h. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "device_cuda.h"
#include "status.h"

static bool holds(const struct rr_cuda_pinned *pinned, const void *address)
{
	return (uintptr_t)address - (uintptr_t)pinned->begin < pinned->bytes;
}

static rr_status make_room(struct rr_cuda_device *this)
{
	uint32_t room = this->pinned_room ? this->pinned_room * 2 : 16;
	struct rr_cuda_pinned *larger;

	if (this->pinned_count < this->pinned_room)
		return RR_OK;
	larger = realloc(this->pinned, room * sizeof(*larger));
	if (!larger)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for the table of %u pinned ranges", room);
	this->pinned = larger;
	this->pinned_room = room;
	return RR_OK;
}

static rr_status pin(struct rr_cuda_device *this, char *begin, uint64_t bytes)
{
	rr_status status = make_room(this);
	rr_cuda_ptr device = 0;

	if (status < 0)
		return status;
	status = RR_CUDA(this->cuda, cuMemHostRegister, begin, bytes, RR_CUDA_HOST_PORTABLE | RR_CUDA_HOST_MAPPED);
	if (status < 0) {
		snprintf(rr_error_here()->hint, sizeof(rr_error_here()->hint),
			 "%llu bytes of a link's slots must be pinned: is the limit of locked memory (ulimit -l) below that, or memory short?",
			 (unsigned long long)bytes);
		return status;
	}
	status = RR_CUDA(this->cuda, cuMemHostGetDevicePointer, &device, begin, 0);
	if (status < 0)
		goto unregister;
	this->pinned_recent = this->pinned_count;
	this->pinned[this->pinned_count++] = (struct rr_cuda_pinned){.begin = begin, .bytes = bytes, .device = device};
	this->facts.pinned_ranges++;
	this->facts.pinned_bytes += bytes;
	return RR_OK;

unregister:
	this->cuda->cuMemHostUnregister(begin);
	return status;
}

rr_status rr_cuda_pin_address(struct rr_cuda_device *this, const void *address, rr_cuda_ptr *out)
{
	const struct rr_cuda_pinned *found = NULL;
	uint64_t bytes;
	char *begin;

	if (this->pinned_recent < this->pinned_count && holds(&this->pinned[this->pinned_recent], address))
		found = &this->pinned[this->pinned_recent];
	for (uint32_t i = 0; !found && i < this->pinned_count; i++) {
		if (holds(&this->pinned[i], address)) {
			found = &this->pinned[i];
			this->pinned_recent = i;
		}
	}
	if (!found && rr_pin_find(address, &begin, &bytes)) {
		rr_status status = pin(this, begin, bytes);
		if (status < 0)
			return status;
		found = &this->pinned[this->pinned_recent];
	}
	*out = found ? found->device + (uint64_t)((const char *)address - found->begin) : (rr_cuda_ptr)(uintptr_t)address;
	return RR_OK;
}

/* Under the lock, with the context current. */
static void unpin(struct rr_cuda_device *this, uint32_t at)
{
	this->cuda->cuMemHostUnregister(this->pinned[at].begin);
	this->facts.pinned_ranges--;
	this->facts.pinned_bytes -= this->pinned[at].bytes;
	this->pinned[at] = this->pinned[--this->pinned_count];
	this->pinned_recent = 0;
}

void rr_cuda_unpin_all(struct rr_cuda_device *this)
{
	while (this->pinned_count)
		unpin(this, this->pinned_count - 1);
	free(this->pinned);
	this->pinned = NULL;
	this->pinned_room = 0;
}

void rr_cuda_pin_gone(struct rr_pin_watch *watch, const char *begin)
{
	struct rr_cuda_device *this =
		(struct rr_cuda_device *)(void *)((char *)watch - offsetof(struct rr_cuda_device, watch));

	pthread_mutex_lock(&this->lock);
	for (uint32_t i = 0; i < this->pinned_count; i++) {
		if (this->pinned[i].begin != begin)
			continue;
		if (rr_cuda_enter(this->cuda, this->context) == RR_OK) {
			unpin(this, i);
			rr_cuda_leave(this->cuda);
		}
		break;
	}
	pthread_mutex_unlock(&this->lock);
}
