/*
 * gpu.c - GPU memory of the simulated CUDA driver (tests/cuda_sim) as the adapter reaches it.
 *
 * The driver is the one that the process has loaded; without it there is no GPU memory. By dma-buf the descriptor names the
 * memory (dmabuf=1), by peer memory its address (peermem=1). Reads and writes go through the driver, which keeps
 * writes unseen until a flush where the device's ordering asks for one.
 */
#define _GNU_SOURCE
#include "sim.h"

#include <dlfcn.h>
#include <string.h>

static bool (*gpu_write)(unsigned long long address, const void *data, size_t bytes);
static bool (*gpu_read)(unsigned long long address, void *data, size_t bytes);
static bool (*gpu_holds)(unsigned long long address, size_t bytes);
static bool (*gpu_of_descriptor)(int fd, unsigned long long *address);
static void (*gpu_seen)(void);
static uint64_t (*gpu_posted)(void);
static void (*gpu_reads_behind)(uint64_t post);

static void find(void *library, const char *name, void *where)
{
	void *function = dlsym(library, name);

	memcpy(where, &function, sizeof(function));
}

/* Looked for again until it is there: a process may load it after the first registration of host memory. */
static bool loaded(void)
{
	void *library = gpu_write ? NULL : dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);

	if (library) {
		find(library, "cs_rdma_read", &gpu_read);
		find(library, "cs_rdma_holds", &gpu_holds);
		find(library, "cs_rdma_of_descriptor", &gpu_of_descriptor);
		find(library, "cs_rdma_seen", &gpu_seen);
		find(library, "cs_rdma_posted", &gpu_posted);
		find(library, "cs_rdma_reads_behind", &gpu_reads_behind);
		find(library, "cs_rdma_write", &gpu_write);
		dlclose(library); /* it stays: the application has it */
	}
	return gpu_write && gpu_read && gpu_holds && gpu_of_descriptor && gpu_seen && gpu_posted && gpu_reads_behind;
}

bool sim_gpu_holds(uint64_t address, uint64_t bytes)
{
	return loaded() && gpu_holds(address, bytes);
}

bool sim_gpu_of_descriptor(int fd, uint64_t offset, uint64_t bytes, uint64_t *address)
{
	unsigned long long begin = 0;

	if (!loaded() || !gpu_of_descriptor(fd, &begin) || !gpu_holds(begin + offset, bytes))
		return false;
	*address = begin + offset;
	return true;
}

bool sim_gpu_write(uint64_t address, const void *data, size_t bytes)
{
	return gpu_write(address, data, bytes);
}

bool sim_gpu_read(uint64_t address, void *data, size_t bytes)
{
	return gpu_read(address, data, bytes);
}

void sim_gpu_seen(void)
{
	if (gpu_write)
		gpu_seen();
}

uint64_t sim_gpu_posted(void)
{
	return gpu_write ? gpu_posted() : 0;
}

void sim_gpu_reads_behind(uint64_t post)
{
	if (gpu_write)
		gpu_reads_behind(post);
}
