/* api_device.c - devices, and which one a communicator uses. */
#include "comm.h"
#include "order.h"
#include "status.h"

static rr_status check_kind(int32_t dtype, int32_t redop)
{
	if (dtype >= 0 && dtype < (int32_t)RR_DTYPE_COUNT && redop >= 0 && redop < (int32_t)RR_REDOP_COUNT)
		return RR_OK;
	return rr_fail(RR_ERR_ARGUMENT, "dtype %d, redop %d: see rr_dtype and rr_redop", dtype, redop);
}

void rr_device_put(struct rr_device *device)
{
	if (atomic_fetch_sub_explicit(&device->users, 1, memory_order_acq_rel) == 1)
		device->ops->close(device);
}

rr_status rr_device_close(rr_device *device)
{
	rr_device_put(device);
	return RR_OK;
}

rr_status rr_device_set_kernel(rr_device *device, int32_t dtype, int32_t redop, void *function)
{
	rr_status status = check_kind(dtype, redop);

	return status < 0 ? status : device->ops->set_kernel(device, (rr_dtype)dtype, (rr_redop)redop, function);
}

rr_status rr_device_after(rr_device *device, void *stream)
{
	return device->ops->after(device, stream);
}

rr_status rr_device_facts_of(const rr_device *device, rr_device_facts *out)
{
	device->ops->facts((rr_device *)device, out);
	return RR_OK;
}

rr_status rr_comm_use_device(rr_comm *comm, rr_device *device)
{
	rr_status status = rr_comm_begin(comm);

	if (status < 0)
		return status;
	if (comm->device && comm->device != device) {
		status = rr_fail(RR_ERR_ARGUMENT, "rank %d's communicator has another device: one communicator, one device", comm->rank);
	} else if (!comm->device) {
		comm->device = device;
		atomic_fetch_add_explicit(&device->users, 1, memory_order_acq_rel);
	}
	rr_drive_leave(comm);
	return status;
}
