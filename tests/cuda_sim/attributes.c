/* attributes.c - attributes of devices: as an sm_90 part has them, each settable by RR_CUDA_SIM_ATTRIBUTES. */
#include "cs.h"

#include <stdlib.h>
#include <string.h>

struct attribute {
	CUdevice_attribute number;
	const char *name; /* without CU_DEVICE_ATTRIBUTE_ */
	int value;
};

#define ATTRIBUTE(name, value) { CU_DEVICE_ATTRIBUTE_##name, #name, value }

static const struct attribute attributes[] = {
	ATTRIBUTE(COMPUTE_CAPABILITY_MAJOR, 9),
	ATTRIBUTE(COMPUTE_CAPABILITY_MINOR, 0),
	ATTRIBUTE(MAX_THREADS_PER_BLOCK, 1024),
	ATTRIBUTE(MAX_BLOCK_DIM_X, 1024),
	ATTRIBUTE(MAX_BLOCK_DIM_Y, 1024),
	ATTRIBUTE(MAX_BLOCK_DIM_Z, 64),
	ATTRIBUTE(MAX_GRID_DIM_X, 2147483647),
	ATTRIBUTE(MAX_GRID_DIM_Y, 65535),
	ATTRIBUTE(MAX_GRID_DIM_Z, 65535),
	ATTRIBUTE(MAX_SHARED_MEMORY_PER_BLOCK, 49152),
	ATTRIBUTE(MAX_THREADS_PER_MULTIPROCESSOR, 2048),
	ATTRIBUTE(MULTIPROCESSOR_COUNT, 4),
	ATTRIBUTE(WARP_SIZE, 32),
	ATTRIBUTE(ASYNC_ENGINE_COUNT, 3),
	ATTRIBUTE(CONCURRENT_KERNELS, 1),
	ATTRIBUTE(CAN_MAP_HOST_MEMORY, 1),
	ATTRIBUTE(UNIFIED_ADDRESSING, 1),
	ATTRIBUTE(CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1),
	ATTRIBUTE(HOST_REGISTER_SUPPORTED, 1),
	ATTRIBUTE(READ_ONLY_HOST_REGISTER_SUPPORTED, 1),
	ATTRIBUTE(IPC_EVENT_SUPPORTED, 1),
	ATTRIBUTE(CAN_USE_STREAM_MEM_OPS_V1, 0),
	ATTRIBUTE(CAN_USE_64_BIT_STREAM_MEM_OPS, 1),
	ATTRIBUTE(CAN_USE_STREAM_WAIT_VALUE_NOR, 1),
	ATTRIBUTE(CAN_FLUSH_REMOTE_WRITES, 0),
	ATTRIBUTE(MEM_SYNC_DOMAIN_COUNT, 4),
	ATTRIBUTE(MEMORY_POOLS_SUPPORTED, 1),
	ATTRIBUTE(STREAM_PRIORITIES_SUPPORTED, 1),
	ATTRIBUTE(GPU_DIRECT_RDMA_SUPPORTED, 1),
	ATTRIBUTE(GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST),
	ATTRIBUTE(GPU_DIRECT_RDMA_WRITES_ORDERING, CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES),
	ATTRIBUTE(GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 1),
	ATTRIBUTE(DMA_BUF_SUPPORTED, 1),
	ATTRIBUTE(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0),
	ATTRIBUTE(HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 0),
	ATTRIBUTE(HANDLE_TYPE_FABRIC_SUPPORTED, 0),
	ATTRIBUTE(PAGEABLE_MEMORY_ACCESS, 0),
	ATTRIBUTE(MANAGED_MEMORY, 0),
	ATTRIBUTE(CONCURRENT_MANAGED_ACCESS, 0),
	ATTRIBUTE(INTEGRATED, 0),
	ATTRIBUTE(COMPUTE_MODE, CU_COMPUTEMODE_DEFAULT),
	ATTRIBUTE(MULTI_GPU_BOARD, 0),
};

/* RR_CUDA_SIM_ATTRIBUTES: NAME=VALUE or ORDINAL/NAME=VALUE, joined by commas; the last that fits counts. */
static bool is_set(const struct attribute *attribute, int device, int *value)
{
	const char *item = cs_setting("ATTRIBUTES");
	size_t length = strlen(attribute->name);
	bool found = false;

	while (item) {
		char *name;
		long ordinal = strtol(item, &name, 10);
		bool fits = name == item || (*name == '/' && ordinal == device);

		name += name != item;
		if (fits && !strncmp(name, attribute->name, length) && name[length] == '=') {
			*value = (int)strtol(name + length + 1, NULL, 0);
			found = true;
		}
		item = strchr(item, ',');
		item = item ? item + 1 : NULL;
	}
	return found;
}

int cs_attribute(CUdevice_attribute number, int device)
{
	unsigned int domain, bus, slot;

	if (cs_pci_place(device, &domain, &bus, &slot)) {
		if (number == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)
			return bus;
		if (number == CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)
			return slot;
		if (number == CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)
			return domain;
	}
	for (size_t i = 0; i < sizeof(attributes) / sizeof(attributes[0]); i++) {
		int value = attributes[i].value;

		if (attributes[i].number != number)
			continue;
		is_set(&attributes[i], device, &value);
		return value;
	}
	return 0; /* what this device does not have */
}

CS_API(cuDeviceGetAttribute, 2000)(int *value, CUdevice_attribute attribute, CUdevice device)
{
	CS_ENTER(CS_NEED_INIT);
	if (!value || attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	if (!cs_device_exists(device))
		return CUDA_ERROR_INVALID_DEVICE;
	*value = cs_attribute(attribute, device);
	return CUDA_SUCCESS;
}
