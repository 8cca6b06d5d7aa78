/* module_run.c - the kernels themselves: the library of their source compiled for the CPU, and the run of a launch. */
#include <dlfcn.h>
#include <string.h>

#include "module.h"
#include "shim_abi.h"

static struct {
	const struct shim_kernel *(*find)(const char *name);
	enum shim_outcome (*run)(const struct shim_kernel *kernel, const unsigned int grid[3],
				 const unsigned int block[3], const void *parameters,
				 const struct shim_memory *memory, struct shim_fault *fault);
} library;

static pthread_once_t opened = PTHREAD_ONCE_INIT;

static void open_library(void)
{
	const char *path = cs_setting("KERNELS");
	void *handle = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
	void *find = handle ? dlsym(handle, "shim_find") : NULL, *run = handle ? dlsym(handle, "shim_run") : NULL;

	if (!find || !run) {
		cs_say("RR_CUDA_SIM_KERNELS: %s", path ? dlerror() : "not set, so no kernel can run (build_shim.py makes it)");
		return;
	}
	memcpy(&library.find, &find, sizeof(find));
	memcpy(&library.run, &run, sizeof(run));
}

const struct shim_kernel *cs_shim_find(const struct cs_image_kernel *image)
{
	const struct cs_parameter *last = &image->parameters[image->parameter_count - 1];
	size_t bytes = image->parameter_count ? last->offset + last->bytes : 0;
	const struct shim_kernel *kernel;

	pthread_once(&opened, open_library);
	kernel = library.find ? library.find(image->name) : NULL;
	if (library.find && !kernel)
		cs_say("kernel %s is in an image, but not in the library of RR_CUDA_SIM_KERNELS", image->name);
	if (kernel && kernel->parameter_bytes != bytes) {
		cs_say("kernel %s takes %zu bytes of parameters in the image, %zu on the CPU", image->name, bytes,
		       kernel->parameter_bytes);
		kernel = NULL;
	}
	return kernel;
}

static bool view(void *user, uint64_t address, struct shim_view *found)
{
	struct cs_view around;

	(void)user;
	if (!cs_view(address, &around))
		return false;
	*found = (struct shim_view){ around.begin, around.end, around.host };
	return true;
}

static void note(void *user, uint64_t address, uint64_t bytes, bool writes)
{
	(void)user;
	cs_note(address, bytes, writes);
}

CUresult cs_kernel_run(const struct cs_kernel *kernel, const unsigned int grid[3], const unsigned int block[3],
		       unsigned int shared_bytes, const void *parameters)
{
	struct shim_memory memory = { .view = view, .note = cs_race_on() ? note : NULL };
	const struct cs_image_kernel *image = kernel->image;
	struct shim_fault fault;
	enum shim_outcome outcome;

	(void)shared_bytes;
	if (image->threads_max && block[0] * block[1] * block[2] > image->threads_max) {
		cs_fault(CUDA_ERROR_LAUNCH_FAILED, "%s has blocks of at most %u threads, launched with %u", image->name,
			 image->threads_max, block[0] * block[1] * block[2]);
		return CUDA_ERROR_LAUNCH_FAILED;
	}
	outcome = library.run(kernel->shim, grid, block, parameters, &memory, &fault);
	if (outcome == SHIM_DONE)
		return CUDA_SUCCESS;
	cs_fault((CUresult)outcome, "%s, block %u, thread %u: %s of %lu bytes at 0x%lx: %s", image->name, fault.block,
		 fault.thread, fault.writes ? "write" : "read", (unsigned long)fault.bytes, (unsigned long)fault.address,
		 outcome == SHIM_MISALIGNED_ADDRESS ? "not a multiple of that" : "no such memory of this device");
	return (CUresult)outcome;
}
