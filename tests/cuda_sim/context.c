/* context.c - primary contexts, each thread's stack of current contexts, and access to peers. */
#include "cs.h"

#include <string.h>

static struct CUctx_st primaries[CS_DEVICES_MAX];
static _Thread_local struct {
	struct CUctx_st *contexts[CS_STACK_MAX];
	int depth;
} stack;

_Thread_local struct CUctx_st *cs_running;

struct CUctx_st *cs_primary(int device)
{
	return &primaries[device];
}

struct CUctx_st *cs_current(void)
{
	return stack.depth ? stack.contexts[stack.depth - 1] : NULL;
}

bool cs_context_lives(const struct CUctx_st *context)
{
	return context >= primaries && context < primaries + CS_DEVICES_MAX && context->retained > 0;
}

bool cs_may_map(int from, int to)
{
	return from == to || (to >= 0 && (primaries[from].peers >> to & 1));
}

CS_API(cuDevicePrimaryCtxRetain, 7000)(CUcontext *context, CUdevice device)
{
	CS_ENTER(CS_NEED_INIT);
	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	if (!cs_device_exists(device))
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&cs_lock);
	primaries[device].device = device;
	primaries[device].retained++;
	pthread_mutex_unlock(&cs_lock);
	*context = &primaries[device];
	return CUDA_SUCCESS;
}

/* The last release ends the context: its work is waited for, its memory and streams are gone. */
CS_API(cuDevicePrimaryCtxRelease, 11000)(CUdevice device)
{
	struct CUctx_st *context;

	CS_ENTER(CS_NEED_INIT);
	if (!cs_device_exists(device))
		return CUDA_ERROR_INVALID_DEVICE;
	context = &primaries[device];
	if (context->retained <= 0)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (context->retained == 1) {
		cs_drain(context);
		cs_streams_end(context);
		cs_memory_end(context);
		context->peers = 0;
	}
	pthread_mutex_lock(&cs_lock);
	context->retained--;
	pthread_mutex_unlock(&cs_lock);
	return CUDA_SUCCESS;
}

CS_API(cuDevicePrimaryCtxGetState, 7000)(CUdevice device, unsigned int *flags, int *active)
{
	CS_ENTER(CS_NEED_INIT);
	if (!flags || !active)
		return CUDA_ERROR_INVALID_VALUE;
	if (!cs_device_exists(device))
		return CUDA_ERROR_INVALID_DEVICE;
	*flags = primaries[device].flags;
	*active = primaries[device].retained > 0;
	return CUDA_SUCCESS;
}

CS_API(cuDevicePrimaryCtxSetFlags, 11000)(CUdevice device, unsigned int flags)
{
	CS_ENTER(CS_NEED_INIT);
	if (!cs_device_exists(device))
		return CUDA_ERROR_INVALID_DEVICE;
	if (flags & ~(unsigned int)CU_CTX_FLAGS_MASK)
		return CUDA_ERROR_INVALID_VALUE;
	primaries[device].flags = flags;
	return CUDA_SUCCESS;
}

CS_API(cuCtxSetCurrent, 4000)(CUcontext context)
{
	CS_ENTER(CS_NEED_INIT);
	if (context && !cs_context_lives(context))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!context) {
		stack.depth -= stack.depth > 0;
		return CUDA_SUCCESS;
	}
	stack.depth += !stack.depth;
	stack.contexts[stack.depth - 1] = context;
	return CUDA_SUCCESS;
}

CS_API(cuCtxGetCurrent, 4000)(CUcontext *context)
{
	CS_ENTER(CS_NEED_INIT);
	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	*context = cs_current();
	return CUDA_SUCCESS;
}

CS_API(cuCtxPushCurrent, 4000)(CUcontext context)
{
	CS_ENTER(CS_NEED_INIT);
	if (!cs_context_lives(context))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (stack.depth == CS_STACK_MAX)
		return CUDA_ERROR_OUT_OF_MEMORY; /* a caller that forgets to pop */
	stack.contexts[stack.depth++] = context;
	return CUDA_SUCCESS;
}

CS_API(cuCtxPopCurrent, 4000)(CUcontext *context)
{
	CS_ENTER(CS_NEED_INIT);
	if (!stack.depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	stack.depth--;
	if (context)
		*context = stack.contexts[stack.depth];
	return CUDA_SUCCESS;
}

CS_API(cuCtxGetDevice, 2000)(CUdevice *device)
{
	CS_ENTER(CS_NEED_CONTEXT);
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	*device = cs_current()->device;
	return CUDA_SUCCESS;
}

CS_API(cuCtxGetFlags, 7000)(unsigned int *flags)
{
	CS_ENTER(CS_NEED_CONTEXT);
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = cs_current()->flags;
	return CUDA_SUCCESS;
}

CS_API(cuCtxSynchronize, 2000)(void)
{
	CUresult result;

	CS_ENTER(CS_NEED_CONTEXT);
	result = cs_capture_forbids_context(cs_current());
	if (result != CUDA_SUCCESS)
		return result;
	cs_drain(cs_current());
	return cs_fault_now();
}

CS_API(cuCtxEnablePeerAccess, 4000)(CUcontext peer, unsigned int flags)
{
	struct CUctx_st *own;
	CUresult result = CUDA_SUCCESS;

	CS_ENTER(CS_NEED_CONTEXT);
	own = cs_current();
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (!cs_context_lives(peer) || peer == own)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!cs_settings.peer_access || cs_settings.mig)
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	pthread_mutex_lock(&cs_lock);
	if (own->peers >> peer->device & 1)
		result = CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
	own->peers |= 1u << peer->device;
	pthread_mutex_unlock(&cs_lock);
	return result;
}

CS_API(cuCtxDisablePeerAccess, 4000)(CUcontext peer)
{
	struct CUctx_st *own;
	CUresult result = CUDA_SUCCESS;

	CS_ENTER(CS_NEED_CONTEXT);
	own = cs_current();
	if (!cs_context_lives(peer))
		return CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_lock(&cs_lock);
	if (!(own->peers >> peer->device & 1))
		result = CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
	own->peers &= ~(1u << peer->device);
	pthread_mutex_unlock(&cs_lock);
	return result;
}
