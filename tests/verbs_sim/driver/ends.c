/* ends.c - opening, connecting and using one end. */
#include "driver.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <time.h>

const struct path default_path = {
	.psn = 0xabcdef, .gid_index = 3, .timeout = 14, .retry_cnt = 1, .rnr_retry = 7, .mtu = IBV_MTU_1024,
};

void open_end(struct end *end, const struct ibv_qp_cap *cap, int cqe)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_qp_init_attr init = { .cap = *cap, .qp_type = IBV_QPT_RC };

	CHECK(list && list[0]);
	end->context = ibv_open_device(list[0]);
	CHECK(end->context);
	ibv_free_device_list(list);
	end->pd = ibv_alloc_pd(end->context);
	CHECK(end->pd);
	end->channel = ibv_create_comp_channel(end->context);
	CHECK(end->channel);
	end->cq = ibv_create_cq(end->context, cqe, end, end->channel, 0);
	CHECK(end->cq);
	init.send_cq = init.recv_cq = end->cq;
	end->qp = ibv_create_qp(end->pd, &init);
	CHECK(end->qp);
	end->buffer = calloc(1, BUFFER_BYTES);
	end->mr = ibv_reg_mr(end->pd, end->buffer, BUFFER_BYTES,
			     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	CHECK(end->mr);
}

void close_end(struct end *end)
{
	CHECK_EQ(ibv_destroy_qp(end->qp), 0);
	CHECK_EQ(ibv_destroy_cq(end->cq), 0);
	CHECK_EQ(ibv_destroy_comp_channel(end->channel), 0);
	CHECK_EQ(ibv_dereg_mr(end->mr), 0);
	CHECK_EQ(ibv_dealloc_pd(end->pd), 0);
	CHECK_EQ(ibv_close_device(end->context), 0);
	free(end->buffer);
}

void describe(const struct end *end, struct path *path)
{
	struct ibv_port_attr port;

	path->qpn = end->qp->qp_num;
	path->rkey = end->mr->rkey;
	path->address = (uintptr_t)end->buffer;
	CHECK_EQ(ibv_query_port(end->context, 1, &port), 0);
	path->lid = port.lid;
	CHECK_EQ(ibv_query_gid(end->context, 1, (int)path->gid_index, &path->gid), 0);
}

void to_init(struct end *end)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
	};

	CHECK_EQ(ibv_modify_qp(end->qp, &attr,
			       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
}

int to_rtr(struct end *end, const struct path *own, const struct path *remote)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = own->mtu, .dest_qp_num = remote->qpn, .rq_psn = remote->psn,
		.max_dest_rd_atomic = 4, .min_rnr_timer = 12,
		.ah_attr = { .port_num = 1, .dlid = remote->lid, .is_global = remote->lid == 0,
			     .grh = { .dgid = remote->gid, .sgid_index = (uint8_t)own->gid_index, .hop_limit = 64 } },
	};

	return ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			     IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

int to_rts(struct end *end, const struct path *own)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS, .timeout = own->timeout, .retry_cnt = own->retry_cnt,
		.rnr_retry = own->rnr_retry, .sq_psn = own->psn, .max_rd_atomic = 4,
	};

	return ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

void connect_ends(struct end *a, struct end *b, const struct path *settings)
{
	struct path of_a = *settings, of_b = *settings;

	describe(a, &of_a);
	describe(b, &of_b);
	to_init(a);
	to_init(b);
	CHECK_EQ(to_rtr(a, &of_a, &of_b), 0);
	CHECK_EQ(to_rtr(b, &of_b, &of_a), 0);
	CHECK_EQ(to_rts(a, &of_a), 0);
	CHECK_EQ(to_rts(b, &of_b), 0);
}

void open_pair(struct end *a, struct end *b, const struct path *settings)
{
	struct ibv_qp_cap cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 2,
				  .max_inline_data = 60 };

	open_end(a, &cap, 64);
	open_end(b, &cap, 64);
	connect_ends(a, b, settings);
}

void close_pair(struct end *a, struct end *b)
{
	close_end(a);
	close_end(b);
}

enum ibv_qp_state state_of(const struct end *end)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	CHECK_EQ(ibv_query_qp(end->qp, &attr, IBV_QP_STATE, &init), 0);
	return attr.qp_state;
}

int post_recv(struct end *end, uint64_t id, uint32_t offset, uint32_t bytes)
{
	struct ibv_sge sge = { (uintptr_t)end->buffer + offset, bytes, end->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = bytes ? 1 : 0 }, *bad;

	return ibv_post_recv(end->qp, &wr, &bad);
}

int post(struct end *end, const struct end *remote, enum ibv_wr_opcode opcode, uint64_t id, uint32_t offset,
	 uint32_t bytes, unsigned flags)
{
	struct ibv_sge sge = { (uintptr_t)end->buffer + offset, bytes, end->mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = id, .sg_list = &sge, .num_sge = bytes ? 1 : 0, .opcode = opcode, .send_flags = flags,
		.imm_data = (uint32_t)id,
		.wr.rdma = { (uintptr_t)remote->buffer + offset, remote->mr->rkey },
	}, *bad;

	return ibv_post_send(end->qp, &wr, &bad);
}

uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

struct ibv_wc next_wc(struct end *end)
{
	uint64_t deadline = now_ms() + WAIT_MS;
	struct ibv_wc wc;
	int got;

	while ((got = ibv_poll_cq(end->cq, 1, &wc)) == 0)
		CHECK(now_ms() < deadline);
	CHECK_EQ(got, 1);
	CHECK_EQ(wc.qp_num, end->qp->qp_num);
	return wc;
}

struct ibv_wc expect_wc(struct end *end, uint64_t id, enum ibv_wc_status status)
{
	struct ibv_wc wc = next_wc(end);

	if (wc.status != status)
		fprintf(stderr, "completion %llu: %s\n", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
	CHECK_EQ(wc.status, status);
	CHECK_EQ(wc.wr_id, id);
	return wc;
}

struct ibv_async_event next_event(struct end *end)
{
	struct pollfd ready = { .fd = end->context->async_fd, .events = POLLIN };
	struct ibv_async_event event;

	CHECK_EQ(poll(&ready, 1, WAIT_MS), 1);
	CHECK_EQ(ibv_get_async_event(end->context, &event), 0);
	ibv_ack_async_event(&event);
	return event;
}
