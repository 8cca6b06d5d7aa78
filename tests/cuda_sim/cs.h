/*
 * cs.h - a simulated CUDA driver: libcuda.so.1 for machines without a GPU, stricter than the real one.
 *
 *   application threads                       one thread a stream (or one for all)
 *   CS_API calls: check, make an operation ─► queue ─► operation runs: translate, copy, wait, launch
 *
 * Device memory is memfds; a device address lies in a reservation that nobody may read or write, so the host
 * faults on it, and only operations on stream threads translate it. Handles (streams, events, ...) are never
 * used again after they are destroyed: a stale one is always found out.
 *
 * cs_lock covers all tables of the process; functions say "locked" where the caller holds it.
 * Order of locks: cs_lock before a stream's lock. Neither is held while an operation runs.
 *
 * Calls that exist (name, version): see `grep -h ^CS_API tests/cuda_sim/[a-z]*.c`. By file:
 *   table.c       cuGetProcAddress, cuGetExportTable (answers NOT_FOUND)
 *   process.c     cuInit, cuDriverGetVersion
 *   errors.c      cuGetErrorName, cuGetErrorString
 *   device.c      cuDeviceGet, -Count, -Name, -Uuid, -PCIBusId, -ByPCIBusId, TotalMem, CanAccessPeer
 *   attributes.c  cuDeviceGetAttribute
 *   context.c     cuDevicePrimaryCtx*, cuCtxSetCurrent, -GetCurrent, -Push, -Pop, -GetDevice, -Synchronize, peer access
 *   events.c      cuEventCreate, -Destroy, -Record, -RecordWithFlags, -Query, -Synchronize, -ElapsedTime,
 *                 cuStreamWaitEvent
 *   copies.c      cuMemcpy, -HtoD, -DtoH, -DtoD, -Peer, each also Async; cuMemsetD8, -D32, each also Async
 *   memops.c      cuStreamWaitValue32, -64, cuStreamWriteValue32, -64, cuStreamBatchMemOp (v2)
 *   launch.c      cuLaunchKernel, cuLaunchKernelEx, cuLaunchHostFunc
 *   capture.c     cuStreamBeginCapture, -EndCapture, -IsCapturing, -GetCaptureInfo, cuThreadExchangeStreamCaptureMode
 *   graph.c       cuGraphInstantiate, -Launch, -Upload, -GetNodes (their count), -Destroy, cuGraphExecDestroy
 *   stream_calls.c  cuStreamCreate, -WithPriority, -Destroy, -Synchronize, -Query, -GetFlags, -GetPriority, -GetCtx
 *   memory.c      cuMemAlloc, cuMemFree, cuMemGetInfo, cuMemGetAddressRange
 *   host.c        cuMemHostAlloc, cuMemAllocHost, cuMemFreeHost, cuMemHostRegister, -Unregister, -GetDevicePointer,
 *                 -GetFlags
 *   ipc.c         cuIpcGetMemHandle, -OpenMemHandle, -CloseMemHandle, -GetEventHandle, -OpenEventHandle
 *   pool.c        cuMemAllocAsync, cuMemAllocFromPoolAsync, cuMemFreeAsync, cuDeviceGetDefaultMemPool, -GetMemPool
 *   rdma.c        cuMemGetHandleForAddressRange (dma-buf), cuFlushGPUDirectRDMAWrites
 *   pointers.c    cuPointerGetAttribute, cuPointerGetAttributes, cuPointerSetAttribute
 */
#ifndef CUDA_SIM_CS_H
#define CUDA_SIM_CS_H

#include <cudaTypedefs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CS_EXPORT      __attribute__((visibility("default")))
#define CS_DEVICES_MAX 16
#define CS_STACK_MAX   16                     /* contexts pushed by one thread */
#define CS_BLOCK_BYTES ((size_t)2 << 20)      /* what the driver takes from a device at a time */
#define CS_STEP_BYTES  ((size_t)512)          /* small allocations begin at multiples of this in their block */
#define CS_ARENA_BYTES ((size_t)1 << 40)      /* reserved address space; device addresses lie in it */
#define CS_PAGE_BYTES  ((size_t)4096)

/* ---- calls --------------------------------------------------------------------------------------------------- */

/*
 * An entry of the driver with the signature it has had since `version`: PFN_<name>_v<version> in cudaTypedefs.h.
 * make_table.py finds these by their text, and the compiler compares them with that typedef.
 */
#define CS_API(name, version) CUresult CUDAAPI cs_##name##_v##version

#include "entries.h" /* made of them: declarations with those types */

enum cs_need {
	CS_NEED_NOTHING,     /* may be called before cuInit */
	CS_NEED_INIT,        /* cuInit first; not in a child of fork */
	CS_NEED_CONTEXT,     /* a current context that lives; no sticky error */
};

/* What is known of one entry: how often it was called, and which calls are to fail. */
struct cs_call {
	const char *function; /* cs_<name>_v<version>; NULL until the first call */
	_Atomic uint64_t count;
	struct cs_call *next;
};

/* Every entry begins with this line. */
#define CS_ENTER(need)                                                    \
	do {                                                              \
		static struct cs_call cs_call_;                           \
		CUresult cs_result_ = cs_enter(&cs_call_, __func__, need); \
		if (cs_result_ != CUDA_SUCCESS)                           \
			return cs_result_;                                \
	} while (0)

CUresult cs_enter(struct cs_call *call, const char *function, enum cs_need need);

/* ---- process.c: settings of the environment, life of the process --------------------------------------------- */

struct cs_settings {
	int device_count;           /* RR_CUDA_SIM_DEVICES, 1; those that CUDA_VISIBLE_DEVICES leaves */
	int physical[CS_DEVICES_MAX]; /* ordinal → number of the device in the node */
	int driver_version;         /* RR_CUDA_SIM_DRIVER_VERSION, 13000 */
	uint64_t seed;              /* RR_CUDA_SIM_SEED, 1 */
	uint32_t delay_us;          /* RR_CUDA_SIM_DELAY_US, 0: an operation waits up to this before it runs */
	bool one_queue;             /* RR_CUDA_SIM_CONNECTIONS=1: all streams of the process share one queue */
	size_t memory_bytes;        /* RR_CUDA_SIM_MEMORY_MIB, 4096: of each device */
	bool peer_access;           /* RR_CUDA_SIM_PEER, 1: devices can map each other's memory */
	bool mig;                   /* RR_CUDA_SIM_MIG, 0: devices are MIG instances, without IPC */
	const char *node;           /* RR_CUDA_SIM_NODE, "": part of the devices' UUIDs */
};

extern struct cs_settings cs_settings;
extern pthread_mutex_t cs_lock;

/* The value of RR_CUDA_SIM_<key>, or NULL; a number, which must be one. */
const char *cs_setting(const char *key);
uint64_t cs_setting_number(const char *key, uint64_t otherwise);

/* Say on stderr what a return code cannot. */
void cs_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* errors.c: the number of "700" or "CUDA_ERROR_ILLEGAL_ADDRESS"; 0 where it is none. */
CUresult cs_result_of(const char *text);
bool cs_is_sticky(CUresult result); /* an error after which a context is of no more use */

/* A sticky error: every later call of this process that needs a context returns it. The first one stays. */
void cs_fault(CUresult why, const char *format, ...) __attribute__((format(printf, 2, 3)));
CUresult cs_fault_now(void); /* CUDA_SUCCESS while there is none */

/* How often an entry was called by the application, as in cs_calls("cuLaunchKernel"); "*": all together. */
CS_EXPORT uint64_t cs_calls(const char *name);

/* ---- context.c ----------------------------------------------------------------------------------------------- */

struct CUctx_st {
	int device;               /* ordinal */
	int retained;             /* of the primary context; it lives while this is not 0 */
	unsigned int flags;
	uint32_t peers;           /* bit d: may map memory of device d */
	struct CUstream_st *legacy;
};

bool cs_device_exists(CUdevice device);
struct CUctx_st *cs_primary(int device);
struct CUctx_st *cs_current(void); /* NULL without one */
bool cs_context_lives(const struct CUctx_st *context);

/* Whether code that runs on device `from` may map memory of device `to`. Locked or on a stream thread. */
bool cs_may_map(int from, int to);

/* What runs now: the context of the stream whose operation this thread runs, NULL on application threads. */
extern _Thread_local struct CUctx_st *cs_running;

/* Device `device` of this process: its UUID, its place on the PCI bus. */
void cs_uuid(int device, unsigned char uuid[16]);
bool cs_pci_place(int device, unsigned int *domain, unsigned int *bus, unsigned int *slot);

/* ---- attributes.c -------------------------------------------------------------------------------------------- */

int cs_attribute(CUdevice_attribute attribute, int device);

/* ---- memory.c: device memory --------------------------------------------------------------------------------- */

/* One memfd: one allocation of 2 MiB or more, or what small ones share; then a page of struct cs_shared. */
struct cs_block {
	CUdeviceptr begin;
	size_t bytes;            /* a multiple of CS_BLOCK_BYTES */
	char *host;              /* where this process has it mapped */
	int fd;
	uint64_t inode;          /* of the memfd: the block's name in all processes */
	int device;              /* ordinal in this process; -1: a device this process does not see */
	bool imported;
	struct cs_shared *shared;
	struct cs_block *next;
};

struct cs_allocation {
	CUdeviceptr begin;
	size_t bytes;
	struct cs_block *block;
	uint64_t id;             /* CU_POINTER_ATTRIBUTE_BUFFER_ID: never used again */
	bool pool;               /* by cuMemAllocAsync: not for legacy IPC */
	bool sync_memops;
	struct CUctx_st *context;
	unsigned int opened;     /* imported: how often */
	uint64_t exporter_id;    /* imported: id in the exporter */
	struct cs_allocation *next;
};

/* Reserve the address space. Called once by cuInit. */
CUresult cs_memory_begin(void);

/* The allocation that holds the whole of [address, address + bytes), or NULL. Locked. */
struct cs_allocation *cs_allocation_find(CUdeviceptr address, size_t bytes);

/* Whether an address lies where device memory may be, allocated or not. */
bool cs_in_arena(CUdeviceptr address);

CUresult cs_allocate(int device, size_t bytes, bool pool, CUdeviceptr *address);
CUresult cs_release(CUdeviceptr address);

/* Map `bytes` of a memfd at a free place of the arena, as a block. Locked. NULL: no memory. Owns fd afterwards. */
struct cs_block *cs_block_map(int fd, size_t bytes, int device, bool imported);
void cs_block_unmap(struct cs_block *block);
void cs_allocation_insert(struct cs_allocation *allocation);
void cs_allocation_remove(struct cs_allocation *allocation);
void cs_allocation_end(struct cs_allocation *allocation); /* and its block, where nothing else lies in it */
struct cs_allocation *cs_allocations(void);               /* all, linked by next; locked */
struct cs_block *cs_block_of(uint64_t inode);
void cs_memory_end(struct CUctx_st *context);

/* ipc.c: whether another living process has the allocation open; note that this one opens or closes it. Locked. */
bool cs_opened_elsewhere(const struct cs_allocation *allocation);
bool cs_opened_note(struct cs_allocation *allocation, bool opens);

/* pointers.c: whether cuIpcGetMemHandle takes it. Locked. */
bool cs_ipc_capable(const struct cs_allocation *allocation);

/* ---- host.c: pinned host memory ------------------------------------------------------------------------------ */

struct cs_host_range {
	uintptr_t begin;
	size_t bytes;
	unsigned int flags;      /* CU_MEMHOSTALLOC_* or CU_MEMHOSTREGISTER_* */
	bool registered;         /* by cuMemHostRegister, not allocated here */
	uint64_t id;
	uint64_t inode, offset;  /* of the file that it maps, where processes share that; else 0. For the race log alone */
	struct CUctx_st *context;
	struct cs_host_range *next;
};

/* The pinned range that holds the whole of [address, address + bytes), or NULL. Locked. */
struct cs_host_range *cs_host_find(uintptr_t address, size_t bytes);

/* ---- streams.c: operations and the threads that run them ----------------------------------------------------- */

struct cs_op;

struct cs_op_kind {
	const char *name;                 /* in the race log */
	void (*run)(struct cs_op *op);    /* on a stream thread, without locks; not called after a fault */
};

/*
 * An operation: what one call puts on a stream. Structs of the kinds begin with it; payload follows in the same
 * piece of memory and is found by offset, so that memcpy of `bytes` makes another one (a graph is launched so).
 */
struct cs_op {
	const struct cs_op_kind *kind;
	size_t bytes;
	struct CUstream_st *stream;
	uint64_t number;                  /* place in its stream, from 1 */
	uint32_t thread, step;            /* host thread that called, and how many steps of it came before */
	struct cs_op *next;
};

struct cs_queue;

/* What CUstream points to. Never freed: a stale handle is found out by `destroyed`. */
struct CUstream_st {
	struct CUctx_st *context;
	unsigned int flags;
	int priority;
	uint32_t number;                  /* in this process, from 1 */
	bool destroyed;
	struct cs_queue *queue;
	uint64_t submitted;               /* under cs_lock */
	_Atomic uint64_t completed;       /* in order, so "number <= completed" means done */
	struct cs_capture *capture;       /* NULL: does not capture */
	uint32_t lane;                    /* of the capture: which of its streams this is */
	struct CUstream_st *next;
};

/* An operation of this size, zeroed beyond its head; NULL: no memory. */
void *cs_op_new(const struct cs_op_kind *kind, size_t bytes);

/*
 * Put an operation on a stream of the current context, or into the capture under way there, and own it henceforth,
 * whatever is returned. `handle` may be 0, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD. INVALID_HANDLE: no such stream here.
 */
CUresult cs_submit(CUstream handle, void *op);
CUresult cs_submit_locked(struct CUstream_st *stream, struct cs_op *op);
CUresult cs_submit_and_wait(CUstream handle, void *op); /* and return a fault that has happened */
CUresult cs_stream_finish(CUstream handle);             /* wait for all that the stream has */

/* The stream of a handle in the current context; NULL: none. Locked. */
struct CUstream_st *cs_stream_of(CUstream handle);
struct CUstream_st *cs_stream_new(struct CUctx_st *context, unsigned int flags, int priority); /* locked */
void cs_stream_destroy(struct CUstream_st *stream); /* its thread ends when it has run what is queued; locked */
bool cs_await(struct CUstream_st *waiter, struct CUstream_st *stream, uint64_t number); /* false: no memory; locked */
bool cs_order_by_legacy(struct CUstream_st *stream); /* its next operation is put where it must be; locked */
void cs_push(struct CUstream_st *stream, struct cs_op *op); /* without the rules of the legacy stream; locked */

/* Wait until the stream's operations up to `number` are done. Not locked. */
void cs_stream_wait(struct CUstream_st *stream, uint64_t number);

/* Wait until all work of a context is done: what cuCtxSynchronize and cuMemFree do. Not locked. */
void cs_drain(struct CUctx_st *context);
void cs_streams_end(struct CUctx_st *context);
bool cs_in_host_function(void); /* on a thread that runs a function of cuLaunchHostFunc */
void cs_set_in_host_function(bool inside);

/* Wait a little, longer the more often: turn counts from 0. False: a fault has happened, give up. */
bool cs_pause(unsigned int turn);
uint64_t cs_now_ns(void);

/* ---- events.c ------------------------------------------------------------------------------------------------ */

#define CS_RECORDS_KEPT 256

/* What an event is to all who know it; in a page of its own where several processes do. */
struct cs_event_state {
	_Atomic uint32_t recorded;  /* number of the latest call that recorded it */
	_Atomic uint32_t changes;   /* how many records were reached: what waiters sleep on */
	/* By number modulo CS_RECORDS_KEPT, the latest that was reached: a record on a quick stream says nothing of
	 * an earlier one on a slow stream. */
	_Atomic uint32_t reached[CS_RECORDS_KEPT];
	_Atomic uint32_t destroyed; /* by the process that made it */
	_Atomic uint64_t time_ns;   /* when that was */
};

/* What CUevent points to. Never freed. */
struct CUevent_st {
	struct CUctx_st *context;
	unsigned int flags;
	bool imported, destroyed;
	int fd;                     /* -1: known to this process alone */
	uint64_t inode;
	char name[32];              /* in the race log */
	struct cs_event_state *state, own;
	struct cs_capture *captured; /* last recorded while a stream captured */
	uint32_t captured_node;
	struct CUevent_st *next;
};

struct CUevent_st *cs_event_of(CUevent handle); /* NULL: no such event, or its maker has destroyed it; locked */
struct CUevent_st *cs_event_new(unsigned int flags, int fd); /* owns fd, or -1; NULL: no memory; locked */
void cs_event_complete(struct cs_event_state *state, uint32_t record);
void cs_event_wait(struct cs_event_state *state, uint32_t record); /* returns early after a fault */

/* ---- capture.c ----------------------------------------------------------------------------------------------- */

#define CS_LANES_MAX 64 /* streams of one capture */

bool cs_stream_captures(CUstream handle);

/*
 * What a capture under way forbids: calls that may synchronise (by mode and thread), use of the legacy stream beside
 * blocking streams that capture, waiting for a stream or a context of it. Each invalidates it. Of these only
 * the second is called locked.
 */
CUresult cs_capture_forbids(void);
CUresult cs_capture_forbids_legacy(const struct CUctx_st *context);
CUresult cs_capture_forbids_stream(CUstream handle);
CUresult cs_capture_forbids_context(const struct CUctx_st *context);
CUresult cs_capture_add(struct CUstream_st *stream, struct cs_op *op);               /* owns op; locked */
CUresult cs_capture_record(struct CUstream_st *stream, struct CUevent_st *event);    /* locked */
CUresult cs_capture_wait(struct CUstream_st *stream, struct CUevent_st *event);      /* locked */

/* ---- graph.c: all locked ------------------------------------------------------------------------------------- */

struct CUgraph_st *cs_graph_new(void); /* NULL: no memory */

/* A node after others; owns op, which is NULL for a node that only joins. `index` is its number. */
CUresult cs_graph_add(struct CUgraph_st *graph, uint32_t lane, struct cs_op *op, const uint32_t *after,
		      uint32_t after_count, uint32_t *index);

/* Whether one of `ends` comes after each node, or is it. */
bool cs_graph_is_joined(const struct CUgraph_st *graph, const uint32_t *ends, uint32_t end_count);

/* ---- race.c: the race log ------------------------------------------------------------------------------------ */

/* Whether there is one. The functions below do nothing otherwise. */
bool cs_race_on(void);

/* The number of the calling host thread, and its next step. */
void cs_race_step(uint32_t *thread, uint32_t *step);

void cs_race_begin(const struct cs_op *op);            /* around `run` of an operation, on its thread */
void cs_race_end(const struct cs_op *op);
void cs_race_after(uint32_t stream, uint64_t number);  /* within: the running operation came after that one */
void cs_race_event(const char *what, const char *event, uint32_t record); /* "records" or "awaits" */
void cs_race_set(CUdeviceptr address, uint32_t bytes, uint64_t value); /* it is about to store value there */
void cs_race_poll(CUdeviceptr address, uint32_t bytes, uint64_t seen, uint64_t wanted, unsigned int how); /* of cuda.h */
void cs_race_fill(uint32_t value, uint32_t width); /* it is a fill, of elements of width bytes */

/* The host waited: for a stream's operations, or for an event; or it took or gave back memory. */
void cs_race_host_stream(const char *call, uint32_t stream, uint64_t number);
void cs_race_host_event(const char *call, const char *event, uint32_t record);
void cs_race_host_memory(const char *call, CUdeviceptr address, size_t bytes);

/* ---- translation: what operations and kernels may touch ------------------------------------------------------ */

/* A range of addresses of one allocation (or pinned host range), and where its first byte is in this process. */
struct cs_view {
	CUdeviceptr begin, end;
	char *host;
};

/*
 * The allocation around `address` as the running operation may use it; false: nothing there, or on a device that
 * the stream's context may not map. Notes nothing. Valid until the memory is freed, which waits for operations.
 */
CS_EXPORT bool cs_view(CUdeviceptr address, struct cs_view *view);

/*
 * The host address of [address, address + bytes). NULL, after cs_fault(CUDA_ERROR_ILLEGAL_ADDRESS), where a device
 * would fault: the caller ends its operation. The access goes to the race log.
 */
CS_EXPORT void *cs_translate(CUdeviceptr address, size_t bytes, bool writes);

/* The same for a copy, which reaches all devices of the process. */
void *cs_translate_any(CUdeviceptr address, size_t bytes, bool writes);

/* Tell the race log of an access that went by cs_view. On a stream thread. */
CS_EXPORT void cs_note(CUdeviceptr address, size_t bytes, bool writes);

/*
 * Of an adapter. Its thread touched memory; seen: kernels see the write at once.
 * cs_race_rdma: the calling thread flushed ("flush"). The application's thread has polled a completion (cs_rdma_seen), or
 * posted a request (cs_rdma_posted, its number), behind which the adapter reads from now on (cs_rdma_reads_behind).
 */
void cs_race_adapter(bool writes, CUdeviceptr address, size_t bytes, bool seen);
void cs_race_rdma(const char *call);
CS_EXPORT void cs_rdma_seen(void);
CS_EXPORT uint64_t cs_rdma_posted(void);
CS_EXPORT void cs_rdma_reads_behind(uint64_t post);

/* ---- rdma.c: memory as an adapter sees it --------------------------------------------------------------- */

void cs_rdma_flush(void); /* not locked */
void cs_rdma_settle(void); /* not locked: writes that are due by themselves; before each operation of a stream */

/* Of an adapter that goes by device addresses; false: no such memory here. A write may stay unseen until a flush. */
CS_EXPORT bool cs_rdma_write(CUdeviceptr address, const void *data, size_t bytes);
CS_EXPORT bool cs_rdma_read(CUdeviceptr address, void *data, size_t bytes);
CS_EXPORT bool cs_rdma_holds(CUdeviceptr address, size_t bytes); /* all of it in one allocation */
/* Where the range of a dma-buf descriptor lies in this process; false: it is none of ours. */
CS_EXPORT bool cs_rdma_of_descriptor(int fd, CUdeviceptr *address);

/* ---- module*.c (modules and kernels), called from launch.c --------------------------------------------------- */

struct cs_parameter {
	uint32_t offset, bytes;  /* in the packed block of parameters */
};

/* A kernel of a loaded module: what cuModuleGetFunction gives as CUfunction. */
struct cs_kernel;

/* The kernel behind a handle; NULL: no such, or its module is unloaded. Locked. */
struct cs_kernel *cs_kernel_of(CUfunction function);

/* Parameters in order, and their count. */
const struct cs_parameter *cs_kernel_parameters(const struct cs_kernel *kernel, uint32_t *count);

/*
 * Run all blocks, on the calling stream thread. `parameters` is the packed block. Returns CUDA_SUCCESS, or what the
 * launch dies of (719 CUDA_ERROR_LAUNCH_FAILED, 716 MISALIGNED_ADDRESS, 700 after cs_translate gave NULL), sticky.
 * A kernel whose module is unloaded meanwhile stays valid: module memory is never given back.
 */
CUresult cs_kernel_run(const struct cs_kernel *kernel, const unsigned int grid[3], const unsigned int block[3],
		       unsigned int shared_bytes, const void *parameters);

#endif
