/*
 * verbs_abi.h - the part of libibverbs's binary interface that we use, declared by ourselves.
 *
 * The interface has been stable since libibverbs 1.1 (2007); the build needs no RDMA header and the library
 * no RDMA package: libibverbs.so.1 is opened at run time (verbs_api.h). tests/policy/test_verbs_abi.py compares
 * every size, offset and value here with <infiniband/verbs.h>.
 */
#ifndef RR_VERBS_ABI_H
#define RR_VERBS_ABI_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

struct rr_ibv_context;
struct rr_ibv_pd;
struct rr_ibv_srq;

enum { RR_IBV_NAME_BYTES = 64, RR_IBV_PATH_BYTES = 256 };

enum rr_ibv_transport { RR_IBV_TRANSPORT_UNKNOWN = -1, RR_IBV_TRANSPORT_IB = 0, RR_IBV_TRANSPORT_IWARP = 1 };

struct rr_ibv_device {
	void *reserved[2];
	int node_type;
	int transport_type;
	char name[RR_IBV_NAME_BYTES];
	char dev_name[RR_IBV_NAME_BYTES];
	char dev_path[RR_IBV_PATH_BYTES];
	char ibdev_path[RR_IBV_PATH_BYTES];
};

union rr_ibv_gid {
	uint8_t raw[16];
	struct {
		uint64_t subnet_prefix; /* network order */
		uint64_t interface_id;
	} global;
};

struct rr_ibv_gid_entry {
	union rr_ibv_gid gid;
	uint32_t gid_index;
	uint32_t port_num;
	uint32_t gid_type; /* 0 IB, 1 RoCE v1, 2 RoCE v2 */
	uint32_t ndev_ifindex;
};

enum rr_ibv_port_state {
	RR_IBV_PORT_NOP = 0,
	RR_IBV_PORT_DOWN = 1,
	RR_IBV_PORT_INIT = 2,
	RR_IBV_PORT_ARMED = 3,
	RR_IBV_PORT_ACTIVE = 4,
	RR_IBV_PORT_ACTIVE_DEFER = 5
};

enum rr_ibv_link_layer { RR_IBV_LAYER_UNSPECIFIED = 0, RR_IBV_LAYER_INFINIBAND = 1, RR_IBV_LAYER_ETHERNET = 2 };

/* MTU codes: 256 << (code - 1) bytes. */
enum rr_ibv_mtu { RR_IBV_MTU_256 = 1, RR_IBV_MTU_512 = 2, RR_IBV_MTU_1024 = 3, RR_IBV_MTU_2048 = 4, RR_IBV_MTU_4096 = 5 };

struct rr_ibv_port_attr {
	int state; /* enum rr_ibv_port_state */
	int max_mtu;
	int active_mtu;
	int gid_tbl_len;
	uint32_t port_cap_flags;
	uint32_t max_msg_sz;
	uint32_t bad_pkey_cntr;
	uint32_t qkey_viol_cntr;
	uint16_t pkey_tbl_len;
	uint16_t lid;
	uint16_t sm_lid;
	uint8_t lmc;
	uint8_t max_vl_num;
	uint8_t sm_sl;
	uint8_t subnet_timeout;
	uint8_t init_type_reply;
	uint8_t active_width;
	uint8_t active_speed;
	uint8_t phys_state;
	uint8_t link_layer;
	uint8_t flags;
	uint16_t port_cap_flags2;
};

struct rr_ibv_device_attr {
	char fw_ver[64];
	uint64_t node_guid; /* network order */
	uint64_t sys_image_guid;
	uint64_t max_mr_size;
	uint64_t page_size_cap;
	uint32_t vendor_id;
	uint32_t vendor_part_id;
	uint32_t hw_ver;
	int max_qp;
	int max_qp_wr;
	unsigned int device_cap_flags;
	int max_sge;
	int max_sge_rd;
	int max_cq;
	int max_cqe;
	int max_mr;
	int max_pd;
	int max_qp_rd_atom;
	int unused[19]; /* limits of what we do not use */
	uint16_t max_pkeys;
	uint8_t local_ca_ack_delay;
	uint8_t phys_port_cnt;
};

struct rr_ibv_mr {
	struct rr_ibv_context *context;
	struct rr_ibv_pd *pd;
	void *addr;
	size_t length;
	uint32_t handle;
	uint32_t lkey;
	uint32_t rkey;
};

enum rr_ibv_access {
	RR_IBV_ACCESS_LOCAL_WRITE = 1,
	RR_IBV_ACCESS_REMOTE_WRITE = 2,
	RR_IBV_ACCESS_REMOTE_READ = 4
};

struct rr_ibv_comp_channel {
	struct rr_ibv_context *context;
	int fd;
	int refcnt;
};

struct rr_ibv_cq {
	struct rr_ibv_context *context;
	struct rr_ibv_comp_channel *channel;
	void *cq_context;
	uint32_t handle;
	int cqe;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t comp_events_completed;
	uint32_t async_events_completed;
};

enum rr_ibv_wc_status {
	RR_IBV_WC_SUCCESS = 0,
	RR_IBV_WC_LOC_LEN_ERR = 1,
	RR_IBV_WC_LOC_QP_OP_ERR = 2,
	RR_IBV_WC_LOC_EEC_OP_ERR = 3,
	RR_IBV_WC_LOC_PROT_ERR = 4,
	RR_IBV_WC_WR_FLUSH_ERR = 5,
	RR_IBV_WC_MW_BIND_ERR = 6,
	RR_IBV_WC_BAD_RESP_ERR = 7,
	RR_IBV_WC_LOC_ACCESS_ERR = 8,
	RR_IBV_WC_REM_INV_REQ_ERR = 9,
	RR_IBV_WC_REM_ACCESS_ERR = 10,
	RR_IBV_WC_REM_OP_ERR = 11,
	RR_IBV_WC_RETRY_EXC_ERR = 12,
	RR_IBV_WC_RNR_RETRY_EXC_ERR = 13,
	RR_IBV_WC_LOC_RDD_VIOL_ERR = 14,
	RR_IBV_WC_REM_INV_RD_REQ_ERR = 15,
	RR_IBV_WC_REM_ABORT_ERR = 16,
	RR_IBV_WC_INV_EECN_ERR = 17,
	RR_IBV_WC_INV_EEC_STATE_ERR = 18,
	RR_IBV_WC_FATAL_ERR = 19,
	RR_IBV_WC_RESP_TIMEOUT_ERR = 20,
	RR_IBV_WC_GENERAL_ERR = 21
};

enum rr_ibv_wc_opcode { RR_IBV_WC_RDMA_WRITE = 1, RR_IBV_WC_RECV = 128, RR_IBV_WC_RECV_RDMA_WITH_IMM = 129 };

enum { RR_IBV_WC_WITH_IMM = 2 };

struct rr_ibv_wc {
	uint64_t wr_id;
	int status; /* enum rr_ibv_wc_status */
	int opcode; /* enum rr_ibv_wc_opcode; valid only with status 0 */
	uint32_t vendor_err;
	uint32_t byte_len;
	uint32_t imm_data; /* network order */
	uint32_t qp_num;
	uint32_t src_qp;
	unsigned int wc_flags;
	uint16_t pkey_index;
	uint16_t slid;
	uint8_t sl;
	uint8_t dlid_path_bits;
};

enum rr_ibv_qp_type { RR_IBV_QPT_RC = 2 };

enum rr_ibv_qp_state {
	RR_IBV_QPS_RESET = 0,
	RR_IBV_QPS_INIT = 1,
	RR_IBV_QPS_RTR = 2,
	RR_IBV_QPS_RTS = 3,
	RR_IBV_QPS_SQD = 4,
	RR_IBV_QPS_SQE = 5,
	RR_IBV_QPS_ERR = 6
};

struct rr_ibv_qp {
	struct rr_ibv_context *context;
	void *qp_context;
	struct rr_ibv_pd *pd;
	struct rr_ibv_cq *send_cq;
	struct rr_ibv_cq *recv_cq;
	struct rr_ibv_srq *srq;
	uint32_t handle;
	uint32_t qp_num;
	int state;
	int qp_type;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t events_completed;
};

struct rr_ibv_qp_cap {
	uint32_t max_send_wr;
	uint32_t max_recv_wr;
	uint32_t max_send_sge;
	uint32_t max_recv_sge;
	uint32_t max_inline_data;
};

struct rr_ibv_qp_init_attr {
	void *qp_context;
	struct rr_ibv_cq *send_cq;
	struct rr_ibv_cq *recv_cq;
	struct rr_ibv_srq *srq;
	struct rr_ibv_qp_cap cap;
	int qp_type;
	int sq_sig_all;
};

struct rr_ibv_global_route {
	union rr_ibv_gid dgid;
	uint32_t flow_label;
	uint8_t sgid_index;
	uint8_t hop_limit;
	uint8_t traffic_class;
};

struct rr_ibv_ah_attr {
	struct rr_ibv_global_route grh;
	uint16_t dlid;
	uint8_t sl;
	uint8_t src_path_bits;
	uint8_t static_rate;
	uint8_t is_global;
	uint8_t port_num;
};

struct rr_ibv_qp_attr {
	int qp_state;
	int cur_qp_state;
	int path_mtu;
	int path_mig_state;
	uint32_t qkey;
	uint32_t rq_psn;
	uint32_t sq_psn;
	uint32_t dest_qp_num;
	unsigned int qp_access_flags;
	struct rr_ibv_qp_cap cap;
	struct rr_ibv_ah_attr ah_attr;
	struct rr_ibv_ah_attr alt_ah_attr;
	uint16_t pkey_index;
	uint16_t alt_pkey_index;
	uint8_t en_sqd_async_notify;
	uint8_t sq_draining;
	uint8_t max_rd_atomic;
	uint8_t max_dest_rd_atomic;
	uint8_t min_rnr_timer;
	uint8_t port_num;
	uint8_t timeout;
	uint8_t retry_cnt;
	uint8_t rnr_retry;
	uint8_t alt_port_num;
	uint8_t alt_timeout;
	uint32_t rate_limit;
};

enum rr_ibv_qp_attr_mask {
	RR_IBV_QP_STATE = 1 << 0,
	RR_IBV_QP_ACCESS_FLAGS = 1 << 3,
	RR_IBV_QP_PKEY_INDEX = 1 << 4,
	RR_IBV_QP_PORT = 1 << 5,
	RR_IBV_QP_AV = 1 << 7,
	RR_IBV_QP_PATH_MTU = 1 << 8,
	RR_IBV_QP_TIMEOUT = 1 << 9,
	RR_IBV_QP_RETRY_CNT = 1 << 10,
	RR_IBV_QP_RNR_RETRY = 1 << 11,
	RR_IBV_QP_RQ_PSN = 1 << 12,
	RR_IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13,
	RR_IBV_QP_MIN_RNR_TIMER = 1 << 15,
	RR_IBV_QP_SQ_PSN = 1 << 16,
	RR_IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
	RR_IBV_QP_DEST_QPN = 1 << 20
};

struct rr_ibv_sge {
	uint64_t addr;
	uint32_t length;
	uint32_t lkey;
};

enum rr_ibv_wr_opcode { RR_IBV_WR_RDMA_WRITE = 0, RR_IBV_WR_RDMA_WRITE_WITH_IMM = 1, RR_IBV_WR_RDMA_READ = 4 };
enum rr_ibv_send_flags { RR_IBV_SEND_SIGNALED = 2, RR_IBV_SEND_SOLICITED = 4, RR_IBV_SEND_INLINE = 8 };

struct rr_ibv_send_wr {
	uint64_t wr_id;
	struct rr_ibv_send_wr *next;
	struct rr_ibv_sge *sg_list;
	int num_sge;
	int opcode; /* enum rr_ibv_wr_opcode */
	unsigned int send_flags;
	uint32_t imm_data; /* network order */
	union {
		struct {
			uint64_t remote_addr;
			uint32_t rkey;
		} rdma;
		uint64_t reserved[4]; /* as large as an atomic's operands */
	} wr;
	uint32_t remote_srqn;
	uint64_t tail[6]; /* memory windows and segmentation: unused */
};

struct rr_ibv_recv_wr {
	uint64_t wr_id;
	struct rr_ibv_recv_wr *next;
	struct rr_ibv_sge *sg_list;
	int num_sge;
};

enum rr_ibv_event_type {
	RR_IBV_EVENT_CQ_ERR = 0,
	RR_IBV_EVENT_QP_FATAL = 1,
	RR_IBV_EVENT_QP_REQ_ERR = 2,
	RR_IBV_EVENT_QP_ACCESS_ERR = 3,
	RR_IBV_EVENT_DEVICE_FATAL = 8,
	RR_IBV_EVENT_PORT_ACTIVE = 9,
	RR_IBV_EVENT_PORT_ERR = 10,
	RR_IBV_EVENT_LID_CHANGE = 11,
	RR_IBV_EVENT_GID_CHANGE = 18
};

struct rr_ibv_async_event {
	union {
		struct rr_ibv_cq *cq;
		struct rr_ibv_qp *qp;
		int port_num;
	} element;
	int event_type; /* enum rr_ibv_event_type */
};

/* The context's table; only the calls made per message go through it, the rest is exported by name. */
struct rr_ibv_context_ops {
	void *before_poll_cq[11];
	int (*poll_cq)(struct rr_ibv_cq *cq, int count, struct rr_ibv_wc *wc);
	int (*req_notify_cq)(struct rr_ibv_cq *cq, int solicited_only);
	void *before_post_send[12];
	int (*post_send)(struct rr_ibv_qp *qp, struct rr_ibv_send_wr *wr, struct rr_ibv_send_wr **bad);
	int (*post_recv)(struct rr_ibv_qp *qp, struct rr_ibv_recv_wr *wr, struct rr_ibv_recv_wr **bad);
	void *after_post_recv[5];
};

struct rr_ibv_context {
	struct rr_ibv_device *device;
	struct rr_ibv_context_ops ops;
	int cmd_fd;
	int async_fd;
	int num_comp_vectors;
	pthread_mutex_t mutex;
	void *abi_compat;
};

#endif
