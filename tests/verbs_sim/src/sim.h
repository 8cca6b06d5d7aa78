/*
 * sim.h - a substitute libibverbs: reliable-connected queue pairs between processes of one machine.
 *
 *   application threads            one simulator thread per process
 *   post_send, post_recv  ──────►  requester: gather, send packets, take acknowledgements
 *   poll_cq, events       ◄──────  responder: take packets, check keys, place bytes, complete
 *
 * A packet crosses an abstract unix socket that stands for the wire; a queue pair listens there from RTR
 * on, under the address its own address handle says it has. One lock, sim_lock, covers all state of the
 * process; functions say "locked" where the caller holds it. Bytes move only on the simulator's thread, so
 * they appear in memory while the application runs, as they do under a DMA engine.
 */
#ifndef VERBS_SIM_H
#define VERBS_SIM_H

#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIM_EXPORT      __attribute__((visibility("default")))
#define SIM_DEVICES_MAX 8
#define SIM_GIDS_MAX    16
#define SIM_FAULTS_MAX  32
#define SIM_SGE_MAX     16
#define SIM_PORT        1          /* each device has one port */
#define SIM_PACKET_BYTES 16384u    /* payload of one packet on the socket; unrelated to the path MTU */
#define SIM_NEVER       UINT64_MAX /* a time in ns that does not come */
#define NS_PER_US       1000ull
#define NS_PER_MS       1000000ull

enum sim_gid_type { SIM_GID_NONE, SIM_GID_V1, SIM_GID_V2 };

struct sim_gid {
	enum sim_gid_type type; /* SIM_GID_NONE: an empty row */
	union ibv_gid gid;
};

/* What can befall a device without a call that asks for it. */
enum sim_action {
	SIM_PORT_DOWN,    /* port state DOWN, event PORT_ERR, wire cut */
	SIM_PORT_UP,      /* port state ACTIVE, event PORT_ACTIVE, wire back */
	SIM_QP_FATAL,     /* every queue pair to ERR, event QP_FATAL for each */
	SIM_DEVICE_FATAL, /* event DEVICE_FATAL, every queue pair to ERR, later verbs fail with EIO */
	SIM_FLUSH,        /* every queue pair to ERR, without an event */
	SIM_DROP_LINK,    /* the wire is cut, the port does not notice */
	SIM_MOVE_GIDS,    /* every GID moves to the next row of the table, every queue pair to ERR, event GID_CHANGE */
	SIM_ACTION_COUNT
};

struct sim_trigger {
	uint64_t after_ms;    /* since the first opened device; SIM_NEVER */
	uint64_t after_sends; /* send requests posted by the process; SIM_NEVER */
	bool fired;
};

/* Call number `first` of a verb, or that and all later ones, fails with an errno. */
struct sim_fault {
	char verb[40];
	uint64_t first;
	bool onwards;
	int error;
	uint64_t calls;
};

/* Completion number `nth` of a side gets this status, its queue pair goes to ERR. */
struct sim_wc_fault {
	uint64_t nth; /* 0: none */
	enum ibv_wc_status status;
	uint32_t vendor_err;
	uint64_t seen;
};

struct sim_config {
	uint64_t seed;
	unsigned devices;
	char prefix[16]; /* of device names */
	uint8_t link_layer;
	enum ibv_mtu mtu;
	unsigned host, rank, lid;
	unsigned delay_us;   /* largest random delay of each message and each completion */
	unsigned reorder_us; /* largest additional delay of every fourth of them */
	unsigned max_inline, max_sge, max_qp_wr, max_cqe, max_rd_atomic;
	unsigned memlock_kb; /* 0: unlimited */
	unsigned dmabuf, peermem; /* 1: GPU memory can be registered so */
	unsigned timeout_percent;
	unsigned speed[SIM_DEVICES_MAX], width[SIM_DEVICES_MAX], port_state[SIM_DEVICES_MAX];
	int fault_device; /* the one that actions concern; -1: all */
	int corrupt_gid;
	struct sim_gid gids[SIM_DEVICES_MAX][SIM_GIDS_MAX];
	unsigned gid_count[SIM_DEVICES_MAX];
	struct sim_trigger triggers[SIM_ACTION_COUNT];
	struct sim_fault faults[SIM_FAULTS_MAX];
	unsigned fault_count;
	struct sim_wc_fault send_fault, recv_fault;
};

struct sim_device {
	struct ibv_device base;
	unsigned index;
	uint64_t guid;
};

struct sim_event {
	struct sim_event *next;
	void *object; /* ibv_cq of a completion event, ibv_qp or ibv_cq of an asynchronous one, or NULL */
	struct ibv_async_event async;
};

/* Events not yet fetched; each has one byte in the socket pair, so that its descriptor polls readable. */
struct sim_event_queue {
	struct sim_event *head, **tail;
	int read_fd, write_fd;
};

struct sim_context {
	struct sim_context *next;
	struct sim_device *device;
	struct sim_event_queue async;
	int qpn_fd;        /* bound to the name that reserves qpn_block among the processes of a host */
	uint32_t qpn_block;
	uint32_t qpn_next; /* within the block */
	enum ibv_port_state port_state;
	bool link_dropped;
	bool fatal;
	struct verbs_context verbs; /* verbs.context is what the application holds */
};

struct sim_pd {
	struct ibv_pd base;
	unsigned users; /* memory regions and queue pairs */
};

struct sim_mr {
	struct ibv_mr base;
	struct sim_mr *next;
	uint64_t iova;
	unsigned access;
	bool gpu; /* base.addr is the GPU's */
};

struct sim_channel {
	struct ibv_comp_channel base;
	struct sim_event_queue events;
};

struct sim_qp;

struct sim_cqe {
	struct ibv_wc wc;
	struct sim_qp *qp;
	bool is_send;
	uint64_t index; /* of the work request in its queue: polling frees the queue up to it */
};

struct sim_cq {
	struct ibv_cq base;
	struct sim_cqe *ring;
	uint64_t pushed, polled; /* entries since creation */
	unsigned size;
	bool armed, solicited_only, overrun;
	unsigned users;          /* ends of queue pairs */
	uint64_t events_fetched, events_acked, async_fetched, async_acked;
};

struct sim_send {
	uint64_t wr_id, remote_addr, start_ns, due_ns, gpu_post;
	enum ibv_wr_opcode opcode;
	unsigned flags;
	__be32 imm;
	uint32_t rkey, bytes;
	int sge_count;
	struct ibv_sge sge[SIM_SGE_MAX];
	uint8_t *inline_data; /* owned */
	bool signaled;
	enum ibv_wc_status status;
	uint32_t vendor_err;
};

struct sim_recv {
	uint64_t wr_id, due_ns;
	int sge_count;
	struct ibv_sge sge[SIM_SGE_MAX];
};

enum sim_landing { SIM_LAND_EARLY, SIM_LAND_LATE, SIM_LAND_HALVES, SIM_LANDING_COUNT };

/* A request at its responder, from the first packet until its bytes are placed and its completion is pushed. */
struct sim_message {
	struct sim_message *next;
	uint64_t index, remote_addr, due_ns;
	uint8_t opcode; /* enum ibv_wr_opcode */
	bool solicited, takes_recv;
	__be32 imm;
	uint32_t rkey, bytes, received, landed_from, landed_to;
	enum sim_landing landing;
	enum ibv_wc_status status;
	struct sim_recv recv;
	uint64_t recv_index;
	uint8_t *data; /* owned; all `bytes` of it */
};

struct sim_qp {
	struct ibv_qp base;
	struct sim_qp *next;
	struct ibv_qp_cap cap;
	struct ibv_qp_attr attr;
	bool sq_sig_all;
	uint64_t random;
	uint64_t async_fetched, async_acked;

	struct sim_send *sq; /* ring of cap.max_send_wr; 0 <= freed <= completed <= acked <= posted */
	uint64_t sq_posted, sq_sent, sq_acked, sq_completed, sq_freed;
	uint64_t sq_last_ns, sq_due_ns; /* latest start and due time given: order within the queue */
	bool out_blocked; /* the socket is full */
	bool stalled;     /* the next request waits for an acknowledgement */
	uint32_t sent_bytes; /* of request sq_sent */
	uint64_t reads_open;
	unsigned rnr_seen;
	uint64_t silent_since_ns, retry_at_ns; /* SIM_NEVER: not silent */

	struct sim_recv *rq;
	uint64_t rq_posted, rq_taken, rq_completed, rq_freed;
	uint64_t rq_last_ns;

	int listen_fd, out_fd, pending_fd, in_fd;
	uint32_t peer_mtu;
	uint64_t in_index; /* next request expected */
	struct sim_message *assembling;
	struct sim_message *deliveries, **deliveries_tail;
	bool awaiting_recv;
	uint64_t rnr_at_ns;
	struct sim_message *read_reply; /* being sent back */
};

struct sim_counts {
	uint64_t sends, recvs, send_completions, recv_completions, flushed, rnr_naks, retries, bytes;
	uint64_t gpu_read, gpu_written; /* bytes of GPU memory */
	uint64_t dropped; /* requests without an acknowledgement when their queue pair was destroyed in RTS */
};

struct sim_state {
	struct sim_config config;
	struct sim_context *contexts;
	struct sim_qp *qps;
	struct sim_mr *mrs;
	uint64_t opened_ns, random, memlock_bytes;
	uint64_t pds, cqs, channels, device_lists;
	struct sim_counts counts;
	int wake_fd;
	bool stopping;
	pthread_t thread;
};

extern pthread_mutex_t sim_lock;
extern struct sim_state sim;

/* config.c */
void sim_config_read(struct sim_config *config);
int sim_errno_of(const char *name);

/* faults.c */
/* The errno that this call of a verb is to fail with, or 0. Takes the lock. */
int sim_fault(const char *verb);
int sim_fault_locked(const char *verb);
void sim_violation(const char *format, ...) __attribute__((format(printf, 1, 2)));
void sim_check_triggers(uint64_t now);      /* locked */
uint64_t sim_next_trigger(void);            /* locked: ns */
void sim_act(enum sim_action action);       /* locked */
extern const char *const sim_action_names[SIM_ACTION_COUNT];
size_t sim_violation_list(const char *const **texts);

/* A stream of numbers for each owner, and delays drawn from it. */
uint64_t sim_random(uint64_t *state);
uint64_t sim_delay_ns(uint64_t *state);
uint64_t sim_now(void);

/* device.c */
struct sim_context *sim_context_of(struct ibv_context *context);
struct sim_device *sim_device_list(void);
const struct sim_gid *sim_gid_row(const struct sim_device *device, unsigned index);
unsigned sim_lid(const struct sim_device *device);
bool sim_wire_cut(const struct sim_qp *qp); /* locked: no packet comes or goes */

/* events.c */
int sim_events_open(struct sim_event_queue *queue);
void sim_events_close(struct sim_event_queue *queue);
void sim_events_add(struct sim_event_queue *queue, void *object, const struct ibv_async_event *async); /* locked */
void sim_events_drop(struct sim_event_queue *queue, void *object);                                     /* locked */
int sim_events_take(struct sim_event_queue *queue, struct sim_event *event); /* blocks as the descriptor says */
void sim_async(struct ibv_context *context, enum ibv_event_type type, void *object);                   /* locked */

/* memory.c; all locked */
enum ibv_wc_status sim_gather(struct ibv_pd *pd, const struct ibv_sge *sge, int count, uint32_t from, uint8_t *to,
			      uint32_t bytes);
enum ibv_wc_status sim_scatter(struct ibv_pd *pd, const struct ibv_sge *sge, int count, uint32_t to,
			       const uint8_t *from, uint32_t bytes);
bool sim_local_ok(struct ibv_pd *pd, const struct ibv_sge *sge, int count, unsigned access);
bool sim_remote_ok(struct ibv_pd *pd, uint32_t rkey, uint64_t address, uint64_t bytes, unsigned access);
bool sim_place(struct ibv_pd *pd, uint32_t rkey, uint64_t address, const uint8_t *from, uint32_t bytes);
bool sim_fetch(struct ibv_pd *pd, uint32_t rkey, uint64_t address, uint8_t *to, uint32_t bytes);

/* gpu.c; locked */
bool sim_gpu_holds(uint64_t address, uint64_t bytes);
/* The address of byte `offset` behind where the descriptor of a dma-buf begins, with `bytes` from there on. */
bool sim_gpu_of_descriptor(int fd, uint64_t offset, uint64_t bytes, uint64_t *address);
bool sim_gpu_write(uint64_t address, const void *data, size_t bytes);
bool sim_gpu_read(uint64_t address, void *data, size_t bytes);
/* For the driver's race log: a completion was polled; a request was posted; the next reads belong to that request. */
void sim_gpu_seen(void);
uint64_t sim_gpu_posted(void);
void sim_gpu_reads_behind(uint64_t post);

/* completion.c; locked */
void sim_cq_push(struct ibv_cq *cq, const struct sim_cqe *entry, bool solicited);
void sim_cq_purge(struct ibv_cq *cq, struct sim_qp *qp);
int sim_poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc);
int sim_req_notify_cq(struct ibv_cq *cq, int solicited_only);

/* post.c */
int sim_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int sim_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

/* queue_pair.c; locked */
void sim_qp_to_error(struct sim_qp *qp);
void sim_qp_forget_work(struct sim_qp *qp);

/* requester.c; locked */
void sim_requester_run(struct sim_qp *qp, uint64_t now);
void sim_requester_input(struct sim_qp *qp);
uint64_t sim_requester_next(const struct sim_qp *qp);
void sim_requester_fail(struct sim_qp *qp, uint64_t index, enum ibv_wc_status status, uint32_t vendor_err);
bool sim_requester_wants_output(const struct sim_qp *qp);

/* responder.c; locked */
void sim_responder_run(struct sim_qp *qp, uint64_t now);
void sim_responder_input(struct sim_qp *qp);
void sim_responder_land_all(struct sim_qp *qp);
uint64_t sim_responder_next(const struct sim_qp *qp);
void sim_message_free(struct sim_message *message);

/* wire.c */
enum sim_packet_kind { SIM_HELLO = 1, SIM_REQUEST, SIM_ACK, SIM_NAK, SIM_RNR, SIM_READ_DATA };

struct sim_packet {
	uint32_t kind; /* enum sim_packet_kind */
	uint32_t opcode;
	uint64_t index, remote_addr;
	uint32_t rkey, imm, total, offset, bytes;
	uint32_t solicited, status, spare;
};

struct sim_hello {
	uint32_t kind, version;
	uint32_t source_qpn, target_qpn, psn, mtu;
	uint32_t gid_type, global;
	uint8_t sgid[16], dgid[16];
	uint32_t slid, dlid;
};

int sim_wire_start(void);                       /* locked */
void sim_wire_stop(void);                       /* locked; leaves and takes the lock again */
void sim_wake(void);
int sim_reserve_qpns(struct sim_context *context); /* locked */
int sim_listen(struct sim_qp *qp);              /* locked: 0 or errno */
void sim_connect(struct sim_qp *qp, uint64_t now);
void sim_accept(struct sim_qp *qp);
void sim_hello_input(struct sim_qp *qp);
void sim_disconnect(struct sim_qp *qp);         /* all sockets of a queue pair */
void sim_close_fd(int *fd);
/* 1 sent, 0 not now, -1 the peer is gone */
int sim_packet_send(int fd, const struct sim_packet *packet, const uint8_t *payload);
/* bytes of payload; -1 nothing there, -2 the peer is gone. payload holds SIM_PACKET_BYTES. */
int sim_packet_receive(int fd, struct sim_packet *packet, uint8_t *payload);

#endif
