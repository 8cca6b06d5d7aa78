/*
 * verbs_api.h - libibverbs as a table of functions, opened at run time.
 *
 * A machine without the library, or with one that lacks a function, is a status with a reason. The table is filled
 * once a process, from RDMARING_LIBIBVERBS if that is set (a path: tests put their own library there), else from
 * libibverbs.so.1.
 *
 * ibv_fork_init() is not called: all memory that we register is shared (memfd, or MAP_SHARED), so a fork copies
 * nothing away from under the device. A child maps other pages in its place (forked.h), and calls nothing of the table
 * for its parent's communicators.
 *
 * Calls that return int return 0, or an error number (some libraries: -1 and errno): see rr_verbs_error().
 * Threads: rr_verbs_load() from any thread.
 */
#ifndef RR_VERBS_API_H
#define RR_VERBS_API_H

#include "rdmaring.h"
#include "verbs_abi.h"

struct rr_verbs {
	struct rr_ibv_device **(*get_device_list)(int *count);
	void (*free_device_list)(struct rr_ibv_device **list);
	struct rr_ibv_context *(*open_device)(struct rr_ibv_device *device);
	int (*close_device)(struct rr_ibv_context *context);
	int (*query_device)(struct rr_ibv_context *context, struct rr_ibv_device_attr *attributes);
	int (*query_port)(struct rr_ibv_context *context, uint8_t port, struct rr_ibv_port_attr *attributes);
	int (*query_gid)(struct rr_ibv_context *context, uint8_t port, int index, union rr_ibv_gid *gid);
	int (*get_async_event)(struct rr_ibv_context *context, struct rr_ibv_async_event *event);
	void (*ack_async_event)(struct rr_ibv_async_event *event);
	struct rr_ibv_pd *(*alloc_pd)(struct rr_ibv_context *context);
	int (*dealloc_pd)(struct rr_ibv_pd *pd);
	struct rr_ibv_mr *(*reg_mr)(struct rr_ibv_pd *pd, void *address, size_t bytes, int access);
	int (*dereg_mr)(struct rr_ibv_mr *mr);
	struct rr_ibv_comp_channel *(*create_comp_channel)(struct rr_ibv_context *context);
	int (*destroy_comp_channel)(struct rr_ibv_comp_channel *channel);
	struct rr_ibv_cq *(*create_cq)(struct rr_ibv_context *context, int count, void *user,
				       struct rr_ibv_comp_channel *channel, int vector);
	int (*destroy_cq)(struct rr_ibv_cq *cq);
	int (*get_cq_event)(struct rr_ibv_comp_channel *channel, struct rr_ibv_cq **cq, void **user);
	void (*ack_cq_events)(struct rr_ibv_cq *cq, unsigned int count);
	struct rr_ibv_qp *(*create_qp)(struct rr_ibv_pd *pd, struct rr_ibv_qp_init_attr *attributes);
	int (*destroy_qp)(struct rr_ibv_qp *qp);
	int (*modify_qp)(struct rr_ibv_qp *qp, struct rr_ibv_qp_attr *attributes, int mask);
	int (*query_qp)(struct rr_ibv_qp *qp, struct rr_ibv_qp_attr *attributes, int mask,
			struct rr_ibv_qp_init_attr *made_with);
	/* Per message: through the context's own table. */
	int (*post_send)(struct rr_ibv_qp *qp, struct rr_ibv_send_wr *wr, struct rr_ibv_send_wr **bad);
	int (*post_recv)(struct rr_ibv_qp *qp, struct rr_ibv_recv_wr *wr, struct rr_ibv_recv_wr **bad);
	int (*poll_cq)(struct rr_ibv_cq *cq, int count, struct rr_ibv_wc *wc);
	int (*req_notify_cq)(struct rr_ibv_cq *cq, int solicited_only);
	/* Newer libraries only; NULL else. */
	int (*query_gid_ex)(struct rr_ibv_context *context, uint32_t port, uint32_t index,
			    struct rr_ibv_gid_entry *entry, uint32_t flags, size_t entry_bytes);
	struct rr_ibv_mr *(*reg_dmabuf_mr)(struct rr_ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t iova, int fd, int access);
	const char *path; /* what was opened */
};

/* RR_ERR_UNSUPPORTED with the reason: no such library, or a function is missing. */
rr_status rr_verbs_load(const struct rr_verbs **out);
/* The words of the system for a call that returned `result`. */
const char *rr_verbs_error(int result);

#endif
