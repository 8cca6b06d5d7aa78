/* launch.c - kernels and host functions on streams. */
#include "cs.h"

#include <string.h>

#define THREADS_MAX      1024
#define BLOCK_Z_MAX      64
#define GRID_YZ_MAX      65535
#define SHARED_BYTES_MAX 49152

struct launch {
	struct cs_op op;
	const struct cs_kernel *kernel;
	unsigned int grid[3], block[3], shared_bytes;
	_Alignas(16) char parameters[];
};

struct host_function {
	struct cs_op op;
	CUhostFn function;
	void *argument;
};

static void run_launch(struct cs_op *op)
{
	struct launch *launch = (struct launch *)op;
	CUresult result = cs_kernel_run(launch->kernel, launch->grid, launch->block, launch->shared_bytes,
					launch->parameters);

	if (result != CUDA_SUCCESS)
		cs_fault(result, "a kernel died");
}

static void run_host_function(struct cs_op *op)
{
	struct host_function *call = (struct host_function *)op;

	cs_set_in_host_function(true);
	call->function(call->argument);
	cs_set_in_host_function(false);
}

static const struct cs_op_kind launch_kind = { "kernel", run_launch };
static const struct cs_op_kind host_function_kind = { "host", run_host_function };

static bool shape_is_valid(const unsigned int grid[3], const unsigned int block[3], unsigned int shared_bytes)
{
	for (int i = 0; i < 3; i++)
		if (!grid[i] || !block[i] || block[i] > THREADS_MAX || (i && grid[i] > GRID_YZ_MAX))
			return false;
	return grid[0] <= INT32_MAX && block[2] <= BLOCK_Z_MAX && block[0] * block[1] <= THREADS_MAX &&
	       block[0] * block[1] * block[2] <= THREADS_MAX && shared_bytes <= SHARED_BYTES_MAX;
}

/* The packed block that `extra` names; NULL: it names none. */
static const void *packed_in(void **extra, size_t *bytes)
{
	const void *packed = NULL;

	for (; extra && extra[0] != CU_LAUNCH_PARAM_END; extra += 2) {
		if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER)
			packed = extra[1];
		else if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE)
			*bytes = *(size_t *)extra[1];
		else
			return NULL;
	}
	return packed;
}

/* Each parameter's own bytes are copied while the call runs; the caller may change them afterwards. */
static CUresult launch(CUfunction function, const unsigned int grid[3], const unsigned int block[3],
		       unsigned int shared_bytes, CUstream stream, void **parameters, void **extra)
{
	const struct cs_parameter *layout;
	const struct cs_kernel *kernel;
	const void *packed = NULL;
	size_t bytes = 0, packed_bytes = 0;
	struct launch *launch;
	uint32_t count;

	pthread_mutex_lock(&cs_lock);
	kernel = cs_kernel_of(function);
	pthread_mutex_unlock(&cs_lock);
	if (!kernel)
		return CUDA_ERROR_INVALID_HANDLE;
	layout = cs_kernel_parameters(kernel, &count);
	if (count)
		bytes = layout[count - 1].offset + layout[count - 1].bytes;
	if (extra)
		packed = packed_in(extra, &packed_bytes);
	if (!shape_is_valid(grid, block, shared_bytes) || (parameters && extra) ||
	    (count && !parameters && (!packed || packed_bytes < bytes)))
		return CUDA_ERROR_INVALID_VALUE;
	launch = cs_op_new(&launch_kind, sizeof(*launch) + bytes);
	if (!launch)
		return CUDA_ERROR_OUT_OF_MEMORY;
	launch->kernel = kernel;
	memcpy(launch->grid, grid, sizeof(launch->grid));
	memcpy(launch->block, block, sizeof(launch->block));
	launch->shared_bytes = shared_bytes;
	for (uint32_t i = 0; parameters && i < count; i++)
		memcpy(launch->parameters + layout[i].offset, parameters[i], layout[i].bytes);
	if (packed)
		memcpy(launch->parameters, packed, bytes);
	return cs_submit(stream, launch);
}

CS_API(cuLaunchKernel, 4000)(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
			     unsigned int block_x, unsigned int block_y, unsigned int block_z,
			     unsigned int shared_bytes, CUstream stream, void **parameters, void **extra)
{
	unsigned int grid[3] = { grid_x, grid_y, grid_z }, block[3] = { block_x, block_y, block_z };

	CS_ENTER(CS_NEED_CONTEXT);
	return launch(function, grid, block, shared_bytes, stream, parameters, extra);
}

CS_API(cuLaunchKernelEx, 11060)(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
	CS_ENTER(CS_NEED_CONTEXT);
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	if (config->numAttrs)
		return CUDA_ERROR_NOT_SUPPORTED;
	return launch(function, (unsigned int[]){ config->gridDimX, config->gridDimY, config->gridDimZ },
		      (unsigned int[]){ config->blockDimX, config->blockDimY, config->blockDimZ },
		      config->sharedMemBytes, config->hStream, parameters, extra);
}

CS_API(cuLaunchHostFunc, 10000)(CUstream stream, CUhostFn function, void *argument)
{
	struct host_function *call;

	CS_ENTER(CS_NEED_CONTEXT);
	if (!function)
		return CUDA_ERROR_INVALID_VALUE;
	call = cs_op_new(&host_function_kind, sizeof(*call));
	if (!call)
		return CUDA_ERROR_OUT_OF_MEMORY;
	call->function = function;
	call->argument = argument;
	return cs_submit(stream, call);
}
