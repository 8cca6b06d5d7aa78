/*
 * module.h - what module.c, module_image.c and module_run.c share: images, and kernels in them.
 */
#ifndef CUDA_SIM_MODULE_H
#define CUDA_SIM_MODULE_H

#include "cs.h"

#define CS_PARAMETERS_MAX 64
#define CS_NAME_MAX       256

/* A kernel as its image tells of it. */
struct cs_image_kernel {
	char name[CS_NAME_MAX];
	struct cs_parameter parameters[CS_PARAMETERS_MAX]; /* in order */
	uint32_t parameter_count;
	uint32_t threads_max; /* of a block: __launch_bounds__; 0: the image does not say */
	struct cs_image_kernel *next;
};

/*
 * Find the kernels of an image: a cubin (an ELF file of NVIDIA's), or the text of a PTX program. Real ones: what the
 * kernels do is not read. A fatbin is CUDA_ERROR_INVALID_IMAGE here. On success the list is the caller's.
 */
CUresult cs_image_read(const void *image, int device, struct cs_image_kernel **kernels);
CUresult cs_cubin_read(const unsigned char *image, int device, struct cs_image_kernel **kernels);
CUresult cs_ptx_read(const char *image, int device, struct cs_image_kernel **kernels);
void cs_image_free(struct cs_image_kernel *kernels);

/* A new kernel at the head of a list; NULL: no memory, or a name too long. */
struct cs_image_kernel *cs_image_add(struct cs_image_kernel **kernels, const char *name, size_t name_bytes);

/* Whether code made for `architecture` (90 is sm_90) runs on a device: machine code needs the same major version. */
bool cs_runs_on(int device, unsigned int architecture, bool machine_code);

/* module_run.c: the kernel for the CPU of this name; NULL, after a word on stderr, where it is missing or differs. */
struct shim_kernel;
const struct shim_kernel *cs_shim_find(const struct cs_image_kernel *kernel);

struct cs_module;

struct cs_kernel {
	struct cs_image_kernel *image;
	const struct shim_kernel *shim;
	struct cs_module *module;
	struct cs_kernel *next; /* of all modules */
};

#endif
