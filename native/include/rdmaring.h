/*
 * rdmaring.h - ring all-reduce and its relatives between processes, without NCCL.
 *
 * A communicator joins `world` ranks. A schedule (made by `rdmaring schedule`, or by the Python
 * package) says which chunk goes where; a plan binds it to a count, a data type and a chunk table;
 * a run of a plan moves one vector per rank.
 *
 * Threads: one thread at a time per communicator, except rr_comm_abort() and rr_comm_close(), which any thread with a
 * reference to it may call beside all else; see rr_comm_retain().
 * Status: RR_OK is 0, RR_AGAIN positive, errors negative. After an error rr_last_error() tells rank,
 * peer, cause and remedy; it is kept per thread. Outputs are written only on success.
 * Memory: the caller owns every buffer it passes and keeps it alive until the run has ended.
 */
#ifndef RDMARING_H
#define RDMARING_H

#include <stddef.h>
#include <stdint.h>

#include "rdmaring_verdict.h"

#ifdef __cplusplus
extern "C" {
#endif


/* [cdef-begin] what stands between these marks is also what Python sees */

typedef enum rr_status {
	RR_OK = 0,
	RR_AGAIN = 1, /* not finished, or no credit: call again */
	/* this call: nothing was changed, the communicator lives on */
	RR_ERR_ARGUMENT = -1,
	RR_ERR_NO_MEMORY = -2,
	RR_ERR_UNSUPPORTED = -3,
	RR_ERR_SCHEDULE = -4, /* a schedule's bytes are damaged or of another version */
	/* this link */
	RR_ERR_LINK = -20,
	RR_ERR_PROTOCOL = -21, /* a peer sent what the contract forbids */
	RR_ERR_CORRUPT = -22,  /* bytes came otherwise than they were sent: rr_plan_spec.check */
	/* this communicator: it is lost, close it */
	RR_ERR_TIMEOUT = -40,
	RR_ERR_PEER_DIED = -41,
	RR_ERR_PEER_FAILED = -42, /* a peer is inside an error and said so */
	RR_ERR_PEER_CLOSED = -43,
	RR_ERR_ABORTED = -44,
	RR_ERR_MISMATCH = -45, /* ranks called different things */
	RR_ERR_CLOSED = -46,
	RR_ERR_FORKED = -47, /* used in a child of the process that made it */
	RR_ERR_SYSTEM = -48, /* an operating system call failed; see the message */
	RR_ERR_SETUP = -49,  /* the communicator could not be made */
	RR_ERR_DEVICE = -50  /* a call of the GPU's driver failed; see the message */
} rr_status;

typedef enum rr_collective {
	RR_ALL_REDUCE = 0,
	RR_REDUCE_SCATTER = 1,
	RR_ALL_GATHER = 2,
	RR_BROADCAST = 3,
	RR_REDUCE = 4,
	RR_BARRIER = 5,
	RR_ALL_TO_ALL = 6,
	RR_GATHER = 7,
	RR_SCATTER = 8
} rr_collective;

typedef enum rr_dtype {
	RR_FLOAT32 = 0,
	RR_FLOAT64 = 1,
	RR_FLOAT16 = 2,
	RR_BFLOAT16 = 3,
	RR_INT8 = 4,
	RR_INT16 = 5,
	RR_INT32 = 6,
	RR_INT64 = 7,
	RR_UINT8 = 8,
	RR_UINT16 = 9,
	RR_UINT32 = 10,
	RR_UINT64 = 11
} rr_dtype;

typedef enum rr_redop {
	RR_SUM = 0,
	RR_PROD = 1,
	RR_MIN = 2,
	RR_MAX = 3,
	RR_AVG = 4 /* floating types only */
} rr_redop;

typedef struct rr_comm rr_comm;
typedef struct rr_schedule rr_schedule;
typedef struct rr_plan rr_plan;
typedef struct rr_work rr_work;
typedef struct rr_device rr_device;

/* What went wrong, in the words of where it was known. -1 where a number does not apply. */
typedef struct rr_error {
	int32_t status;
	int32_t rank;
	int32_t peer;
	int32_t row;
	int64_t op;
	char transport[16];
	char collective[24];
	char message[1024]; /* one sentence: what happened, to whom */
	char hint[512];     /* what to do about it */
	rr_verdict verdict; /* kind RR_VERDICT_NONE: none */
} rr_error;

/* A piece of a vector. */
typedef struct rr_extent {
	void *address;
	uint64_t bytes;
} rr_extent;

/*
 * Gathers `bytes` bytes from every rank: all[r * bytes] is what rank r gave. Collective; called only
 * inside rr_comm_create(), a small number of times. Returns 0, or another value to give up.
 */
typedef int (*rr_exchange_fn)(void *user, const void *mine, size_t bytes, void *all);

/* What may serve an edge between nodes. */
typedef enum rr_transport {
	RR_TRANSPORT_TCP = 1,
	RR_TRANSPORT_VERBS = 2
} rr_transport;

/* Links over InfiniBand or RoCE. Zero a member to take its default; `qps` must be equal on all ranks. */
typedef struct rr_verbs_options {
	uint64_t timeout_ns;       /* until a packet is sent again; rounded up to 4.096 us * 2^n; default 537 ms */
	uint32_t qps;              /* queue pairs a link, 1 to 8; default 1 */
	uint32_t retry_count;      /* times a packet is sent again, 1 to 7; default 7, with timeout_ns: about 4 s in all */
	uint32_t rnr_retry;        /* times a receiver may be found not ready, 1 to 7 (7: no limit); default 7 */
	uint32_t service_level;    /* 0 to 15 */
	uint32_t traffic_class;    /* 0 to 255: DSCP << 2 on RoCE v2 */
	uint32_t hop_limit;        /* 1 to 255; default 64 */
	uint32_t gid_index_plus_1; /* 0: by rule; n: the GID at index n - 1 */
	/* How the NIC may reach GPU memory: 0: dma-buf, else peer memory; 1: dma-buf alone; 2: peer memory alone; 3: not at all */
	uint32_t gpu_direct;
	uint64_t reconnect_ns;     /* how long a link that failed is made anew; UINT64_MAX: never; default 10 s */
	char devices[64];          /* names, with commas: only these; "": all */
} rr_verbs_options;

struct rr_message_transport; /* rdmaring_link.h */

/* Zero a member to take its default. Sizes are in bytes, times in nanoseconds. */
typedef struct rr_options {
	uint64_t timeout_ns;          /* of a call without its own; default 300 s */
	uint64_t slot_bytes;          /* a slot of a shared memory link */
	uint32_t slot_count;          /* slots a link */
	uint32_t cma;                 /* 0: where the kernel allows it; 1: never */
	uint64_t memory_budget_bytes; /* of this process for all links of all communicators */
	uint64_t serial_start;        /* first link serial; tests use it to meet the wrap */
	uint32_t tcp_streams;         /* data sockets a channel of an edge between nodes */
	uint32_t channels;            /* links an edge between nodes, 1 to 16, equal on all ranks; default 1 */
	uint32_t require_rdma;        /* 1: rr_comm_create() fails where an edge between nodes has no RDMA */
	uint32_t transports;          /* bits of rr_transport that may serve edges between nodes; 0: all */
	uint8_t key[16];              /* proves membership of the job between nodes; all zero: from the exchange */
	rr_verbs_options verbs;
	const char *link_library;     /* path of a library whose transport serves edges between nodes (rdmaring_link.h) */
	const struct rr_message_transport *link_transport; /* or the transport itself, valid until rr_comm_close() */
	uint64_t setup_ns;            /* rr_comm_create() may take so long; default timeout_ns */
	uint32_t restore;             /* 1: an input in host memory that its operation overwrites is put back if that fails */
} rr_options;

/* Why an edge is served as it is. */
typedef struct rr_link_facts {
	int32_t peer;
	int32_t peer_pid;
	int32_t peer_node;  /* nodes count from 0, in order of their first ranks */
	int32_t rail;       /* of verbs, else -1 */
	uint32_t streams;   /* sockets (tcp) or queue pairs (verbs) of all channels */
	uint32_t channels;  /* links of operations: 1 on shared memory, which all channels share */
	uint32_t rails;     /* bit r: rail r serves a channel */
	char transport[16]; /* "shm", "tcp", "verbs" */
	char ordinary[16];  /* how ordinary memory travels: "cma", "slots" or "stream" */
	char device[32];    /* of verbs: name and port, as "mlx5_0/1" */
	char path[192];     /* between nodes: the addresses at both ends, once joined */
	char peer_host[40]; /* its name */
	char reason[512];   /* why not better */
	char gpu[16];         /* of verbs: how the NIC reaches this rank's GPU memory: "gpudirect" or "staged" */
	char gpu_reason[384]; /* by what, or why each way was refused */
	uint64_t slot_bytes;
	uint32_t slot_count;
	uint32_t huge_pages; /* 1: slots lie on huge pages */
	uint32_t reconnects; /* of verbs: how often it failed and was made anew */
	uint32_t failovers;  /* of verbs: how often a channel moved to another rail, since its own stayed dead */
	char moved[512];     /* each channel that moved, the last time: "channel 0 from mlx5_0/1 to mlx5_1/1" */
	uint32_t line_ps;    /* on shared memory: storing to a cache line that the peer has read, when last looked at; 0: not yet */
	uint64_t sent_bytes; /* payload since the communicator was made */
	uint64_t received_bytes;
	uint64_t sent_slices;
	uint64_t received_slices;
} rr_link_facts;

typedef struct rr_plan_spec {
	int32_t collective; /* rr_collective */
	int32_t dtype;      /* rr_dtype */
	int32_t redop;      /* rr_redop; ignored where nothing is reduced */
	int32_t root;       /* -1 where the collective has none */
	uint64_t count;     /* elements of the whole vector */
	double scale;       /* the result is multiplied by it, in float32 for small floats; 1: not at all */
	const rr_schedule *schedule;   /* not kept: its rows are copied */
	const uint64_t *chunk_offsets; /* chunk_count + 1 element offsets, ascending, last == count */
	uint64_t slice_bytes;          /* 0: chosen here; equal on all ranks */
	uint32_t round_count;          /* 0 or 1: the schedule runs once; else over that many parts of each chunk */
	uint32_t mailbox;              /* 1: send through the tiny-message mailboxes (all_reduce, barrier) */
	char algorithm[24];
	uint32_t costs;                /* of what the caller chose the algorithm by: a hash that must be equal on all ranks; 0: of nothing */
	/*
	 * 1, all_to_all only: counts differ by pair, and no rank knows all of them. count and chunk_offsets are then this
	 * rank's own view: chunks s * world + d of which it is neither s nor d are empty. Each pair's two views are compared
	 * with its first slice: a mismatch where they differ. Only s and d may handle chunk s * world + d, and a row that
	 * travels has one chunk: RR_ERR_UNSUPPORTED otherwise.
	 */
	uint32_t paired;
	uint32_t check;                /* 1: each slice carries the CRC32C of this hop and of its origin, compared where it arrives: RR_ERR_CORRUPT; not with mailbox */
	uint32_t wide;                 /* 1: rows of this schedule, on any rank, carry float32 for 16-bit floats */
	/*
	 * 1: input and output lie in the memory of the communicator's device (rr_comm_use_device()), which combines them; equal
	 * on all ranks. A tiny message of a device goes as any other operation: mailbox is then ignored. wide, pieces and
	 * rounds are served as on the host.
	 */
	uint32_t on_device;
	uint32_t on_streams; /* 1, with on_device: as a list on streams; see rr_comm_use_lists() in rdmaring_lists.h */
} rr_plan_spec;

/* What one finished run did on this rank. Bytes are payload, headers apart. */
typedef struct rr_run_stats {
	uint64_t op;
	uint64_t steps;
	uint64_t sent_bytes;
	uint64_t received_bytes;
	uint64_t sent_slices;
	uint64_t received_slices;
	uint64_t elapsed_ns;
} rr_run_stats;

/* What one finished run moved over one link. */
typedef struct rr_link_stats {
	int32_t peer;
	uint32_t reserved;
	uint64_t sent_bytes;
	uint64_t received_bytes;
} rr_link_stats;

/* ---- errors ---- */

RR_API const char *rr_status_name(rr_status status);

/* What to do about any error of the kind; "" for kinds whose every record has a hint of its own. */
RR_API const char *rr_status_advice(rr_status status);
RR_API void rr_last_error(rr_error *out);

/* ---- communicators ---- */

RR_API rr_status rr_comm_create(int32_t rank, int32_t world, rr_exchange_fn exchange, void *user,
				const rr_options *options, rr_comm **out);
/*
 * Local and bounded: peers inside a call learn of it, nothing waits for them. When it returns the communicator is lost,
 * and calls of other threads inside it end; in a signal's handler that interrupted a call of this communicator it
 * leaves word, and that call ends so.
 */
RR_API rr_status rr_comm_abort(rr_comm *comm, const char *reason);
/*
 * Ends comm. What is in flight is aborted first, also a call of another thread; later calls, of plans and works, too,
 * return RR_ERR_CLOSED. Gives its maker's reference back: without another one comm is not there any more. In a child of
 * fork() it does nothing, as rr_plan_free(), and all else returns RR_ERR_FORKED: the child's copies of its descriptors were
 * closed when it was forked, and what it holds of the parent's communicator in memory stays until it ends.
 */
RR_API rr_status rr_comm_close(rr_comm *comm);
/*
 * Another reference, with which a thread may call while others close: comm is there, open or closed, until all are
 * released. Plans and works have one each: they are freed in any order.
 */
RR_API rr_status rr_comm_retain(rr_comm *comm);
RR_API void rr_comm_release(rr_comm *comm);
/* Nodes count from 0, in order of their first ranks; -1: no such rank. */
RR_API int32_t rr_comm_node(const rr_comm *comm, int32_t rank);
/* Connections that proved no membership, turned away since the beginning; of the last: where from, and why. Also once closed. */
RR_API uint64_t rr_comm_strangers(rr_comm *comm, char *last, size_t size);
/*
 * Take the oldest line for the program's log out of those that set-up and links have left, of what befell them and is no error. 0: there
 * is none. That shared memory was given up is told by the lowest rank of the node alone; rr_comm_link_facts() has it on each.
 */
RR_API int rr_comm_note(rr_comm *comm, char *text, size_t size);
/* What ranks must have in common to speak to each other: "rdmaring wire 2 page 2". */
RR_API const char *rr_wire_name(void);
RR_API rr_status rr_comm_link_facts(rr_comm *comm, int32_t peer, rr_link_facts *out);

/* ---- memory that peers read and write in place ---- */

/*
 * Zeroed pages of a memfd, shared with the ranks of this node on first use. Local. Private in a child of fork(), as ordinary
 * memory is: its stores stay its own; a page that it has not stored into may still show what the parent stores later.
 */
RR_API rr_status rr_memory_alloc(uint64_t bytes, void **out);
RR_API rr_status rr_memory_free(void *address);

/* ---- RDMA devices ---- */

/*
 * Devices, ports and GID tables of this machine as libibverbs shows them, each GID with the reason why it is
 * or is not used: JSON. text holds an empty string if size is too small: RR_ERR_ARGUMENT tells how much is needed.
 */
RR_API rr_status rr_verbs_describe(const rr_verbs_options *options, char *text, size_t size);

/* ---- schedules ---- */

/*
 * One rank's rows, every index checked; what they touch is checked when a plan is made of them. Not proven: Python's verify()
 * or `rdmaring schedule` does that. load: out of a file of all ranks' rows, so that what any rank could not bind (paired)
 * every rank refuses; of decoded rows only the rank whose they are does.
 */
RR_API rr_status rr_schedule_decode(const void *bytes, size_t size, int32_t rank, rr_schedule **out);
RR_API rr_status rr_schedule_load(const char *path, int32_t rank, rr_schedule **out);
RR_API uint32_t rr_schedule_chunk_count(const rr_schedule *schedule);
RR_API void rr_schedule_free(rr_schedule *schedule);

/* ---- plans and runs ---- */

RR_API rr_status rr_plan_create(rr_comm *comm, const rr_plan_spec *spec, rr_plan **out);
RR_API void rr_plan_free(rr_plan *plan);
/*
 * Run and wait, at most about 50 ms, so that a caller in an interpreter can look at its signals:
 * RR_AGAIN means the run goes on; call rr_comm_resume() until it says otherwise. Addresses are those
 * of the parts of the vector that this rank holds. timeout_ns 0: the communicator's.
 */
RR_API rr_status rr_plan_run(rr_plan *plan, const void *input, void *output, uint64_t timeout_ns);
/* In place, with the communicator's time-out: the call with the fewest arguments. */
RR_API rr_status rr_plan_run_here(rr_plan *plan, void *buffer);
/* Over extents, which may be dropped when the run has ended; RR_AGAIN as above. */
RR_API rr_status rr_plan_run_lists(rr_plan *plan, const rr_extent *input, uint32_t input_count,
				   const rr_extent *output, uint32_t output_count, uint64_t timeout_ns);
RR_API rr_status rr_comm_resume(rr_comm *comm);
/* Fixes the buffers of rr_plan_call(); they stay the caller's. */
RR_API rr_status rr_plan_bind(rr_plan *plan, const void *input, void *output);
RR_API rr_status rr_plan_call(rr_plan *plan);
/* Start a run over extents that goes on by the progress thread. work is the caller's to free. */
RR_API rr_status rr_plan_start(rr_plan *plan, const rr_extent *input, uint32_t input_count,
			       const rr_extent *output, uint32_t output_count, uint64_t timeout_ns,
			       rr_work **out);
/*
 * A message of two ranks, outside the order of runs: the k-th send of one rank to another meets the k-th recv there, of
 * equal count and dtype. The buffer is in use until the work is done. background: 1: the progress thread goes on with it;
 * 0: rr_work_wait() does. work is the caller's to free.
 */
RR_API rr_status rr_send_start(rr_comm *comm, int32_t peer, const void *data, uint64_t count, int32_t dtype,
			       uint64_t timeout_ns, int32_t background, rr_work **out);
RR_API rr_status rr_recv_start(rr_comm *comm, int32_t peer, void *data, uint64_t count, int32_t dtype,
			       uint64_t timeout_ns, int32_t background, rr_work **out);
/* Waits at most wait_ns: RR_AGAIN if the run goes on. A run's error is returned each time. */
RR_API rr_status rr_work_wait(rr_work *work, uint64_t wait_ns);
RR_API rr_status rr_work_stats(const rr_work *work, rr_run_stats *out);
RR_API rr_status rr_work_link_stats(const rr_work *work, int32_t peer, rr_link_stats *out);
/* RR_AGAIN while the run goes on; then it stays, and the buffers too. */
RR_API rr_status rr_work_free(rr_work *work);
/* Of the communicator's last finished run. */
RR_API rr_status rr_comm_last_stats(rr_comm *comm, rr_run_stats *out);
RR_API rr_status rr_comm_last_link_stats(rr_comm *comm, int32_t peer, rr_link_stats *out);

/* ---- tracing: what this rank did with each slice, and when ---- */

typedef enum rr_trace_kind {
	RR_TRACE_OPERATION = 0, /* from the call (or the start in the queue) to its end; detail: rr_collective */
	RR_TRACE_OPEN = 1,      /* waiting for `peer` to enter the operation: a late rank */
	RR_TRACE_RECEIVE = 2,   /* a row asked for a slice of `peer`, until the slice was here: a wait, except that
				   modes cma and stream copy in it */
	RR_TRACE_REDUCE = 3,    /* one pass over memory that adds (and stores, and fills what is sent) */
	RR_TRACE_COPY = 4,      /* one pass that only copies; peer -1: for the row, else into that peer's slot */
	RR_TRACE_SEND = 5,      /* handed to the link, until `peer` gave it back (TCP: until the kernel has it) */
	RR_TRACE_CREDIT = 6,    /* waiting for room in the link to `peer` */
	RR_TRACE_DRAIN = 7      /* all done here; `peer` still reads this rank's memory */
} rr_trace_kind;

typedef enum rr_trace_flag {
	RR_TRACE_LEFT = 1,         /* it had not ended when this rank left the operation: end_ns is when it left */
	RR_TRACE_CHANNEL_SHIFT = 8 /* not a flag: above it stands the channel of the link */
} rr_trace_flag;

/* One stretch of time. Times are CLOCK_MONOTONIC of this host. */
typedef struct rr_trace_record {
	uint64_t begin_ns;
	uint64_t end_ns;
	uint64_t bytes; /* payload; of an operation: of the whole vector; of OPEN and DRAIN: 0 */
	uint32_t op;    /* modulo 2^32 */
	int32_t row;    /* of the schedule, -1 where there is none */
	uint32_t order; /* RECEIVE, SEND, CREDIT, COPY into a slot: this is the order-th row on its link in this operation: a SEND and
			   its RECEIVE have equal op, channel, order and slice */
	uint32_t slice;
	int32_t peer;   /* -1 where there is none */
	uint8_t kind;   /* rr_trace_kind */
	uint8_t detail; /* SEND, RECEIVE: 0 through a slot, 1 read in place, 2 written in place, 3 cma, 4 stream */
	uint16_t flags; /* rr_trace_flag */
} rr_trace_record;

/*
 * Note what the engine does from now on. Local: the other ranks need not trace. record_count (rounded up to
 * a power of two; 0: 131072, which are 6 MiB) is how many records are kept: then the oldest make room.
 * Records of an earlier trace that were not read are forgotten.
 */
RR_API rr_status rr_trace_start(rr_comm *comm, uint64_t record_count);
/* No more records; those there are stay to be read. Nothing where tracing is off. */
RR_API rr_status rr_trace_stop(rr_comm *comm);
/*
 * Take the oldest records, at most `room`, in the order in which they ended; *count: how many were copied to
 * `out`, *lost: how many could not be kept since rr_trace_start(). May be called while tracing is on, and on
 * a communicator that is lost.
 */
RR_API rr_status rr_trace_read(rr_comm *comm, rr_trace_record *out, uint64_t room, uint64_t *count, uint64_t *lost);

/* ---- vectors in GPU memory ---- */

/* A function of the CUDA driver that rr_cuda_open() asks for. */
typedef struct rr_cuda_want {
	char name[48];   /* "cuMemcpyAsync": as cuGetProcAddress() takes it, without a suffix */
	int32_t version; /* and the version to ask for: 11070 is CUDA 11.7. Another one may have another signature */
	int32_t needed;  /* 0: may be missing; what it serves is then refused where it is asked for */
} rr_cuda_want;

typedef struct rr_cuda_entry {
	const char *name;
	void *address; /* NULL: the driver has none */
} rr_cuda_entry;

typedef struct rr_cuda rr_cuda;

RR_API uint32_t rr_cuda_want_count(void);
RR_API rr_status rr_cuda_want_at(uint32_t index, rr_cuda_want *out);
/*
 * The driver as C calls it: one address for each function that is wanted, in any order; others are not looked at.
 * RR_ERR_UNSUPPORTED names the first needed one that is missing. One table serves a process; it stays while a device
 * of it is open.
 */
RR_API rr_status rr_cuda_open(const rr_cuda_entry *entries, uint32_t count, rr_cuda **out);
RR_API void rr_cuda_close(rr_cuda *cuda);

/* Zero a member to take its default. */
typedef struct rr_cuda_spec {
	rr_cuda *cuda;
	void *context;       /* CUcontext, retained by the caller until the device and its communicators are closed */
	int32_t ordinal;     /* of the device in this process: for errors */
	uint32_t blocks_max; /* of one launch; default 256. Twice the number of multiprocessors is a good choice */
} rr_cuda_spec;

/* What a device did since it was opened, on behalf of all communicators that use it. */
typedef struct rr_device_facts {
	uint64_t launches;     /* of kernels */
	uint64_t copies;       /* by the driver's copy */
	uint64_t copied_bytes; /* by these */
	uint64_t events;       /* recorded: one a pass */
	uint64_t queries;      /* of events */
	uint64_t pinned_ranges; /* host memory of links that the device reads and writes in place now */
	uint64_t pinned_bytes;
	uint64_t scratch_bytes; /* GPU memory of its own: partial sums of passes over many sources */
} rr_device_facts;

/* Opens a stream of its own, non-blocking, in the context. */
RR_API rr_status rr_device_open_cuda(const rr_cuda_spec *spec, rr_device **out);
/* When the last communicator that uses it is closed, it waits until the GPU has done what was issued, and is gone. */
RR_API rr_status rr_device_close(rr_device *device);
/*
 * The kernel (CUfunction) that combines `dtype` by `redop`: rr_<redop>_<dtype> of native/kernels. RR_AVG is RR_SUM's. Set
 * before a plan of that dtype and redop is made on the device (copies take RR_SUM's), and valid until
 * rr_device_close(); a later one replaces it.
 */
RR_API rr_status rr_device_set_kernel(rr_device *device, int32_t dtype, int32_t redop, void *function);
/*
 * What the device does for operations that are started from now on comes after all that is in `stream` (CUstream; NULL:
 * the legacy default stream) now: the producer of an input. Does not block. When a run has ended, its results are
 * there for every stream.
 */
RR_API rr_status rr_device_after(rr_device *device, void *stream);
RR_API rr_status rr_device_facts_of(const rr_device *device, rr_device_facts *out);
/*
 * The device of plans with on_device; once a communicator, before the first of them. It is used until
 * rr_comm_close(); several communicators may use one. Local.
 */
RR_API rr_status rr_comm_use_device(rr_comm *comm, rr_device *device);

/* ---- a simulated world: the same engine over links of a seeded, virtual clock ---- */

/* What the simulated machine is like. Times are virtual nanoseconds; zero is instantaneous. */
typedef struct rr_sim_spec {
	uint64_t seed;
	uint64_t latency_ns;           /* of a message, at least */
	uint64_t jitter_ns;            /* and up to so much more, per message; a link keeps its order */
	uint64_t transfer_ps_per_byte; /* of a link, one transfer after the other */
	uint64_t combine_ps_per_byte;  /* of a rank's device, one pass after the other */
	uint64_t stall_ns;             /* a rank now and then does nothing for up to so long */
	uint64_t slot_bytes;
	uint32_t slot_count;  /* credit of a link */
	uint32_t registered;  /* 0: no buffer, 1: all, 2: by seed, each buffer of each rank */
	int32_t kill_rank;    /* -1: none */
	uint32_t operations;  /* the plan runs so many times, on the outputs of the run before */
	uint32_t channels;    /* links an edge; 0: one */
	uint64_t kill_ns;
	uint64_t detect_ns;   /* after which the others' links know of the death */
	uint64_t corrupt_transfer; /* n > 0: of the n-th transfer (or the next that goes by slot or lands) one bit is turned on the way */
	/*
	 * n > 0, of a plan that checks: at the end of the n-th turn of a rank that keeps sums of what lies in its output, or its
	 * scratch memory, or the next, one bit of it is turned there.
	 */
	uint64_t damage_turn;
	uint32_t damage_scratch; /* 0: of the output; 1: of scratch memory */
} rr_sim_spec;

typedef struct rr_sim_result {
	uint64_t elapsed_ns;
	uint64_t transfers;
	uint64_t transfer_bytes;
	uint64_t busiest_link_ns;   /* time for which the busiest link was sending */
	uint64_t busiest_device_ns; /* and the busiest device combining */
	int32_t stuck_rank;         /* of a deadlock, else -1 */
	int32_t stuck_row;
	int32_t finished;           /* ranks that ended well */
	int32_t failed;             /* ranks that ended with an error */
	int32_t blamed;             /* the peer that the first error names, or -1 */
	int32_t corrupted;          /* 1: a bit was turned */
	int32_t damaged_rank;       /* in whose memory, or -1 */
	uint64_t damaged_at;        /* and at which coordinate */
} rr_sim_result;

/*
 * Runs one plan on all ranks in this thread. schedules[r], inputs[r], outputs[r]: rank r's, as for
 * rr_plan_run(); plan_spec->schedule is not looked at. RR_ERR_TIMEOUT: a deadlock, result says where.
 * Links are stricter than real ones: slots are overwritten when released, writes in place land early
 * or late, passes run early or late, by seed.
 */
RR_API rr_status rr_sim_run(int32_t world, const rr_sim_spec *spec, const rr_plan_spec *plan_spec,
			    const rr_schedule *const *schedules, void *const *inputs, void *const *outputs,
			    rr_sim_result *out);

/* ---- reductions, by themselves ---- */

/* The widest instruction set in use: "scalar", "x86-64-v3", "x86-64-v4". */
RR_API const char *rr_simd_name(void);
/* Version, compiler and machine of this library, such as "1.2.0 by gcc 12.2.0 for x86-64". */
RR_API const char *rr_build_name(void);
/* dst = op over source_count vectors, then times scale (avg: then also over `ranks`). level 0: scalar. */
RR_API rr_status rr_reduce_apply(int32_t dtype, int32_t redop, void *dst, const void *const *sources,
				 uint32_t source_count, uint64_t count, double scale, int32_t level);
/* The first element that is a NaN or an infinity, counted from 0; -1: none. */
RR_API rr_status rr_first_nonfinite(int32_t dtype, const void *vector, uint64_t count, int64_t *index);

/* [cdef-end] */

#ifdef __cplusplus
}
#endif
#endif
