/* module.c - modules and functions: what was loaded, and what a handle means. */
#include "module.h"

#include <stdlib.h>
#include <string.h>

/* What CUmodule points to. Never freed: neither are functions, so a stale handle is always found out. */
struct cs_module {
	struct CUctx_st *context;
	struct cs_image_kernel *kernels;
	bool unloaded;
	struct cs_module *next;
};

static struct cs_module *modules; /* under cs_lock, as is the list of functions */
static struct cs_kernel *functions;

static bool module_lives(const struct cs_module *module)
{
	for (const struct cs_module *each = modules; each; each = each->next)
		if (each == module)
			return !each->unloaded && cs_context_lives(each->context);
	return false;
}

static CUresult load(CUmodule *handle, const void *image)
{
	struct cs_module *module;
	CUresult result;

	if (!handle || !image)
		return CUDA_ERROR_INVALID_VALUE;
	module = calloc(1, sizeof(*module));
	if (!module)
		return CUDA_ERROR_OUT_OF_MEMORY;
	module->context = cs_current();
	result = cs_image_read(image, module->context->device, &module->kernels);
	if (result != CUDA_SUCCESS) {
		free(module);
		return result;
	}
	pthread_mutex_lock(&cs_lock);
	module->next = modules;
	modules = module;
	pthread_mutex_unlock(&cs_lock);
	*handle = (CUmodule)module;
	return CUDA_SUCCESS;
}

CS_API(cuModuleLoadData, 2000)(CUmodule *module, const void *image)
{
	CS_ENTER(CS_NEED_CONTEXT);
	return load(module, image);
}

/* Options steer the compilation of PTX, which is not done here. */
CS_API(cuModuleLoadDataEx, 2010)(CUmodule *module, const void *image, unsigned int option_count,
				 CUjit_option *options, void **values)
{
	CS_ENTER(CS_NEED_CONTEXT);
	if (option_count && (!options || !values))
		return CUDA_ERROR_INVALID_VALUE;
	return load(module, image);
}

CS_API(cuModuleUnload, 2000)(CUmodule handle)
{
	struct cs_module *module = (struct cs_module *)handle;
	CUresult result = CUDA_ERROR_INVALID_HANDLE;

	CS_ENTER(CS_NEED_CONTEXT);
	pthread_mutex_lock(&cs_lock);
	if (module_lives(module)) {
		module->unloaded = true;
		result = CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&cs_lock);
	return result;
}

/* The handle of a kernel is the same at every call. Locked. */
static CUresult function_of(struct cs_module *module, const char *name, CUfunction *function)
{
	struct cs_image_kernel *image = module->kernels;
	struct cs_kernel *kernel = functions;

	while (image && strcmp(image->name, name) != 0)
		image = image->next;
	if (!image)
		return CUDA_ERROR_NOT_FOUND;
	while (kernel && kernel->image != image)
		kernel = kernel->next;
	if (!kernel) {
		const struct shim_kernel *shim = cs_shim_find(image);

		if (!shim)
			return CUDA_ERROR_NOT_FOUND;
		kernel = calloc(1, sizeof(*kernel));
		if (!kernel)
			return CUDA_ERROR_OUT_OF_MEMORY;
		*kernel = (struct cs_kernel){ image, shim, module, functions };
		functions = kernel;
	}
	*function = (CUfunction)kernel;
	return CUDA_SUCCESS;
}

CS_API(cuModuleGetFunction, 2000)(CUfunction *function, CUmodule handle, const char *name)
{
	struct cs_module *module = (struct cs_module *)handle;
	CUresult result = CUDA_ERROR_INVALID_HANDLE;

	CS_ENTER(CS_NEED_CONTEXT);
	if (!function || !name)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&cs_lock);
	if (module_lives(module))
		result = module->context == cs_current() ? function_of(module, name, function)
							 : CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_unlock(&cs_lock);
	return result;
}

CS_API(cuFuncGetParamInfo, 12040)(CUfunction function, size_t index, size_t *offset, size_t *bytes)
{
	struct cs_kernel *kernel;

	CS_ENTER(CS_NEED_CONTEXT);
	if (!offset)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&cs_lock);
	kernel = cs_kernel_of(function);
	pthread_mutex_unlock(&cs_lock);
	if (!kernel)
		return CUDA_ERROR_INVALID_HANDLE;
	if (index >= kernel->image->parameter_count)
		return CUDA_ERROR_INVALID_VALUE;
	*offset = kernel->image->parameters[index].offset;
	if (bytes)
		*bytes = kernel->image->parameters[index].bytes;
	return CUDA_SUCCESS;
}

struct cs_kernel *cs_kernel_of(CUfunction function)
{
	for (struct cs_kernel *kernel = functions; kernel; kernel = kernel->next)
		if (kernel == (struct cs_kernel *)function)
			return module_lives(kernel->module) && kernel->module->context == cs_current() ? kernel : NULL;
	return NULL;
}

const struct cs_parameter *cs_kernel_parameters(const struct cs_kernel *kernel, uint32_t *count)
{
	*count = kernel->image->parameter_count;
	return kernel->image->parameters;
}
