/*
 * cuda_api.h - the CUDA driver as a table of functions that the caller fills.
 *
 * C neither links nor opens libcuda: who embeds us has it open already (Python by cuda.bindings), and gives name and
 * address of each function as cuGetProcAddress(name, version) has it, at the versions below. So all calls of a process
 * go to one driver, in one stream mode. The prototypes are ours; tests compare them with cuda.h
 * where that is at hand (tests/cuda/test_prototypes.py).
 *
 * Every call goes through RR_CUDA, which names it in its error: "cuLaunchKernel failed: CUDA_ERROR_ILLEGAL_ADDRESS (700)".
 *
 * Threads: the table does not change once it is open. Calls need the context of the device: see rr_cuda_enter().
 */
#ifndef RR_CUDA_API_H
#define RR_CUDA_API_H

#include <stddef.h>
#include <stdint.h>

#include "rdmaring.h"

typedef int rr_cuda_result;            /* CUresult */
typedef unsigned long long rr_cuda_ptr; /* CUdeviceptr */

/* Results that mean something to us. */
#define RR_CUDA_SUCCESS 0
#define RR_CUDA_ERROR_INVALID_VALUE 1
#define RR_CUDA_ERROR_DEINITIALIZED 4
#define RR_CUDA_ERROR_NOT_READY 600
#define RR_CUDA_ERROR_ALREADY_REGISTERED 712

#define RR_CUDA_STREAM_NON_BLOCKING 1u
#define RR_CUDA_EVENT_DISABLE_TIMING 2u
#define RR_CUDA_HOST_PORTABLE 1u /* of cuMemHostRegister and cuMemHostAlloc alike */
#define RR_CUDA_HOST_MAPPED 2u
#define RR_CUDA_WAIT_VALUE_EQ 1u
#define RR_CUDA_WAIT_VALUE_FLUSH (1u << 30)
#define RR_CUDA_WRITE_VALUE_DEFAULT 0u
#define RR_CUDA_MEM_OPS_MAX 255u /* in one cuStreamBatchMemOp */
#define RR_CUDA_WAIT_VALUE_GEQ 0u /* cyclic: (int32_t)(word - value) >= 0 */
#define RR_CUDA_CAPTURE_NONE 0
#define RR_CUDA_CAPTURE_MODE_RELAXED 2
#define RR_CUDA_DMA_BUF_SUPPORTED 124 /* of devices */
#define RR_CUDA_RDMA_FLUSH_OPTIONS 117
#define RR_CUDA_RDMA_ORDERING 118
#define RR_CUDA_SYNC_MEMOPS 6 /* of addresses */
#define RR_CUDA_BUFFER_ID 7
#define RR_CUDA_RDMA_CAPABLE 15
#define RR_CUDA_HANDLE_DMA_BUF_FD 1
#define RR_CUDA_FLUSH_TARGET_CONTEXT 0
#define RR_CUDA_FLUSH_TO_OWNER 100

enum rr_cuda_mem_op_kind { RR_CUDA_MEM_OP_WAIT_32 = 1, RR_CUDA_MEM_OP_WRITE_32 = 2 };

/* CUstreamBatchMemOpParams, of the two kinds above. */
union rr_cuda_mem_op {
	unsigned int kind; /* enum rr_cuda_mem_op_kind; the first member of the others too */
	struct {
		unsigned int kind;
		rr_cuda_ptr address;
		union {
			uint32_t value;
			uint64_t value64;
		};
		unsigned int flags;
		rr_cuda_ptr alias; /* the driver's own */
	} word;
	uint64_t pad[6];
};
_Static_assert(sizeof(union rr_cuda_mem_op) == 48, "as in cuda.h");
_Static_assert(offsetof(union rr_cuda_mem_op, word.address) == 8, "as in cuda.h");
_Static_assert(offsetof(union rr_cuda_mem_op, word.value) == 16, "as in cuda.h");
_Static_assert(offsetof(union rr_cuda_mem_op, word.flags) == 24, "as in cuda.h");

/*
 * All functions: CALL(name, version asked for, needed, parameters). Handles are void *. What is not needed may be
 * missing in older drivers: whoever calls it looks first.
 */
#define RR_CUDA_CALLS(CALL)                                                                                            \
	CALL(cuGetErrorName, 6000, 1, (rr_cuda_result error, const char **name))                                       \
	CALL(cuGetErrorString, 6000, 1, (rr_cuda_result error, const char **text))                                     \
	CALL(cuCtxPushCurrent, 4000, 1, (void *context))                                                               \
	CALL(cuCtxPopCurrent, 4000, 1, (void **context))                                                               \
	CALL(cuStreamCreate, 2000, 1, (void **stream, unsigned int flags))                                             \
	CALL(cuStreamDestroy, 4000, 1, (void *stream))                                                                 \
	CALL(cuStreamQuery, 2000, 1, (void *stream))                                                                   \
	CALL(cuStreamSynchronize, 2000, 1, (void *stream))                                                             \
	CALL(cuStreamWaitEvent, 3020, 1, (void *stream, void *event, unsigned int flags))                              \
	CALL(cuEventCreate, 2000, 1, (void **event, unsigned int flags))                                               \
	CALL(cuEventDestroy, 4000, 1, (void *event))                                                                   \
	CALL(cuEventRecord, 2000, 1, (void *event, void *stream))                                                      \
	CALL(cuEventQuery, 2000, 1, (void *event))                                                                     \
	CALL(cuLaunchKernel, 4000, 1,                                                                                  \
	     (void *function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,     \
	      unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, void *stream, void **parameters,  \
	      void **extra))                                                                                           \
	CALL(cuMemcpyAsync, 4000, 1, (rr_cuda_ptr to, rr_cuda_ptr from, size_t bytes, void *stream))                   \
	CALL(cuMemsetD32Async, 3020, 1, (rr_cuda_ptr to, unsigned int value, size_t count, void *stream))              \
	CALL(cuMemAlloc, 3020, 1, (rr_cuda_ptr *out, size_t bytes))                                                    \
	CALL(cuMemFree, 3020, 1, (rr_cuda_ptr address))                                                                \
	CALL(cuMemHostRegister, 6050, 1, (void *address, size_t bytes, unsigned int flags))                            \
	CALL(cuMemHostUnregister, 4000, 1, (void *address))                                                            \
	CALL(cuMemHostGetDevicePointer, 3020, 1, (rr_cuda_ptr *out, void *address, unsigned int flags))                \
	CALL(cuMemHostAlloc, 2020, 1, (void **out, size_t bytes, unsigned int flags))                                  \
	CALL(cuMemFreeHost, 2000, 1, (void *address))                                                                  \
	/* the enqueue executor */                                                                                     \
	CALL(cuStreamWaitValue32, 11070, 0, (void *stream, rr_cuda_ptr address, uint32_t value, unsigned int flags))   \
	CALL(cuStreamWriteValue32, 11070, 0, (void *stream, rr_cuda_ptr address, uint32_t value, unsigned int flags))  \
	CALL(cuStreamBatchMemOp, 11070, 0,                                                                             \
	     (void *stream, unsigned int count, union rr_cuda_mem_op *ops, unsigned int flags))                        \
	CALL(cuStreamIsCapturing, 10000, 0, (void *stream, int *status))                                               \
	CALL(cuThreadExchangeStreamCaptureMode, 10010, 0, (int *mode))                                                 \
	/* GPUDirect RDMA */                                                                                           \
	CALL(cuMemGetAddressRange, 3020, 0, (rr_cuda_ptr *base, size_t *bytes, rr_cuda_ptr address))                   \
	CALL(cuMemGetHandleForAddressRange, 11070, 0,                                                                  \
	     (void *handle, rr_cuda_ptr address, size_t bytes, int kind, unsigned long long flags))                    \
	CALL(cuPointerSetAttribute, 6000, 0, (const void *value, int attribute, rr_cuda_ptr address))                  \
	CALL(cuPointerGetAttribute, 4000, 0, (void *value, int attribute, rr_cuda_ptr address))                        \
	CALL(cuCtxGetDevice, 2000, 0, (int *device))                                                                   \
	CALL(cuDeviceGetAttribute, 2000, 0, (int *value, int attribute, int device))                                   \
	CALL(cuFlushGPUDirectRDMAWrites, 11030, 0, (int target, int scope))

struct rr_cuda {
#define RR_CUDA_MEMBER(name, version, needed, parameters) rr_cuda_result(*name) parameters;
	RR_CUDA_CALLS(RR_CUDA_MEMBER)
#undef RR_CUDA_MEMBER
	_Atomic uint32_t users; /* who opened it, and devices: it is freed by the last */
};

void rr_cuda_hold(struct rr_cuda *cuda);
void rr_cuda_put(struct rr_cuda *cuda);

/* The error of a call that gave `result`, as this thread's record; always RR_ERR_DEVICE. */
rr_status rr_cuda_fail(const struct rr_cuda *cuda, const char *call, rr_cuda_result result);
/* The driver's name of a result: "CUDA_ERROR_INVALID_VALUE"; never NULL. */
const char *rr_cuda_result_name(const struct rr_cuda *cuda, rr_cuda_result result);

static inline rr_status rr_cuda_check(const struct rr_cuda *cuda, const char *call, rr_cuda_result result)
{
	return __builtin_expect(result == RR_CUDA_SUCCESS, 1) ? RR_OK : rr_cuda_fail(cuda, call, result);
}

/* rr_status status = RR_CUDA(cuda, cuEventRecord, event, stream); */
#define RR_CUDA(cuda, call, ...) rr_cuda_check((cuda), #call, (cuda)->call(__VA_ARGS__))

/*
 * Make `context` this thread's current one, until rr_cuda_leave(). Any thread may enter: a caller's, or the progress
 * thread. An error of a call between the two stays the thread's record.
 */
static inline rr_status rr_cuda_enter(const struct rr_cuda *cuda, void *context)
{
	return RR_CUDA(cuda, cuCtxPushCurrent, context);
}

static inline void rr_cuda_leave(const struct rr_cuda *cuda)
{
	void *ours;

	(void)cuda->cuCtxPopCurrent(&ours); /* fails only where the driver is gone: then there is nothing to restore */
}

#endif
