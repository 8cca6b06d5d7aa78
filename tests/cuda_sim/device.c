/* device.c - devices: names, UUIDs, places on the bus, who can map whose memory. */
#define _GNU_SOURCE
#include "cs.h"

#include <stdio.h>
#include <string.h>

#define DEVICE(device)                                           \
	do {                                                     \
		if (!cs_device_exists(device))                   \
			return CUDA_ERROR_INVALID_DEVICE;        \
	} while (0)

bool cs_device_exists(CUdevice device)
{
	return device >= 0 && device < cs_settings.device_count;
}

/* RR_CUDA_SIM_PCI: the places of the node's devices, joined by commas; otherwise from 0000:10:00.0 on. */
static void pci_bus_id(int device, char id[32])
{
	const char *setting = cs_setting("PCI");
	int physical = cs_settings.physical[device];
	size_t length;

	for (int i = 0; setting && i < physical; i++) {
		setting = strchr(setting, ',');
		setting = setting ? setting + 1 : NULL;
	}
	length = setting ? strcspn(setting, ",") : 0;
	if (length && length < 32)
		snprintf(id, 32, "%.*s", (int)length, setting);
	else
		snprintf(id, 32, "0000:%02x:00.0", 0x10 + physical);
}

bool cs_pci_place(int device, unsigned int *domain, unsigned int *bus, unsigned int *slot)
{
	char id[32];

	pci_bus_id(device, id);
	return sscanf(id, "%x:%x:%x", domain, bus, slot) == 3;
}

/* FNV-1a over node and physical number: alike in all processes of a node, different elsewhere. */
void cs_uuid(int device, unsigned char uuid[16])
{
	uint64_t hash = 14695981039346656037ull;

	for (const char *byte = cs_settings.node; *byte; byte++)
		hash = (hash ^ (unsigned char)*byte) * 1099511628211ull;
	memcpy(uuid, "RRCUSIM", 7);
	uuid[7] = cs_settings.physical[device];
	memcpy(uuid + 8, &hash, 8);
}

CS_API(cuDeviceGetCount, 2000)(int *count)
{
	CS_ENTER(CS_NEED_INIT);
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = cs_settings.device_count;
	return CUDA_SUCCESS;
}

CS_API(cuDeviceGet, 2000)(CUdevice *device, int ordinal)
{
	CS_ENTER(CS_NEED_INIT);
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	DEVICE(ordinal);
	*device = ordinal;
	return CUDA_SUCCESS;
}

CS_API(cuDeviceGetName, 2000)(char *name, int bytes, CUdevice device)
{
	CS_ENTER(CS_NEED_INIT);
	if (!name || bytes <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	DEVICE(device);
	snprintf(name, bytes, "Simulated GPU%s", cs_settings.mig ? " MIG 1g.10gb" : "");
	return CUDA_SUCCESS;
}

CS_API(cuDeviceGetUuid, 11040)(CUuuid *uuid, CUdevice device)
{
	CS_ENTER(CS_NEED_INIT);
	if (!uuid)
		return CUDA_ERROR_INVALID_VALUE;
	DEVICE(device);
	cs_uuid(device, (unsigned char *)uuid->bytes);
	return CUDA_SUCCESS;
}

CS_API(cuDeviceTotalMem, 3020)(size_t *bytes, CUdevice device)
{
	CS_ENTER(CS_NEED_INIT);
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	DEVICE(device);
	*bytes = cs_settings.memory_bytes;
	return CUDA_SUCCESS;
}

CS_API(cuDeviceGetPCIBusId, 4010)(char *id, int bytes, CUdevice device)
{
	char text[32];

	CS_ENTER(CS_NEED_INIT);
	DEVICE(device);
	pci_bus_id(device, text);
	if (!id || bytes <= (int)strlen(text))
		return CUDA_ERROR_INVALID_VALUE;
	strcpy(id, text);
	return CUDA_SUCCESS;
}

CS_API(cuDeviceGetByPCIBusId, 4010)(CUdevice *device, const char *id)
{
	char text[32];

	CS_ENTER(CS_NEED_INIT);
	if (!device || !id)
		return CUDA_ERROR_INVALID_VALUE;
	for (int i = 0; i < cs_settings.device_count; i++) {
		pci_bus_id(i, text);
		if (!strcasecmp(text, id)) {
			*device = i;
			return CUDA_SUCCESS;
		}
	}
	return CUDA_ERROR_INVALID_DEVICE;
}

CS_API(cuDeviceCanAccessPeer, 4000)(int *can, CUdevice device, CUdevice peer)
{
	CS_ENTER(CS_NEED_INIT);
	if (!can)
		return CUDA_ERROR_INVALID_VALUE;
	DEVICE(device);
	DEVICE(peer);
	*can = device != peer && cs_settings.peer_access && !cs_settings.mig;
	return CUDA_SUCCESS;
}

CS_API(cuDeviceGetP2PAttribute, 8000)(int *value, CUdevice_P2PAttribute attribute, CUdevice from, CUdevice to)
{
	CS_ENTER(CS_NEED_INIT);
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	DEVICE(from);
	DEVICE(to);
	if (from == to)
		return CUDA_ERROR_INVALID_DEVICE;
	switch (attribute) {
	case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
	case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
		*value = cs_settings.peer_access && !cs_settings.mig;
		return CUDA_SUCCESS;
	case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
	case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
		*value = 0;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}
