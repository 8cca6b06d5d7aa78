/*
 * comm.h - the inside of a communicator: its node, engine, mailbox, and the queue of its operations.
 *
 *   comm.c       made
 *   lifetime.c   who may be inside, aborted, closed
 *   setup.c      how its ranks meet
 *   keep.c       inputs that are overwritten: kept while their operation runs
 *   operation.c  operations one after another: started, progressed, finished
 *   watch.c      what a waiting rank looks at: aborts, deaths, other ranks' errors, time
 *   drive.c      who progresses: a blocking call, a wait, or the process's progress thread
 *
 * Whoever has set `driver` may touch everything here but what is named atomic.
 */
#ifndef RR_COMM_H
#define RR_COMM_H

#include <stdbool.h>

#include "engine.h"
#include "far.h"
#include "mailbox.h"
#include "message.h"
#include "shm.h"
#include "stream_lists.h"
#include "wait.h"

enum rr_work_state { RR_WORK_QUEUED = 0, RR_WORK_RUNNING = 1, RR_WORK_DONE = 2 };

enum rr_ending {
	RR_OPEN = 0,
	RR_ENDS = 1,      /* close() waits for the driver, or has it */
	RR_ENDS_HERE = 2  /* close() came from inside the driver's call: its driver ends it when it leaves */
};
#define RR_DRIVER_LAST UINT64_MAX

/* One operation, in flight or done. */
struct rr_work {
	struct rr_comm *comm;
	struct rr_plan *plan; /* NULL: a message */
	struct rr_message message;
	int32_t world;
	uint64_t op;
	struct rr_emission emission; /* of a plan with a list */
	struct rr_buffer input, output;
	const void *input_address; /* of one piece: of the first byte this rank holds */
	void *output_address;
	rr_extent *extents; /* of several pieces: input's, then output's */
	uint64_t *starts;
	uint64_t deadline_ns;
	uint64_t started_ns;
	_Atomic uint32_t state; /* enum rr_work_state; DONE is published last */
	rr_status status;
	rr_error error;
	rr_run_stats stats;
	rr_link_stats *link_stats; /* [world] of an asynchronous work; NULL of a blocking call */
	struct rr_work *next;
};

struct rr_comm {
	int32_t rank, world;
	rr_options options;
	uint32_t far_slot_count; /* of an edge over verbs */
	struct rr_spin spin;
	struct rr_shm shm;        /* the ranks of this node */
	struct rr_far *far;       /* those of others; NULL where there are none */
	const struct rr_message_transport *transport; /* that serves edges to far ranks; NULL: our own do */
	void *transport_library;  /* it comes from; NULL: from the caller */
	int32_t *node;            /* [world] */
	uint32_t *edge_channels;  /* [world] links of operations to each rank */
	struct rr_page **pages;   /* [world]: of near ranks their own, of far ranks the mirror */
	struct rr_messages *messages; /* NULL before the first */
	struct rr_link **message_out, **message_in; /* [world]: of messages of two ranks; the engine has those of operations */
	char (*not_verbs)[192];   /* [world] why an edge between nodes is not served by RDMA */
	char apart[256];          /* why ranks that tell of this host are not of this node */
	bool apart_told;          /* for the program's log */
	uint64_t setup_until_ns;  /* when it is to be made at last */
	struct rr_engine engine;
	struct rr_trace *trace; /* the last one started; the engine has it while tracing is on */
	struct rr_mailbox mailbox;
	/* the queue, in call order */
	struct rr_work *first, *last;
	struct rr_work call; /* the blocking call's */
	uint64_t op;         /* the last one given out; ops count from 1 */
	/* scratch: registered, grown on demand */
	void *scratch;
	uint64_t scratch_bytes;
	/* keep.c */
	char *kept;                    /* the input that the operation in flight overwrites; NULL before the first */
	uint64_t kept_room;
	const struct rr_work *kept_of; /* NULL: nothing is kept now */
	struct rr_device *device; /* of plans with on_device; NULL: none yet */
	struct rr_lists *lists;   /* of plans with on_streams; NULL: none */
	void *device_scratch;     /* in its memory */
	uint64_t device_scratch_bytes;
	uint32_t descriptor_next;
	/* of the last finished operation */
	rr_run_stats stats;
	uint64_t *sent_before, *received_before; /* [world] link bytes when it began */
	rr_link_stats *link_stats;               /* [world] */
	bool last_mailbox;                       /* the last operation was one: each peer got its bytes */
	uint64_t last_mailbox_bytes;
	uint64_t mailbox_sent_bytes;             /* since the beginning, to each peer */
	uint64_t mailbox_sent_slices;
	/* what the page says of waiting */
	struct rr_comm *judged_next; /* under judge.c's lock */
	bool judged; /* the pages of this process say that it waits in this communicator */
	uint64_t judged_position;
	uint64_t judged_told_ns;
	struct rr_pacing *pacing; /* judge_pace.c; NULL before the first look */
	uint64_t doubt_op, doubt_until_ns; /* judge_time.c: the operation whose time-out waits for others' answers */
	/* failure */
	bool failed;
	rr_error failure; /* once failed */
	_Atomic uint64_t abort_wanted; /* lifetime.c */
	char abort_reason[256];
	/* its life; the struct and what never changes stay until the last reference is released */
	uint64_t number;             /* never given twice in a process, as an address is */
	_Atomic uint32_t references; /* its maker's until close(), callers', plans', works', the progress thread's */
	_Atomic uint32_t ending;     /* enum rr_ending */
	_Atomic uint32_t holders;    /* of what has a lock of its own: the end waits for them */
	uint64_t strangers;          /* once closed: what rr_comm_strangers() tells then */
	char stranger[160];
	/* driving */
	_Atomic uint64_t driver;    /* the number of the thread that drives; 0: nobody; RR_DRIVER_LAST: none any more */
	_Atomic uint32_t callers;   /* that wait to drive: the progress thread stands back */
	_Atomic uint32_t unfinished; /* works not DONE */
	uint64_t process_mark;      /* of the process that made it; see forked.h */
	_Atomic uint32_t listed;     /* the progress thread has it on its list */
	struct rr_comm *thread_next;
};

/* setup.c */
rr_status rr_setup(struct rr_comm *comm, rr_exchange_fn exchange, void *user);

/*
 * comm.c: the links by which this rank and `peer` exchange messages outside the order of operations, closed with the
 * communicator. No OPEN goes over them, so modes are SLOT (shm, verbs) and STREAM. On shared memory their slots
 * together have slot_bytes: two slices in flight are of half of that. Whoever uses them calls progress() where
 * they have it, and flush() after a commit or a release.
 */
rr_status rr_comm_message_links(struct rr_comm *comm, int32_t peer, struct rr_link **out, struct rr_link **in);
/* On what a driver of it sleeps; see wait.h. */
static inline int rr_comm_sleeper(const struct rr_comm *comm)
{
	return comm->far ? rr_far_sleeper(comm->far) : -1;
}

/* How often it yields before that; 0: the default. */
static inline uint32_t rr_comm_yields(const struct rr_comm *comm)
{
	return comm->far ? rr_far_passes(comm->far) : 0;
}

/* Wake all near ranks that sleep; far ones are woken by their kernels. */
void rr_comm_wake_all(struct rr_comm *comm);
/* Payload since the beginning over all channels of the edge to `peer`. */
rr_link_stats rr_comm_moved(const struct rr_comm *comm, int32_t peer);
/* What the last finished operation moved to and from each rank. */
rr_link_stats rr_comm_link_stats(const struct rr_comm *comm, int32_t peer);
rr_status rr_comm_scratch(struct rr_comm *comm, uint64_t bytes);
rr_status rr_comm_device_scratch(struct rr_comm *comm, uint64_t bytes);

/* lifetime.c */
/* A call of the caller's: take the driver, to be left by rr_drive_leave(). Refused: in a forked child, of one that is closed or lost. */
rr_status rr_comm_begin(struct rr_comm *comm);
/* Also of one that is lost. */
rr_status rr_comm_begin_lost(struct rr_comm *comm);
/* For what has a lock of its own: nothing is given back until rr_comm_let_go(). False: closed, or a forked child. */
bool rr_comm_hold(struct rr_comm *comm);
void rr_comm_let_go(struct rr_comm *comm);
/* RR_ERR_FORKED in a child of the process that made it. */
rr_status rr_comm_here(const struct rr_comm *comm);
/* RR_ERR_CLOSED, in words. */
rr_status rr_comm_closed(const struct rr_comm *comm);
/* Why it must be lost: abort() or close() was called; NULL: it need not. */
const char *rr_comm_doomed(const struct rr_comm *comm);
/* All that peers, files and memory are. */
void rr_comm_give_back(struct rr_comm *comm);
/* By its last driver. */
void rr_comm_end(struct rr_comm *comm);

/* run.c: extents of a run over lists */
void rr_run_forget_lists(struct rr_work *work);
/* run.c: an asynchronous work, which references its communicator. NULL: no memory, which is said. */
struct rr_work *rr_work_make(struct rr_comm *comm);
void rr_work_unmake(struct rr_work *work);

/* operation.c */
void rr_operation_enqueue(struct rr_comm *comm, struct rr_work *work);
/* RR_AGAIN while works are unfinished, RR_OK when none is. Errors end all works and are kept in them. */
rr_status rr_operation_progress(struct rr_comm *comm, bool *moved);
/* How a peer reaches a buffer of one piece; RR_AGAIN: a peer could not be told yet. */
rr_status rr_operation_place(struct rr_comm *comm, const void *address, uint64_t bytes, uint64_t begin,
			     struct rr_place *out);

/* judge.c */
/* Its page is made, until rr_judge_end(). */
void rr_judge_begin(struct rr_comm *comm);
void rr_judge_end(struct rr_comm *comm);
/* Write what this rank waits in into its page. */
void rr_judge_waits(struct rr_comm *comm);
/* An operation has ended that had waited so long. */
void rr_judge_moves(struct rr_comm *comm);
/* judge_pace.c: which edge is under way, sampled when this rank looks around while it waits. waits: as in its page. */
void rr_judge_pace(struct rr_comm *comm, const uint64_t waits[2], uint64_t now_ns);
void rr_judge_pace_end(struct rr_comm *comm);
/* Records of all ranks, to be freed; NULL without memory. */
rr_rank_seen *rr_judge_see(struct rr_comm *comm);
/* Both for rr_far_neighbours(). user: the communicator. */
bool rr_judge_neighbour(void *user, int32_t peer, struct rr_neighbour *out);
uint32_t rr_judge_sent(void *user, int32_t peer, uint32_t channel);
/* judge_time.c: whether other nodes are still asked why the work does not get on, before its time-out is judged. */
bool rr_judge_doubts(struct rr_comm *comm, const struct rr_work *work);
/* judge_time.c: a time-out of another rank whose verdict says less than what is seen from here. True: *verdict is better now. */
bool rr_judge_improves(struct rr_comm *comm, const struct rr_work *work, rr_verdict *verdict);
/* The verdict of an error that this rank has found; work: in which, or NULL. */
void rr_judge(struct rr_comm *comm, const struct rr_work *work, rr_error *error);

/* keep.c: of options.restore. Reserve before the work is enqueued, take when it starts, put back when it has failed. */
rr_status rr_keep_reserve(struct rr_comm *comm, const struct rr_work *work);
void rr_keep_take(struct rr_comm *comm, const struct rr_work *work);
void rr_keep_put_back(struct rr_comm *comm);

/* watch.c */
/* Look around, after something may have come; an error found here fails the communicator. */
void rr_watch_look(struct rr_comm *comm);
/* The communicator is lost: end all works, tell the page, quarantine. The first error stays. */
void rr_watch_fail(struct rr_comm *comm, const rr_error *error);
/* Of the edge to a peer, as errors name it. */
const char *rr_watch_transport(const struct rr_comm *comm, int32_t peer);
/* The text of a mismatch with `peer` in `op`, from both pages, as this thread's record. */
void rr_watch_mismatch(struct rr_comm *comm, int32_t peer, uint64_t op);

/* watch_cause.c */
/* The error of a rank that has failed, as this rank raises it. */
void rr_watch_take_over(const struct rr_comm *comm, int32_t r, rr_error *error);
/* A rank that has failed, though it be through with our operation, or -1. first: is looked at first. */
int32_t rr_watch_find_failed(const struct rr_comm *comm, int32_t first);
/*
 * A peer that fails or closes ends its links, and with them what it had sent and this rank has not read: then the cause is
 * the peer's. True: *error is another rank's.
 */
bool rr_watch_explain_link(struct rr_comm *comm, rr_error *error);

/* drive.c */
/* Drive until the work is done or `until_ns`: RR_AGAIN then. The driver is in hand, or is taken here. */
rr_status rr_drive_held(struct rr_comm *comm, struct rr_work *work, uint64_t until_ns);
rr_status rr_drive(struct rr_comm *comm, struct rr_work *work, uint64_t until_ns);
/* RR_ERR_CLOSED, or RR_ERR_ARGUMENT: this thread drives already, and calls from inside that call. */
rr_status rr_drive_take(struct rr_comm *comm);
/* Of the thread that closes it: past the others that wait. */
void rr_drive_take_last(struct rr_comm *comm);
/* Unless somebody drives it. */
bool rr_drive_try(struct rr_comm *comm);
void rr_drive_leave(struct rr_comm *comm);
/* Nobody drives it any more. */
void rr_drive_shut(struct rr_comm *comm);
bool rr_drive_is_shut(const struct rr_comm *comm);
/* Of living threads no two have the same; not 0, and no word of comm.h. May be called by a signal's handler. */
uint64_t rr_drive_thread(void);
/* Whether this thread is its driver. */
bool rr_drives_here(const struct rr_comm *comm);
/* Hand unfinished works to the progress thread, which starts if it is not there. */
rr_status rr_drive_hand_over(struct rr_comm *comm);
void rr_drive_forget(struct rr_comm *comm);
/* Before the first communicator is made. */
void rr_drive_watch_forks(void);

#endif
