/* verbs_api.c - see verbs_api.h. */
#include "verbs_api.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "status.h"

#define LIBRARY_DEFAULT "libibverbs.so.1"

static struct rr_verbs table;
static pthread_once_t load_once = PTHREAD_ONCE_INIT;
static bool loaded;
static char path[512];
static char reason[700];

static int post_send(struct rr_ibv_qp *qp, struct rr_ibv_send_wr *wr, struct rr_ibv_send_wr **bad)
{
	return qp->context->ops.post_send(qp, wr, bad);
}

static int post_recv(struct rr_ibv_qp *qp, struct rr_ibv_recv_wr *wr, struct rr_ibv_recv_wr **bad)
{
	return qp->context->ops.post_recv(qp, wr, bad);
}

static int poll_cq(struct rr_ibv_cq *cq, int count, struct rr_ibv_wc *wc)
{
	return cq->context->ops.poll_cq(cq, count, wc);
}

static int req_notify_cq(struct rr_ibv_cq *cq, int solicited_only)
{
	return cq->context->ops.req_notify_cq(cq, solicited_only);
}

/* Every function that is called by name, and where it goes. */
static const struct {
	const char *name;
	size_t offset;
} wanted[] = {
#define WANTED(member) {"ibv_" #member, offsetof(struct rr_verbs, member)}
	WANTED(get_device_list), WANTED(free_device_list), WANTED(open_device), WANTED(close_device),
	WANTED(query_device), WANTED(query_port), WANTED(query_gid), WANTED(get_async_event),
	WANTED(ack_async_event), WANTED(alloc_pd), WANTED(dealloc_pd), WANTED(reg_mr), WANTED(dereg_mr),
	WANTED(create_comp_channel), WANTED(destroy_comp_channel), WANTED(create_cq), WANTED(destroy_cq),
	WANTED(get_cq_event), WANTED(ack_cq_events), WANTED(create_qp), WANTED(destroy_qp), WANTED(modify_qp),
	WANTED(query_qp),
#undef WANTED
};

static void load(void)
{
	const char *given = getenv("RDMARING_LIBIBVERBS");
	void *library;

	snprintf(path, sizeof(path), "%s", given && given[0] ? given : LIBRARY_DEFAULT);
	library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		snprintf(reason, sizeof(reason), "libibverbs cannot be opened: %.500s", dlerror());
		return;
	}
	for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
		void *function = dlsym(library, wanted[i].name);
		if (!function) {
			snprintf(reason, sizeof(reason), "%s has no function %s: a libibverbs of 1.1 or later is needed", path,
				 wanted[i].name);
			dlclose(library);
			return;
		}
		memcpy((char *)&table + wanted[i].offset, &function, sizeof(function));
	}
	void *newer = dlsym(library, "_ibv_query_gid_ex");
	memcpy(&table.query_gid_ex, &newer, sizeof(newer));
	newer = dlsym(library, "ibv_reg_dmabuf_mr");
	memcpy(&table.reg_dmabuf_mr, &newer, sizeof(newer));
	table.post_send = post_send;
	table.post_recv = post_recv;
	table.poll_cq = poll_cq;
	table.req_notify_cq = req_notify_cq;
	table.path = path;
	loaded = true; /* and never closed: drivers of devices leave threads and handlers behind */
}

rr_status rr_verbs_load(const struct rr_verbs **out)
{
	pthread_once(&load_once, load);
	if (!loaded) {
		rr_fail(RR_ERR_UNSUPPORTED, "%s", reason);
		strcpy(rr_error_here()->hint, "install the package libibverbs1 (rdma-core) for InfiniBand or RoCE");
		return RR_ERR_UNSUPPORTED;
	}
	*out = &table;
	return RR_OK;
}

const char *rr_verbs_error(int result)
{
	return strerror(result > 0 ? result : errno);
}
