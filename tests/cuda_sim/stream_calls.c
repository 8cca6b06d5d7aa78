/* stream_calls.c - calls about streams; what runs them is in streams.c. */
#include "cs.h"

static CUresult create(CUstream *handle, unsigned int flags, int priority)
{
	if (!handle || (flags & ~(unsigned int)CU_STREAM_NON_BLOCKING))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&cs_lock);
	*handle = cs_stream_new(cs_current(), flags, priority < -5 ? -5 : priority > 0 ? 0 : priority);
	pthread_mutex_unlock(&cs_lock);
	return *handle ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CS_API(cuStreamCreate, 2000)(CUstream *handle, unsigned int flags)
{
	CS_ENTER(CS_NEED_CONTEXT);
	return create(handle, flags, 0);
}

CS_API(cuStreamCreateWithPriority, 5050)(CUstream *handle, unsigned int flags, int priority)
{
	CS_ENTER(CS_NEED_CONTEXT);
	return create(handle, flags, priority);
}

CS_API(cuCtxGetStreamPriorityRange, 5050)(int *least, int *greatest)
{
	CS_ENTER(CS_NEED_CONTEXT);
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return CUDA_SUCCESS;
}

/* Find the stream of a handle and how much was put on it. */
static CUresult look(CUstream handle, struct CUstream_st **stream, uint64_t *submitted)
{
	pthread_mutex_lock(&cs_lock);
	*stream = cs_stream_of(handle);
	if (*stream)
		*submitted = (*stream)->submitted;
	pthread_mutex_unlock(&cs_lock);
	return *stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CS_API(cuStreamDestroy, 4000)(CUstream handle)
{
	struct CUstream_st *stream;

	CS_ENTER(CS_NEED_CONTEXT);
	if (!handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD)
		return CUDA_ERROR_INVALID_HANDLE;
	pthread_mutex_lock(&cs_lock);
	stream = cs_stream_of(handle);
	if (stream)
		cs_stream_destroy(stream);
	pthread_mutex_unlock(&cs_lock);
	return stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CS_API(cuStreamSynchronize, 2000)(CUstream handle)
{
	struct CUstream_st *stream;
	uint64_t submitted;
	CUresult result;

	CS_ENTER(CS_NEED_CONTEXT);
	result = cs_capture_forbids_stream(handle);
	if (result != CUDA_SUCCESS)
		return result;
	result = look(handle, &stream, &submitted);
	if (result != CUDA_SUCCESS)
		return result;
	cs_stream_wait(stream, submitted);
	cs_race_host_stream("cuStreamSynchronize", stream->number, submitted);
	return cs_fault_now();
}

CS_API(cuStreamQuery, 2000)(CUstream handle)
{
	struct CUstream_st *stream;
	uint64_t submitted;
	CUresult result;

	CS_ENTER(CS_NEED_CONTEXT);
	result = cs_capture_forbids_stream(handle);
	if (result != CUDA_SUCCESS)
		return result;
	result = look(handle, &stream, &submitted);
	if (result != CUDA_SUCCESS)
		return result;
	if (stream->completed < submitted)
		return CUDA_ERROR_NOT_READY;
	cs_race_host_stream("cuStreamQuery", stream->number, submitted);
	return cs_fault_now();
}

CS_API(cuStreamGetFlags, 5050)(CUstream handle, unsigned int *flags)
{
	struct CUstream_st *stream;
	uint64_t submitted;
	CUresult result;

	CS_ENTER(CS_NEED_CONTEXT);
	result = look(handle, &stream, &submitted);
	if (result == CUDA_SUCCESS && !flags)
		result = CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		*flags = stream->flags;
	return result;
}

CS_API(cuStreamGetPriority, 5050)(CUstream handle, int *priority)
{
	struct CUstream_st *stream;
	uint64_t submitted;
	CUresult result;

	CS_ENTER(CS_NEED_CONTEXT);
	result = look(handle, &stream, &submitted);
	if (result == CUDA_SUCCESS && !priority)
		result = CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		*priority = stream->priority;
	return result;
}

CS_API(cuStreamGetCtx, 9020)(CUstream handle, CUcontext *context)
{
	struct CUstream_st *stream;
	uint64_t submitted;
	CUresult result;

	CS_ENTER(CS_NEED_CONTEXT);
	result = look(handle, &stream, &submitted);
	if (result == CUDA_SUCCESS && !context)
		result = CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		*context = stream->context;
	return result;
}
