/*
 * rdmaring_lists.h - plans as lists of operations on streams: on CUDA, and by themselves for tests.
 *
 * A list is a plan's rows in one order that all ranks share, made once and emitted at every call with the same operations:
 * waits for flags, copies, kernels, flags. rdmaring/schedule/enqueue_proof.py proves the order for a schedule. Threads,
 * status and memory as rdmaring.h says.
 */
#ifndef RDMARING_LISTS_H
#define RDMARING_LISTS_H

#include "rdmaring.h"

#ifdef __cplusplus
extern "C" {
#endif

/* [cdef-begin] what stands between these marks is also what Python sees */

/* ---- lists by themselves: its lists, and their execution in a seeded order ---- */

/* What may be planted in the lists: each must be found. */
typedef enum rr_enqueue_fault {
	RR_FAULT_NONE = 0,
	RR_FAULT_READY_UNAWAITED = 1,  /* a receive does not wait for its data */
	RR_FAULT_CREDIT_UNAWAITED = 2, /* a send does not wait for its slot */
	RR_FAULT_FLAG_KEPT = 3,        /* a flag is not reset after the wait */
	RR_FAULT_PASS_UNAWAITED = 4,   /* a send does not wait for the pass that makes its bytes */
	RR_FAULT_INPUT_UNAWAITED = 5,  /* nor for the caller's input */
	RR_FAULT_OUTPUT_UNAWAITED = 6, /* the caller does not wait for a stream */
	RR_FAULT_EARLY_CREDIT = 7,     /* a slot is given back before it is read */
	RR_FAULT_EARLY_READY = 8,      /* a slot is announced before it is filled */
	RR_FAULT_SEND_UNAWAITED = 9,   /* a pass does not wait for the send whose bytes it overwrites */
	RR_FAULT_RECEIVES_FIRST = 10   /* everywhere: shows where all streams share one queue */
} rr_enqueue_fault;

typedef struct rr_enqueue_sim_spec {
	uint64_t seed;
	uint64_t slot_bytes;
	uint32_t slot_count;
	uint32_t channels;   /* links an edge, each with two streams; 0: one */
	uint32_t operations; /* the list is emitted so many times; 0: once */
	uint32_t one_queue;  /* 1: all streams of a rank share one queue */
	int32_t fault;       /* rr_enqueue_fault */
	uint32_t fault_at;   /* which of its possible places, counted over all ranks */
} rr_enqueue_sim_spec;

typedef struct rr_enqueue_sim_result {
	uint64_t calls;        /* on streams, of all ranks and operations */
	uint64_t copied_bytes; /* into slots */
	uint64_t fault_places; /* how many places the fault has */
	uint64_t races;        /* accesses that neither flags nor events order, and signals lost */
	int32_t stuck_rank;    /* of a deadlock, else -1 */
	char race[256];        /* the first one */
} rr_enqueue_sim_result;

/*
 * Records the lists of all ranks and executes them in this thread; arguments as of rr_sim_run(), but every operation
 * reads the inputs anew. RR_ERR_TIMEOUT: a deadlock. RR_ERR_PROTOCOL: a list differs between calls.
 */
RR_API rr_status rr_enqueue_sim_run(int32_t world, const rr_enqueue_sim_spec *spec, const rr_plan_spec *plan_spec,
				    const rr_schedule *const *schedules, void *const *inputs, void *const *outputs,
				    rr_enqueue_sim_result *out);

/* One item of a rank's list. */
typedef struct rr_enqueue_listed {
	uint32_t round;
	uint32_t row;
	uint32_t slice;
	int32_t send;    /* of the row's sends; -1: the pass */
	uint32_t stream; /* 2 * channel, plus 1 of a send */
	uint32_t after_count;
	uint32_t after[8]; /* earlier items of other streams that it waits for */
} rr_enqueue_listed;

/* The items of one rank in their order. RR_ERR_ARGUMENT: there are more than `room`. */
RR_API rr_status rr_enqueue_list(int32_t rank, int32_t world, uint64_t slot_bytes, uint32_t channels,
				 const rr_plan_spec *spec, rr_enqueue_listed *out, uint64_t room, uint64_t *count);

/* ---- a plan as one list on CUDA streams, between ranks that map each other's GPU memory ---- */

/*
 * Each rank has a block of GPU memory that the others map (cuIpcOpenMemHandle): slots and flags of all its edges, laid out
 * alike everywhere. slot_bytes is a multiple of 4096.
 */
typedef struct rr_cuda_block {
	uint32_t world;
	uint32_t channels;   /* links an edge, each with two streams */
	uint32_t slot_count; /* of a link */
	uint32_t reserved;
	uint64_t slot_bytes;
} rr_cuda_block;

/* Bytes of one rank's block; 0: a member is out of range. */
RR_API uint64_t rr_cuda_block_bytes(const rr_cuda_block *block);
/* Bytes of its flags, which may lie in host memory instead; 0: a member is out of range. */
RR_API uint64_t rr_cuda_block_flag_bytes(const rr_cuda_block *block);
/*
 * Set this rank's own block to the state before the first list: waits until that is done. All ranks call it before any of
 * them emits, and again before lists are used after an abort.
 */
RR_API rr_status rr_cuda_block_reset(rr_cuda *cuda, void *context, const rr_cuda_block *block, uint64_t address);
/* The same for own flags in host memory (rr_cuda_list_spec.own_flags). */
RR_API rr_status rr_cuda_flags_reset(const rr_cuda_block *block, void *own_flags);

typedef struct rr_cuda_list rr_cuda_list;

typedef struct rr_cuda_list_spec {
	rr_cuda *cuda;         /* stays until rr_cuda_list_free(); with memory operations on streams */
	void *context;         /* CUcontext; likewise */
	int32_t rank;
	int32_t world;
	const rr_plan_spec *plan; /* not kept. mailbox and paired are refused */
	const rr_cuda_block *block;
	const uint64_t *blocks; /* [world] each rank's block as this process maps it; only those of peers in the schedule are used */
	void *kernel;           /* CUfunction rr_<redop>_<dtype>; NULL where nothing is combined or scaled */
	uint32_t blocks_max;    /* of one launch; 0: 256 */
	uint32_t copied_flags;  /* 1: peers' flags are written by copies of 4 bytes, 0: by memory operations */
	/*
	 * [world] Where a rank's flags lie as the GPU has them here: rr_cuda_block_flag_bytes() of host memory that all ranks
	 * map and have registered (cuMemHostRegister); 0: in front of its block. NULL: all are.
	 */
	const uint64_t *flags;
	void *own_flags; /* flags[rank] as the host has it, set by rr_cuda_flags_reset(); NULL where that is 0 */
} rr_cuda_list_spec;

typedef struct rr_cuda_list_facts {
	uint64_t scratch_bytes; /* of GPU memory that rr_cuda_list_emit() needs */
	uint64_t items;         /* passes and sends */
	uint64_t events;
	uint64_t streams;
	uint64_t calls;         /* to the driver, since it was made */
	uint64_t emitted;       /* lists */
} rr_cuda_list_facts;

/*
 * Local. Ranks must have agreed on the plan before they emit: nothing compares it afterwards. Lists that share a block
 * are emitted in the same order on all ranks, each behind the one before in stream order.
 */
RR_API rr_status rr_cuda_list_create(const rr_cuda_list_spec *spec, rr_cuda_list **out);
RR_API rr_status rr_cuda_list_facts_of(const rr_cuda_list *list, rr_cuda_list_facts *out);
/*
 * Append the list behind what is in `stream` now; `stream` goes on behind it. Does not block, allocates nothing, and makes
 * the same calls each time: it may be captured. input, output, scratch: GPU addresses of the parts of the vector
 * that this rank holds, in use until `stream` has come past the list. One thread at a time.
 */
RR_API rr_status rr_cuda_list_emit(rr_cuda_list *list, uint64_t input, uint64_t output, uint64_t scratch, void *stream);
/* RR_AGAIN: what was emitted last has not ended. Not of lists that were captured. */
RR_API rr_status rr_cuda_list_ended(rr_cuda_list *list);
/*
 * Release every wait of what was emitted until all has ended or timeout_ns is over: then RR_ERR_TIMEOUT. Own flags in host
 * memory are released by stores of the host. Those in GPU memory take a stream, which gets nowhere where all streams of the
 * process share one hardware queue: after RR_ERR_TIMEOUT it may still store into the own block, when the queue moves again.
 * Results are worthless afterwards, and the blocks (and flags) of all ranks want a reset.
 */
RR_API rr_status rr_cuda_list_abort(rr_cuda_list *list, uint64_t timeout_ns);
/* RR_ERR_ARGUMENT while what was emitted has not ended; abort it first. */
RR_API rr_status rr_cuda_list_free(rr_cuda_list *list);

/* ---- the lists of a communicator: plans with on_streams ---- */

typedef struct rr_lists rr_lists;

typedef struct rr_lists_spec {
	rr_device *device; /* of rr_device_open_cuda(), on which blocks are mapped; it has the kernels */
	int32_t rank;
	int32_t world;
	const rr_cuda_block *block; /* equal on all ranks */
	const uint64_t *blocks;     /* [world] as of rr_cuda_list_spec; each reset before any rank starts a plan */
	const uint64_t *flags;      /* as of rr_cuda_list_spec */
	void *own_flags;            /* likewise, but set by rr_lists_open() */
	uint32_t copied_flags;      /* as of rr_cuda_list_spec */
	uint32_t reserved;
	/*
	 * [world] A rank's place among those of the block, whose number is then that of the ranks which share memory; -1: it is on another
	 * node, and the communicator's driver carries slices between pinned slots and the link to it. blocks and flags are by rank in
	 * either case. NULL: all share memory.
	 */
	const int32_t *places;
} rr_lists_spec;

/* Streams (CUstream; NULL: the legacy default stream) of the caller. */
typedef struct rr_list_streams {
	void *before;       /* behind what it holds now the operation runs */
	void *const *after; /* these go on behind the operation */
	uint32_t after_count;
	uint32_t reserved;
} rr_list_streams;

typedef struct rr_lists_facts {
	uint64_t calls;         /* to the driver, of all emissions */
	uint64_t emitted;       /* lists, without captured ones */
	uint64_t captured;
	uint64_t ended;         /* of those emitted */
	uint64_t streams;
	uint64_t events;
	uint64_t scratch_bytes; /* of GPU memory */
	uint64_t pinned_bytes;  /* of host memory: slots of edges that are carried */
} rr_lists_facts;

/*
 * Two streams a channel, in the device's context. The driver must have memory operations on streams. Local. After an
 * operation has failed the waits of all lists are released until they have run to their end, where lists were captured
 * until rr_lists_close(): results are worthless then, but no stream hangs. Flags in host memory are released by stores of
 * the host, others by a stream: that one must have a hardware queue without waits (CUDA_DEVICE_MAX_CONNECTIONS).
 */
RR_API rr_status rr_lists_open(const rr_lists_spec *spec, rr_lists **out);
/*
 * Behind rr_comm_close(). RR_ERR_TIMEOUT: something of it still runs, as where work of the caller's before it does not end:
 * then nothing is freed, and all that the spec names must stay.
 */
RR_API rr_status rr_lists_close(rr_lists *lists);
RR_API rr_status rr_lists_facts_of(const rr_lists *lists, rr_lists_facts *out);

/* What the host does to pinned memory that streams use, too, where it carries slices between nodes. */
typedef enum rr_carried_access {
	RR_CARRIED_TAKES = 0, /* a flag was seen set, and is reset */
	RR_CARRIED_SETS = 1,  /* a flag is about to be set */
	RR_CARRIED_READS = 2, /* a slot is given to a link, which may read it until the slot's credit is set */
	RR_CARRIED_WRITES = 3 /* a slot has been filled from a link */
} rr_carried_access;

typedef void (*rr_carried_watch)(int32_t access, const void *address, uint64_t bytes);

/* For checkers of races: told of each such access of this process, in the thread that makes it, in its order. NULL: nobody is. */
RR_API void rr_lists_watch(rr_carried_watch watch);

/* The lists of plans with on_streams; once a communicator, whose device is theirs. Local. */
RR_API rr_status rr_comm_use_lists(rr_comm *comm, rr_lists *lists);
/*
 * Start a plan with on_streams; see rr_plan_start(). The list is put into streams at once, and begins when the driver has
 * seen that all ranks called alike. Never waits for a GPU. The work ends when the list has; rr_work_free() may wait till then.
 *
 * Where `before` is captured, so is the list: the work compares descriptors, moves nothing and ends; each
 * launch of the graph runs the list, which is then ordered among the communicator's operations by the caller, alike
 * on all ranks, and needs the communicator.
 */
RR_API rr_status rr_plan_start_on(rr_plan *plan, const rr_extent *input, uint32_t input_count, const rr_extent *output,
				  uint32_t output_count, const rr_list_streams *streams, uint64_t timeout_ns, rr_work **out);
/* What is put into `stream` from now on runs behind the operation. Not of captured ones; before rr_comm_close(). */
RR_API rr_status rr_work_order(rr_work *work, void *stream);

/* [cdef-end] */

#ifdef __cplusplus
}
#endif
#endif
