/* memory.c - protection domains, memory regions, and every access to registered memory. */
#define _GNU_SOURCE
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#undef ibv_reg_mr /* the header's macros choose between the exported functions */
#undef ibv_reg_mr_iova

#define PAGE_BYTES 4096u

#define ACCESS_KNOWN (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | \
		      IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_OPTIONAL_RANGE)

SIM_EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct sim_pd *pd = calloc(1, sizeof(*pd));
	int error = sim_fault("ibv_alloc_pd");

	if (error || !pd) {
		free(pd);
		errno = error ? error : ENOMEM;
		return NULL;
	}
	pd->base.context = context;
	pthread_mutex_lock(&sim_lock);
	sim.pds++;
	pthread_mutex_unlock(&sim_lock);
	return &pd->base;
}

SIM_EXPORT int ibv_dealloc_pd(struct ibv_pd *base)
{
	struct sim_pd *pd = (struct sim_pd *)base;
	int error = sim_fault("ibv_dealloc_pd");

	if (error)
		return error;
	pthread_mutex_lock(&sim_lock);
	if (pd->users) {
		pthread_mutex_unlock(&sim_lock);
		return EBUSY;
	}
	sim.pds--;
	pthread_mutex_unlock(&sim_lock);
	free(pd);
	return 0;
}

/* Whether all pages are mapped, and writable where the device is to write: pinning would find out. */
static bool pages_allow(uintptr_t from, size_t bytes, bool write)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	uintptr_t reached = from, end = from + bytes;
	char line[512];

	if (!maps)
		return false;
	while (reached < end && fgets(line, sizeof(line), maps)) {
		unsigned long first, last;
		char rights[5];

		if (sscanf(line, "%lx-%lx %4s", &first, &last, rights) != 3)
			continue;
		if (first <= reached && reached < last && rights[0] == 'r' && (!write || rights[1] == 'w'))
			reached = last;
	}
	fclose(maps);
	return reached >= end;
}

static int registration_error(struct ibv_pd *pd, void *address, size_t bytes, unsigned access, bool gpu)
{
	unsigned writes = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

	if (sim_context_of(pd->context)->fatal)
		return EIO;
	if (!bytes || access & ~(unsigned)ACCESS_KNOWN)
		return EINVAL;
	if (access & writes && !(access & IBV_ACCESS_LOCAL_WRITE))
		return EINVAL; /* the verbs: remote write needs local write */
	if (sim.config.memlock_kb && sim.memlock_bytes + bytes > sim.config.memlock_kb * 1024ull)
		return ENOMEM;
	if (gpu)
		return 0;
	if (!pages_allow((uintptr_t)address, bytes, access & IBV_ACCESS_LOCAL_WRITE))
		return EFAULT;
	return 0;
}

static bool key_in_use(uint32_t key)
{
	for (const struct sim_mr *mr = sim.mrs; mr; mr = mr->next)
		if (mr->base.lkey == key || mr->base.rkey == key)
			return true;
	return key == 0;
}

static uint32_t new_key(void)
{
	uint32_t key;

	do
		key = (uint32_t)sim_random(&sim.random);
	while (key_in_use(key));
	return key;
}

static struct ibv_mr *register_memory(const char *verb, struct ibv_pd *pd, void *address, size_t bytes, uint64_t iova,
				      unsigned access, bool by_descriptor)
{
	struct sim_mr *mr = calloc(1, sizeof(*mr));
	int error;

	pthread_mutex_lock(&sim_lock);
	error = sim_fault_locked(verb);
	if (!error)
		error = mr ? 0 : ENOMEM;
	if (!error) {
		mr->gpu = (by_descriptor || sim.config.peermem) && sim_gpu_holds((uintptr_t)address, bytes);
		error = registration_error(pd, address, bytes, access, mr->gpu);
	}
	if (error) {
		pthread_mutex_unlock(&sim_lock);
		free(mr);
		errno = error;
		return NULL;
	}
	mr->base = (struct ibv_mr){ .context = pd->context, .pd = pd, .addr = address, .length = bytes };
	mr->iova = iova;
	mr->access = access;
	mr->base.lkey = new_key();
	mr->base.rkey = new_key();
	mr->next = sim.mrs;
	sim.mrs = mr;
	sim.memlock_bytes += bytes;
	((struct sim_pd *)pd)->users++;
	pthread_mutex_unlock(&sim_lock);
	return &mr->base;
}

/* Faults of any of the three functions are given to ibv_reg_mr: the caller sees one verb. */
SIM_EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t bytes, int access)
{
	return register_memory("ibv_reg_mr", pd, address, bytes, (uintptr_t)address, (unsigned)access, false);
}

SIM_EXPORT struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *address, size_t bytes, uint64_t iova, int access)
{
	return register_memory("ibv_reg_mr", pd, address, bytes, iova, (unsigned)access, false);
}

SIM_EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *address, size_t bytes, uint64_t iova,
					   unsigned access)
{
	return register_memory("ibv_reg_mr", pd, address, bytes, iova, access, false);
}

SIM_EXPORT struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t iova, int fd,
					    int access)
{
	uint64_t address = 0;
	int error = 0;

	pthread_mutex_lock(&sim_lock);
	if (!sim.config.dmabuf)
		error = EOPNOTSUPP; /* as rxe */
	else if (fcntl(fd, F_GETFD) < 0)
		error = EBADF;
	else if ((iova ^ offset) % PAGE_BYTES || !sim_gpu_of_descriptor(fd, offset, bytes, &address))
		error = EINVAL;
	pthread_mutex_unlock(&sim_lock);
	if (error) {
		int planned = sim_fault("ibv_reg_dmabuf_mr");

		errno = planned ? planned : error;
		return NULL;
	}
	return register_memory("ibv_reg_dmabuf_mr", pd, (void *)(uintptr_t)address, bytes, iova, (unsigned)access, true);
}

SIM_EXPORT int ibv_dereg_mr(struct ibv_mr *base)
{
	struct sim_mr **link = &sim.mrs;
	int error;

	pthread_mutex_lock(&sim_lock);
	error = sim_fault_locked("ibv_dereg_mr");
	while (!error && *link && &(*link)->base != base)
		link = &(*link)->next;
	if (!error && !*link) {
		sim_violation("ibv_dereg_mr of a region that is not registered");
		error = EINVAL;
	}
	if (!error) {
		struct sim_mr *mr = *link;

		*link = mr->next;
		sim.memlock_bytes -= mr->base.length;
		((struct sim_pd *)mr->base.pd)->users--;
		free(mr);
	}
	pthread_mutex_unlock(&sim_lock);
	return error;
}

/* The region of a key that covers the range and allows the access; NULL otherwise. */
static const struct sim_mr *find(struct ibv_pd *pd, uint32_t key, bool remote, uint64_t address, uint64_t bytes,
				 unsigned access)
{
	for (const struct sim_mr *mr = sim.mrs; mr; mr = mr->next) {
		if ((remote ? mr->base.rkey : mr->base.lkey) != key)
			continue;
		if (mr->base.pd != pd || (mr->access & access) != access)
			return NULL;
		if (address < mr->iova || bytes > mr->base.length || address - mr->iova > mr->base.length - bytes)
			return NULL;
		return mr;
	}
	return NULL;
}

/*
 * Copy between a region and the simulator by way of the kernel: memory that the application has unmapped while it
 * was registered is then an error that can be told, not a signal.
 */
static bool copy(const struct sim_mr *mr, uint64_t address, void *own, size_t bytes, bool to_region)
{
	char *at = (char *)mr->base.addr + (address - mr->iova);
	struct iovec here = { own, bytes }, there = { at, bytes };
	ssize_t moved;

	if (mr->gpu) {
		*(to_region ? &sim.counts.gpu_written : &sim.counts.gpu_read) += bytes;
		if (to_region ? sim_gpu_write((uintptr_t)at, own, bytes) : sim_gpu_read((uintptr_t)at, own, bytes))
			return true;
		sim_violation("registered GPU memory at %p, %zu bytes, was freed before ibv_dereg_mr", (void *)at, bytes);
		return false;
	}
	moved = to_region ? process_vm_writev(getpid(), &here, 1, &there, 1, 0)
				  : process_vm_readv(getpid(), &here, 1, &there, 1, 0);

	if (moved < 0 && (errno == ENOSYS || errno == EPERM)) { /* a sandbox without these calls */
		memcpy(to_region ? (void *)at : own, to_region ? own : (void *)at, bytes);
		return true;
	}
	if (moved != (ssize_t)bytes) {
		sim_violation("registered memory at %p, %zu bytes, was unmapped before ibv_dereg_mr", (void *)at, bytes);
		return false;
	}
	return true;
}

bool sim_local_ok(struct ibv_pd *pd, const struct ibv_sge *sge, int count, unsigned access)
{
	for (int i = 0; i < count; i++)
		if (sge[i].length && !find(pd, sge[i].lkey, false, sge[i].addr, sge[i].length, access))
			return false;
	return true;
}

/* Bytes [offset, offset + bytes) of the list of extents, out of them or into them. */
static enum ibv_wc_status walk(struct ibv_pd *pd, const struct ibv_sge *sge, int count, uint32_t offset, uint8_t *own,
			       uint32_t bytes, bool into)
{
	for (int i = 0; i < count && bytes; i++) {
		const struct sim_mr *mr;
		uint32_t part;

		if (offset >= sge[i].length) {
			offset -= sge[i].length;
			continue;
		}
		part = sge[i].length - offset < bytes ? sge[i].length - offset : bytes;
		mr = find(pd, sge[i].lkey, false, sge[i].addr, sge[i].length, into ? IBV_ACCESS_LOCAL_WRITE : 0);
		if (!mr || !copy(mr, sge[i].addr + offset, own, part, into))
			return IBV_WC_LOC_PROT_ERR;
		own += part;
		bytes -= part;
		offset = 0;
	}
	return bytes ? IBV_WC_LOC_LEN_ERR : IBV_WC_SUCCESS;
}

enum ibv_wc_status sim_gather(struct ibv_pd *pd, const struct ibv_sge *sge, int count, uint32_t from, uint8_t *to,
			      uint32_t bytes)
{
	return walk(pd, sge, count, from, to, bytes, false);
}

enum ibv_wc_status sim_scatter(struct ibv_pd *pd, const struct ibv_sge *sge, int count, uint32_t to,
			       const uint8_t *from, uint32_t bytes)
{
	return walk(pd, sge, count, to, (uint8_t *)from, bytes, true);
}

bool sim_remote_ok(struct ibv_pd *pd, uint32_t rkey, uint64_t address, uint64_t bytes, unsigned access)
{
	return !bytes || find(pd, rkey, true, address, bytes, access);
}

bool sim_place(struct ibv_pd *pd, uint32_t rkey, uint64_t address, const uint8_t *from, uint32_t bytes)
{
	const struct sim_mr *mr = find(pd, rkey, true, address, bytes, IBV_ACCESS_REMOTE_WRITE);

	return !bytes || (mr && copy(mr, address, (void *)from, bytes, true));
}

bool sim_fetch(struct ibv_pd *pd, uint32_t rkey, uint64_t address, uint8_t *to, uint32_t bytes)
{
	const struct sim_mr *mr = find(pd, rkey, true, address, bytes, IBV_ACCESS_REMOTE_READ);

	return !bytes || (mr && copy(mr, address, to, bytes, false));
}
