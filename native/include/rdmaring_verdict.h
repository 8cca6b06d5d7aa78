/*
 * rdmaring_verdict.h - why a communicator is stuck or lost: one class, one place. Included by rdmaring.h.
 *
 * A rank's progress page tells what it waits in; rr_page_read() makes a record of it, and rr_verdict_search() follows
 * "waits for" through the records of all ranks. A rank that fails does so for itself; `rdmaring why` does it from outside.
 * Threads: any; there is no state.
 */
#ifndef RDMARING_VERDICT_H
#define RDMARING_VERDICT_H

#include <stdint.h>

#if defined(__GNUC__)
#define RR_API __attribute__((visibility("default")))
#else
#define RR_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* [cdef-begin] what stands between these marks is also what Python sees */

typedef enum rr_verdict_kind {
	RR_VERDICT_NONE = 0,
	RR_VERDICT_DIED = 1,          /* a rank's process has ended */
	RR_VERDICT_HOST_GONE = 2,     /* a node does not answer */
	RR_VERDICT_LINK_DOWN = 3,     /* an edge failed while both ends live */
	RR_VERDICT_MISMATCH = 4,      /* ranks called different operations */
	RR_VERDICT_ORDER = 5,         /* ranks use two communicators in different order */
	RR_VERDICT_NEVER_ENTERED = 6, /* a rank is in user code, or has closed the communicator */
	RR_VERDICT_STOPPED = 7,       /* a rank's process is stopped or frozen */
	RR_VERDICT_NO_CREDIT = 8,     /* a rank is in the operation, runs, and takes nothing */
	RR_VERDICT_SLOW = 9           /* all move, and one edge holds up the others */
} rr_verdict_kind;

/* -1 where a number does not apply. */
typedef struct rr_verdict {
	int32_t kind;       /* rr_verdict_kind */
	int32_t rank;       /* at fault; of an edge, the sender */
	int32_t peer;       /* a rank that waits for it; of an edge, the receiver */
	int32_t row;        /* of the schedule, in which peer waits */
	int64_t op;
	int32_t collective; /* rr_collective */
	int32_t found_by;   /* the rank whose finding it is */
	char transport[16]; /* of the edge */
	char text[512];     /* one line, equal on all ranks */
	char evidence[768]; /* what it rests on, with semicolons */
} rr_verdict;

/* For what a rank waits. */
typedef enum rr_wait_kind {
	RR_WAIT_NOTHING = 0,
	RR_WAIT_ENTRY = 1,   /* that peer enters the operation */
	RR_WAIT_DATA = 2,    /* for a slice of peer */
	RR_WAIT_CREDIT = 3,  /* that peer releases a slot */
	RR_WAIT_READERS = 4, /* at the end, that peer has read what it reads in place */
	RR_WAIT_TINY = 5,    /* for a tiny message of peer */
	RR_WAIT_SEND = 6,    /* in send() to peer */
	RR_WAIT_RECEIVE = 7  /* in recv() from peer */
} rr_wait_kind;

/* What the operating system says of a rank's process. */
typedef enum rr_life {
	RR_LIFE_UNKNOWN = 0,
	RR_LIFE_RUNS = 1,
	RR_LIFE_STOPPED = 2, /* by a signal or a debugger */
	RR_LIFE_FROZEN = 3,  /* its control group is */
	RR_LIFE_ENDED = 4,
	RR_LIFE_LOST = 5,    /* its node does not answer */
	RR_LIFE_MUTE = 6     /* its node answers, and it does not, though asked */
} rr_life;

/* One rank, as its page tells; life and host are whoever's who looks. */
typedef struct rr_rank_seen {
	int32_t rank, world, pid;
	int32_t known;      /* 0: nothing is known of it */
	int32_t life;       /* rr_life */
	int32_t page_state; /* 0 set-up, 1 running, 2 failed, 3 closed */
	uint64_t comm;      /* equal on all ranks of a communicator */
	uint64_t process;   /* differs between processes, equal on all pages of one */
	uint64_t start_time;
	uint64_t pid_namespace; /* in which its pid counts: the inode; 0: not known */
	uint64_t op_done;    /* the last finished; operations count from 1 */
	uint64_t op_entered; /* the last entered */
	uint64_t position;   /* row << 32 | slice finished last */
	uint64_t descriptor; /* hash of what it called last */
	int32_t collective;  /* of that; rr_collective, -1: none */
	uint32_t wait_kind[2]; /* rr_wait_kind: for what comes; for room, where it sends */
	int32_t wait_peer[2];
	int32_t wait_row[2];
	uint64_t waited_ns; /* for just this */
	int32_t lacks_peer; /* -1; or who has sent it what never came: */
	uint32_t lacks;     /* so many slices */
	uint64_t quiet_ns;  /* since it looked around last; all ones: it never waited */
	/* the last wait of the same process in any communicator */
	uint64_t else_comm, else_op, else_process, else_quiet_ns;
	int32_t else_peer, else_kind;
	/* its busiest edge, to pace_peer (-1: none), of the time that it has spent in operations and out of them */
	int32_t pace_peer, pace_far;
	int32_t busy_permille;    /* share in which it was under way */
	int32_t starved_permille; /* share in which this rank had no processor and wanted one; -1: not known */
	uint64_t pace_span_ns;
	uint64_t pace_moved_ns, pace_age_ns; /* since bytes moved last; since it told this */
	char call[240]; /* what it called last, for people */
	char host[40];
	rr_verdict verdict; /* of a rank that failed */
} rr_rank_seen;

/* "died", "host_gone" and so on; "none". */
RR_API const char *rr_verdict_name(int32_t kind);
/* "all_reduce" and so on; "invalid". */
RR_API const char *rr_collective_name(int32_t collective);
/* rr_life of a process of this machine. start_time: in clock ticks since boot, as its page says; 0: not compared. */
RR_API int32_t rr_process_life(int32_t pid, uint64_t start_time);
/* Bytes of a page that rr_page_read() looks at. */
RR_API uint64_t rr_page_bytes(void);
/* now_ns: CLOCK_MONOTONIC of the page's node. 0; -1: these bytes are no page; -2: of another version. Any bytes may be given. */
RR_API int32_t rr_page_read(const void *bytes, uint64_t size, uint64_t now_ns, rr_rank_seen *out);
/* Why `from` does not get on with `op`: seen[world], by rank. kind stays RR_VERDICT_NONE where nothing shows. */
RR_API void rr_verdict_search(const rr_rank_seen *seen, int32_t world, int32_t from, uint64_t op, rr_verdict *out);
/* Whether all get on and one edge holds them up. kind is RR_VERDICT_SLOW or RR_VERDICT_NONE. */
RR_API void rr_verdict_slow(const rr_rank_seen *seen, int32_t world, uint64_t op, rr_verdict *out);

/* [cdef-end] */

#ifdef __cplusplus
}
#endif

#endif
