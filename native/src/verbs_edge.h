/*
 * verbs_edge.h - what both directions of an edge over verbs share.
 *
 * Each end has two areas of one shape. Inbound is written by the peer, outbound is what we write there, so a message
 * lies at the same offset at both ends:
 *
 *   lines   64 x 256 bytes  DATA line (wire.h), and beside it up to 192 bytes of payload
 *   opens    4 x 192        OPEN and its descriptor
 *   tinies   2 x 16448      tag and payload, by mailbox serial; the short form: below
 *   flush    64             outbound: where a READ of GPU memory, which flushes it, puts its byte
 *   slots    slot_bytes x slot_count, handed out by the sender as a ring of bytes
 *
 * Every message but the short tiny is an RDMA WRITE WITH IMM of its line; imm (big-endian on the wire) says which:
 *
 *   bit 31    29 28                                  0
 *       +-------+------------------------------------+
 *       | kind  | DATA: serial  OPEN: number           |
 *       |       | TINY, BELL: serial  CREDIT: released  |   low 29 bits
 *       +-------+------------------------------------+
 *
 * The payload of a DATA goes by an RDMA WRITE before it on the same queue pair, to its slot or to granted memory,
 * unless it fits beside the line. Transfer k uses queue pair k mod Q; order is restored by serial. All else uses
 * queue pair 0. CREDIT and BELL have no bytes at all.
 *
 * A short tiny message is one RDMA WRITE of a cache line, without IMM, which the receiver finds by looking: that saves the
 * completion, the receive and the posting of another. The line proves by its check that all of it is here:
 *
 *   0    8                              48      52    56
 *   +----+------------------------------+-------+-----+-------+
 *   | tag | payload, zeros behind it     | bytes |  0  | check |   rr_tiny_check() of the words before
 *   +----+------------------------------+-------+-----+-------+
 *
 * Nobody is woken by it. So a rank that finds the peer's message here before it has sent its own, which may have let the
 * peer fall asleep, sends with IMM; and a rank that has waited RING_PASSES rings: a BELL wakes the peer, and tells that what
 * came before it lies there. The message is not sent again: the peer may have found it, gone on, and got the next into the
 * same place, and bytes without a completion yet may land behind those that came after them.
 *
 * Receives posted on queue pair 0 cover all that can be outstanding, so receiver-not-ready cannot happen:
 *   64 DATA      no more are sent than credits allow, and a credit follows the receive's being posted again
 *    2 OPEN      a rank posts OPEN n+1 of an edge when operation n is over, for which it saw the peer's OPEN n, which was
 *                posted when the peer had seen our OPEN n-1
 *    2 TINY      at most one ahead of the receiver, each with IMM once, its own or its BELL's
 *   64 CREDIT    each is for one transfer at least that was not credited before
 *   = 132. On the others 64 DATA.
 */
#ifndef RR_VERBS_EDGE_H
#define RR_VERBS_EDGE_H

#include <sys/types.h>

#include "clock.h"
#include "link_verbs.h"
#include "page.h"
#include "pin.h"
#include "slot_ring.h"
#include "verbs_domain.h"
#include "verbs_qp.h"

#define RR_EDGE_LINE_BYTES 256u
#define RR_EDGE_BESIDE_BYTES (RR_EDGE_LINE_BYTES - (uint32_t)sizeof(struct rr_data))
#define RR_EDGE_OPENS 4u
#define RR_EDGE_OPEN_BYTES 192u
#define RR_EDGE_OPEN_USED ((uint32_t)(sizeof(struct rr_open) + sizeof(struct rr_descriptor)))
#define RR_EDGE_TINY_BYTES (RR_MAILBOX_BYTES + RR_CACHE_LINE)
#define RR_EDGE_SHORT_BYTES 40u /* of payload */
#define RR_EDGE_RING_PASSES 128u
_Static_assert(sizeof(struct rr_open) + sizeof(struct rr_descriptor) <= RR_EDGE_OPEN_BYTES, "an OPEN fits its line");

#define RR_EDGE_RECEIVES (RR_RING_COUNT + RR_EDGE_OPENS + 4u + RR_RING_COUNT) /* 136 >= 132, see above */
#define RR_EDGE_RECEIVES_MORE RR_RING_COUNT                                     /* of queue pairs 1.. */
_Static_assert(RR_EDGE_RECEIVES >= 132, "every message finds a receive");
#define RR_EDGE_SENDS 256u /* of a queue pair, at most */
#define RR_EDGE_SENDS_MIN 16u
#define RR_EDGE_SENDS_KEPT 6u /* of queue pair 0 for what must not wait for DATA: OPEN, tiny, credit */

#define RR_WR_FLUSH (1ull << 53) /* in wr_id: the READ that flushes GPU memory (verbs_gdr.c) */

#define RR_IMM_BITS 29u
#define RR_IMM_MASK ((1u << RR_IMM_BITS) - 1)
enum rr_imm_kind { RR_IMM_DATA = 1, RR_IMM_OPEN = 2, RR_IMM_TINY = 3, RR_IMM_CREDIT = 4, RR_IMM_BELL = 5 };

/* In rr_data.reserved[0]. */
enum rr_data_flags {
	RR_DATA_BESIDE = 1, /* the payload lies beside the line */
	RR_DATA_WANTED = 2  /* the sender runs low: return the credit when this is released */
};

struct rr_tiny_short {
	uint64_t tag;
	uint8_t payload[RR_EDGE_SHORT_BYTES];
	uint32_t bytes;
	uint32_t zero;
	uint64_t check;
};
_Static_assert(sizeof(struct rr_tiny_short) == RR_CACHE_LINE, "a short message is one line");

/* Of the seven words before it: a line of which any part is still the old one does not pass (but for 1 in 2^64). */
static inline uint64_t rr_tiny_check(const uint64_t *words)
{
	uint64_t sum = 0x243f6a8885a308d3u; /* digits of pi: a line of zeros does not pass */

	for (uint32_t i = 0; i < 7; i++) {
		sum = (sum ^ words[i]) * 0x9e3779b97f4a7c15u; /* odd, so nothing is lost: 2^64 over the golden ratio */
		sum ^= sum >> 32;
	}
	return sum;
}

/* Set-up messages over the edge's control connection. */
#define RR_VERBS_MAGIC 0x53425256u /* "VRBS" */
enum rr_verbs_message { RR_VERBS_PARAMETERS = 1, RR_VERBS_READY = 2, RR_VERBS_RESUME = 3, RR_VERBS_RESUMED = 4, RR_VERBS_RAILS = 5 };

struct rr_verbs_parameters {
	uint32_t magic;
	uint32_t kind;
	uint32_t qps;
	uint32_t slot_count;
	uint64_t slot_bytes;
	uint64_t address; /* of the inbound area */
	uint64_t bytes;
	uint32_t key;
	uint32_t serial; /* first serial of DATA, low 32 bits */
	uint32_t numbers[RR_QPS_MAX];
	uint32_t psns[RR_QPS_MAX];
	uint8_t gid[16]; /* that we send from: it must be the one the peer expects */
	uint16_t lid;
	uint8_t port;
	uint8_t reserved[5];
};
_Static_assert(sizeof(struct rr_verbs_parameters) == 136, "parameters travel between ranks");

/*
 * An edge that failed is made anew (verbs_mend.c): the parameters of its new queue pairs, and what this end has, when nothing of the old
 * ones can land any more. RESUME and, when its queue pairs are connected, RESUMED.
 */
struct rr_verbs_resume {
	struct rr_verbs_parameters parameters; /* kind: of this message */
	uint64_t round;    /* how often the edge was made anew before, plus 1 */
	uint64_t next;     /* transfers that were released: the serial of the first that was not */
	uint64_t arrived;  /* bit serial % 64: of those, which are here */
	uint32_t opens;    /* OPENs that came */
	uint32_t tinies[2]; /* serial of the newest tiny message in each place */
	uint32_t told;      /* OPENs that were sent: the newest grants memory by keys of the device that serves the edge now */
	struct rr_place places[RR_BUFFER_COUNT]; /* of the newest OPEN */
};
_Static_assert(sizeof(struct rr_verbs_resume) == 136 + 40 + 48, "it travels between ranks");

/*
 * Before RESUME, where an edge could be served by more than one pair of rails: which of the rails of its hello are active at this end
 * now. From both ends' words both compute the pair that serves the edge from now on (verbs_rail.c).
 */
struct rr_verbs_rails {
	uint32_t magic;
	uint32_t kind;
	uint64_t round;
	uint32_t active; /* bit r: rail r */
	uint32_t leave;  /* 1: not the pair that served the edge, if there is another */
};
_Static_assert(sizeof(struct rr_verbs_rails) == 24, "it travels between ranks");

enum rr_verbs_state {
	RR_VERBS_COLD = 0,
	RR_VERBS_WANTED = 1,
	RR_VERBS_MADE = 2,
	RR_VERBS_CONNECTED = 3,
	RR_VERBS_UP = 4,
	RR_VERBS_MENDING = 5, /* it was up, and is made anew */
	RR_VERBS_SEVERED = 6
};

struct rr_verbs_queue {
	struct rr_ibv_qp *qp;
	uint32_t psn, peer_number;
	uint32_t depth;        /* send requests */
	uint32_t inline_bytes; /* that a request may carry itself */
	uint32_t sge_max;
	uint32_t unsignalled;  /* requests since the last that reports its end */
	uint32_t spent;        /* receives to be posted again */
	uint32_t receives;     /* posted and not completed */
	uint64_t posted, completed; /* send requests */
};

struct rr_verbs_edge;

struct rr_verbs_link {
	struct rr_link link;
	struct rr_verbs_edge *edge;
};

/* What reserve() decided, for commit(). */
enum rr_way { RR_WAY_BESIDE, RR_WAY_PIECES, RR_WAY_STAGED };

/* A transfer whose line is written and that the peer has not released: all that is needed to send it, and to send it again. */
struct rr_verbs_kept {
	enum rr_way way;
	enum rr_mode mode;
	bool on_device; /* the pieces lie in GPU memory */
	uint32_t bytes;
	uint32_t slot;       /* in lines */
	uint32_t buffer;     /* WRITE: the peer's */
	uint64_t coordinate; /* and the offset in it */
	uint32_t piece_count;
	struct iovec pieces[RR_PIECES_MAX];
};

enum rr_mend_phase {
	RR_MEND_DRAIN = 0,
	RR_MEND_PORT = 1,
	RR_MEND_RAILS = 2,
	RR_MEND_QUEUES = 3,
	RR_MEND_OFFER = 4,
	RR_MEND_CONNECT = 5,
	RR_MEND_READY = 6
};

struct rr_verbs_mend {
	enum rr_mend_phase phase;
	uint64_t rounds;   /* that are over */
	uint64_t since_ns; /* the trouble's begin, later by what was waited for the peer; not renewed by a round after which nothing came */
	bool attended;
	uint64_t phase_ns; /* the phase's, or of its last try */
	uint64_t received; /* completions of receives since it was last up */
	uint64_t up_ns;    /* when it was last made anew */
	bool by_flush;     /* all that is known of the cause is a flush */
	bool theirs_known, connected, resumed_known;
	rr_error cause;
	struct rr_verbs_resume theirs;
	/* which rail */
	bool leave;       /* this one is dead, whatever its port says: another, if there is one */
	uint64_t here_ns; /* since when this round tries the rail that it has */
	uint32_t active;  /* bit r: rail r of our hello was active when last looked at */
	bool rails_sent, rails_known;
	struct rr_verbs_rails rails; /* the peer's */
	uint64_t again;    /* serial of the next transfer to look at for sending again */
	uint64_t missing;  /* bit serial % 64: to be sent again */
	uint32_t opens_again; /* OPENs to be sent again: the newest so many */
};

struct rr_verbs_edge {
	struct rr_verbs_link out, in;
	struct rr_far *far;
	const struct rr_verbs *verbs;
	int32_t rank, peer;
	uint32_t channel_number; /* `channel` below is the device's word for what tells of completions */
	bool late; /* comes up only when one of the two ranks wants it */
	struct rr_rail rail;
	struct rr_rail_pair pair;
	uint32_t turn;      /* of the rails, for another pair: equal at both ends */
	uint32_t failovers; /* to another rail */
	char moved[96];     /* the last one: "sim0/1 to sim1/1"; or "the peer's sim0/1 to its sim1/1" */
	struct rr_qp_settings settings;
	enum rr_gdr_allowed gdr_allowed;
	uint64_t slot_bytes;
	uint32_t slot_count;
	uint32_t ends; /* links not closed yet */
	enum rr_verbs_state state;
	char what[80]; /* "to rank 3 over rxe0/1", for errors */
	/* set-up */
	struct rr_domain *domain; /* NULL: before it is made, and while it goes from one rail to another */
	struct rr_ibv_mr *inbound_mr, *outbound_mr;
	struct rr_ibv_comp_channel *channel;
	struct rr_ibv_cq *cq;
	struct rr_verbs_queue queues[RR_QPS_MAX];
	uint32_t held; /* requests under way that name registered memory */
	uint64_t events_seen; /* of the domain */
	rr_verbs_options options; /* which ports and GIDs may serve */
	uint64_t reconnect_ns; /* how long trouble may last; 0: it is an error at once */
	struct rr_verbs_mend mend;
	struct rr_verbs_parameters theirs;
	bool theirs_known, parameters_sent, ready_sent, ready_known;
	uint64_t peer_address;
	uint32_t peer_key;
	/* memory: inbound, then outbound */
	uint8_t *inbound, *outbound;
	struct rr_pin_range areas; /* both */
	uint64_t area_bytes, opens_at, tinies_at, flush_at, slots_at;
	/* failure */
	bool failed;
	bool failed_of_peer; /* the peer's own record may tell more: it is given time to come */
	bool failed_by_flush;
	uint64_t failed_ns;
	uint64_t ended_ns; /* when this rank, waiting, found that the peer has closed or failed; 0: not */
	rr_error failure;
	/* sleep */
	bool armed;
	uint32_t passes;
	uint32_t idle_polls; /* since the engine last took something from this edge */
	/* sender */
	uint64_t serial;    /* next transfer */
	uint64_t credited;  /* transfers that the receiver has released */
	uint64_t sent_whole; /* transfers whose requests have ended, without a gap */
	uint64_t serial_start;
	uint64_t request_of[RR_RING_COUNT]; /* `posted` of its queue after each transfer */
	struct rr_verbs_kept kept[RR_RING_COUNT];
	struct rr_slot_ring room;      /* of the slots: ours mirror the peer's */
	struct rr_slot_claim reserved; /* of the transfer that is filled now */
	uint32_t reserved_slot;	       /* where it lies, in lines */
	enum rr_way way;
	struct rr_place places[RR_BUFFER_COUNT]; /* the peer's, of this operation */
	uint64_t places_op;
	struct rr_place granted[RR_BUFFER_COUNT]; /* ours, of the newest OPEN, as this process has them */
	uint32_t opens_sent;
	uint32_t tiny_pending; /* bit w: tinies[w] waits to be sent */
	uint32_t tiny_bytes[2];
	uint32_t tiny_serials[2];
	uint32_t tiny_short; /* bit w: tinies[w] went in the short form, and nobody was woken for it */
	uint32_t tiny_waits; /* passes that looked for the peer's message since the last of ours */
	bool bell_due;
	uint32_t bell_serial;
	/* receiver */
	uint64_t next;     /* serial of the next transfer */
	uint64_t arrived;  /* bit serial % 64 */
	/* of what arrived in GPU memory: seen by kernels; and will be, when the READ that is under way has ended */
	uint64_t flushed, flushing;
	bool flush_posted;
	struct rr_ibv_qp *loop; /* for that READ; NULL: not needed so far */
	uint64_t credits_given; /* released transfers that the peer knows of */
	bool credit_due;
	uint32_t opens_got;
	uint64_t open_ops[RR_EDGE_OPENS]; /* of OPENs that are here whole: the next may be landing in a line meanwhile */
	bool tiny_there[2];
	uint32_t tiny_got[2];       /* serial, low 29 bits */
	uint32_t tiny_got_bytes[2]; /* payload */
	struct rr_tiny_short tiny_found[2]; /* copies of the short form, whole */
};

static inline struct rr_verbs_edge *rr_verbs_edge_of(struct rr_link *link)
{
	return ((struct rr_verbs_link *)link)->edge;
}

static inline struct rr_data *rr_verbs_line(uint8_t *area, uint64_t serial)
{
	return (struct rr_data *)(area + serial % RR_RING_COUNT * RR_EDGE_LINE_BYTES);
}

/* The engine took something: it will pass again and again before it sleeps. */
static inline void rr_verbs_moved(struct rr_verbs_edge *edge)
{
	edge->idle_polls = 0;
}

/* verbs_receive.c: take up the peer's short message of this serial, if it is here whole. */
bool rr_verbs_tiny_look(struct rr_verbs_edge *edge, uint32_t serial);

/* The serial of the newest tiny message that is here in this place, in either form. */
uint32_t rr_verbs_tiny_newest(struct rr_verbs_edge *edge, uint32_t which);

/* verbs_setup.c */
extern const struct rr_edge_ops rr_verbs_edge_ops;
void rr_verbs_fill_parameters(const struct rr_verbs_edge *edge, enum rr_verbs_message kind, struct rr_verbs_parameters *out);
/* Requests that a queue pair is asked for. */
uint32_t rr_verbs_sends_of(const struct rr_verbs_edge *edge);
uint32_t rr_verbs_receives_of(uint32_t queue);
/* What the device does not give, by errno. */
rr_status rr_verbs_refused(const struct rr_verbs_edge *edge, const char *what);
/* A queue pair in INIT, with all its receives posted. */
rr_status rr_verbs_make_queue(struct rr_verbs_edge *edge, uint32_t queue);
/* To RTS, by what the peer said of its own. */
rr_status rr_verbs_connect_queues(struct rr_verbs_edge *edge, const struct rr_verbs_parameters *theirs);
/* Begin, or go on with, joining. RR_OK: the edge is up; RR_AGAIN: not yet. */
rr_status rr_verbs_join(struct rr_verbs_edge *edge);
rr_status rr_verbs_memory(struct rr_verbs_edge *edge);
void rr_verbs_sever(struct rr_verbs_edge *edge);
void rr_verbs_destroy(struct rr_verbs_edge *edge);
/* Keep this thread's error as the edge's; the first stays. */
void rr_verbs_lose(struct rr_verbs_edge *edge);
/* RR_OK, RR_AGAIN while the peer may still tell the cause, or the failure. */
rr_status rr_verbs_health(struct rr_verbs_edge *edge);
/* Once a pass: has something befallen the device? It is the edge's failure then. */
void rr_verbs_look(struct rr_verbs_edge *edge);
/* Health, to a rank that waits for something of the peer's: it will not come if the peer has ended. */
rr_status rr_verbs_waiting(struct rr_verbs_edge *edge);

/* verbs_post.c: requests and completions */
bool rr_verbs_room(const struct rr_verbs_edge *edge, uint32_t queue, uint32_t requests);
/* The line at `offset` of both areas, with its imm. */
void rr_verbs_post_line(struct rr_verbs_edge *edge, uint32_t queue, uint64_t offset, uint32_t bytes, uint32_t imm,
			struct rr_ibv_send_wr *before, bool held);
rr_status rr_verbs_post_receives(struct rr_verbs_edge *edge, uint32_t queue, uint32_t count);
/* The queue pairs are in error: take what they still report. True: nothing of theirs is under way. */
bool rr_verbs_drained(struct rr_verbs_edge *edge);
/* Take completions until there are none; arm where the driver may sleep. */
rr_status rr_verbs_poll(struct rr_verbs_edge *edge);
/*
 * Before queue pairs go: what operations that are over here have sent may not have arrived, and would be lost with
 * them. Waits until it is acknowledged, the peer has closed or failed, or limit_ns.
 */
#define RR_LINGER_CLOSE_NS (2 * RR_NS_PER_S)
#define RR_LINGER_SEVER_NS (250 * RR_NS_PER_MS) /* the caller has an error to raise */
void rr_verbs_linger(struct rr_verbs_edge *edge, uint64_t limit_ns);

/* verbs_mend.c */
/*
 * This thread's error befell the edge, which is up. True: it is mended from now on. False: it is not mendable, or too much time went
 * on the same trouble, or the settings say not to: the caller loses the edge.
 */
bool rr_verbs_trouble(struct rr_verbs_edge *edge, enum rr_mendable mendable);
/* The same; where it is not mended, the edge is lost. While it is mended already nothing happens: its queue pairs go anyway. */
void rr_verbs_befallen(struct rr_verbs_edge *edge, enum rr_mendable mendable);
/* An event of the device came while the edge is mended; it is this thread's error. */
void rr_verbs_mend_event(struct rr_verbs_edge *edge, enum rr_mendable mendable);
/* Another round of the same trouble. */
void rr_verbs_mend_again(struct rr_verbs_edge *edge);
void rr_verbs_next_phase(struct rr_verbs_edge *edge, enum rr_mend_phase phase);
/* The queue pairs go, and their events are heard. */
void rr_verbs_drop_queues(struct rr_verbs_edge *edge);
/* Go on with mending. RR_AGAIN, RR_OK: it is up, or the failure. */
rr_status rr_verbs_mend(struct rr_verbs_edge *edge);
/* Whether a waiting rank looks at it, and mends it, also when no operation of this rank uses it: the peer may lack what was sent before. */
void rr_verbs_attend(struct rr_verbs_edge *edge, bool on);
/* What the peer says of it. */
void rr_verbs_mend_message(struct rr_verbs_edge *edge, const struct rr_verbs_resume *message);
void rr_verbs_rails_message(struct rr_verbs_edge *edge, const struct rr_verbs_rails *message);
/* Send again what the peer lacks, as far as there is room. True: all is sent. */
bool rr_verbs_send_again(struct rr_verbs_edge *edge);

/* verbs_rail.c */
/* Domain, memory regions and completions of the edge's rail. What was made before an error goes with rr_verbs_leave_device(). */
rr_status rr_verbs_take_device(struct rr_verbs_edge *edge);
/* All of that; queue pairs are gone. One that fails leaves the others to go. */
void rr_verbs_leave_device(struct rr_verbs_edge *edge);
/* Whether another pair of rails could serve the edge. */
bool rr_verbs_movable(const struct rr_verbs_edge *edge);
/* Phases of mending: a rail of ours is active; both ends agree on a pair of rails; the device of that is there. */
rr_status rr_verbs_find_port(struct rr_verbs_edge *edge);
rr_status rr_verbs_agree_on_rails(struct rr_verbs_edge *edge);
rr_status rr_verbs_settle(struct rr_verbs_edge *edge);

/* verbs_send.c */
/* The newest OPEN, with keys of the device that serves the edge now. Error: that cannot reach memory which it granted. */
rr_status rr_verbs_grant_again(struct rr_verbs_edge *edge);
/* Its places, as they are told. Zeros before the first. */
void rr_verbs_granted(const struct rr_verbs_edge *edge, struct rr_place places[RR_BUFFER_COUNT]);
/* The requests of a transfer whose line is written. False: memory without a key, the edge is lost. */
bool rr_verbs_post_transfer(struct rr_verbs_edge *edge, uint64_t serial);
rr_status rr_verbs_open_post(struct rr_link *out, const struct rr_open *open, const struct rr_descriptor *descriptor);
rr_status rr_verbs_reserve(struct rr_link *out, const struct rr_transfer *transfer, void **place);
void rr_verbs_commit(struct rr_link *out, const struct rr_transfer *transfer);
void rr_verbs_abort(struct rr_link *out);
uint64_t rr_verbs_released(struct rr_link *out);
rr_status rr_verbs_tiny_post(struct rr_link *out, uint64_t tag, const void *payload, uint32_t bytes);
/* What waited for the edge to be up, or for room: tiny messages, credits. */
void rr_verbs_send_waiting(struct rr_verbs_edge *edge);
void rr_verbs_take_credit(struct rr_verbs_edge *edge, uint32_t low);
/* The line of OPEN `number`, which is written. */
void rr_verbs_post_open(struct rr_verbs_edge *edge, uint32_t number);

/* verbs_receive.c */
void rr_verbs_arrived(struct rr_verbs_edge *edge, const struct rr_ibv_wc *wc);
rr_status rr_verbs_open_peek(struct rr_link *in, uint64_t op, const struct rr_open **open);
rr_status rr_verbs_peek(struct rr_link *in, const struct rr_transfer *transfer, const void **data);
void rr_verbs_release(struct rr_link *in, uint32_t bytes);
rr_status rr_verbs_tiny_peek(struct rr_link *in, uint32_t serial, uint64_t *tag, const void **payload, uint32_t *bytes);

#endif
