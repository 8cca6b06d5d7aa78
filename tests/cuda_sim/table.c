/* table.c - cuGetProcAddress and the few names that are looked up by dlsym. */
#include "cs.h"

#include <string.h>

struct cs_entry {
	const char *name;
	int version;
	bool per_thread; /* the variant for per-thread default streams: never ours */
	void *address;   /* NULL: a signature that the header knows and the simulator lacks */
};

static const struct cs_entry entries[] = {
#include "table.inc" /* make_table.py */
};

#undef cuGetProcAddress

CS_API(cuGetProcAddress, 12000)(const char *name, void **address, int version, cuuint64_t flags,
				CUdriverProcAddressQueryResult *status)
{
	const struct cs_entry *best = NULL;
	bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, named = false;

	if (!name || !address || (flags & ~(cuuint64_t)3))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
		const struct cs_entry *entry = &entries[i];

		if (strcmp(entry->name, name))
			continue;
		named = true;
		if (entry->version > version || (entry->per_thread && !per_thread))
			continue;
		if (!best || entry->version > best->version || entry->per_thread)
			best = entry;
	}
	*address = best ? best->address : NULL;
	if (status)
		*status = *address ? CU_GET_PROC_ADDRESS_SUCCESS :
			  named    ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT :
				     CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return *address ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CS_API(cuGetProcAddress, 11030)(const char *name, void **address, int version, cuuint64_t flags)
{
	return cs_cuGetProcAddress_v12000(name, address, version, flags, NULL);
}

CS_API(cuGetExportTable, 3000)(const void **table, const CUuuid *id)
{
	if (!table || !id)
		return CUDA_ERROR_INVALID_VALUE;
	*table = NULL; /* NVRTC asks for one, and does without it */
	return CUDA_ERROR_NOT_FOUND;
}

CS_EXPORT CUresult CUDAAPI cuGetProcAddress_v2(const char *name, void **address, int version, cuuint64_t flags,
					       CUdriverProcAddressQueryResult *status)
{
	return cs_cuGetProcAddress_v12000(name, address, version, flags, status);
}

CS_EXPORT CUresult CUDAAPI cuGetProcAddress(const char *name, void **address, int version, cuuint64_t flags)
{
	return cs_cuGetProcAddress_v12000(name, address, version, flags, NULL);
}

CS_EXPORT CUresult CUDAAPI cuGetExportTable(const void **table, const CUuuid *id)
{
	return cs_cuGetExportTable_v3000(table, id);
}

CS_EXPORT CUresult CUDAAPI cuInit(unsigned int flags)
{
	return cs_cuInit_v2000(flags);
}

CS_EXPORT CUresult CUDAAPI cuDriverGetVersion(int *version)
{
	return cs_cuDriverGetVersion_v2020(version);
}
