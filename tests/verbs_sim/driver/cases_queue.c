/* cases_queue.c - what queue pairs refuse, and how their queues are counted. */
#include "driver.h"

#include <errno.h>
#include <string.h>

static int to_state(struct end *end, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };

	return ibv_modify_qp(end->qp, &attr, IBV_QP_STATE);
}

CASE(states)
{
	struct ibv_qp_cap cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 };
	struct path path = default_path;
	struct end end;

	open_end(&end, &cap, 16);
	describe(&end, &path);
	CHECK_EQ(post_recv(&end, 1, 0, 8), EINVAL); /* RESET takes no receives */
	CHECK_EQ(to_rtr(&end, &path, &path), EINVAL);
	CHECK_EQ(to_state(&end, IBV_QPS_ERR), EINVAL);
	CHECK_EQ(to_state(&end, IBV_QPS_INIT), EINVAL); /* without port, pkey and access flags */
	to_init(&end);
	CHECK_EQ(post_recv(&end, 1, 0, 8), 0);
	CHECK_EQ(post(&end, &end, IBV_WR_SEND, 1, 0, 8, 0), EINVAL);
	CHECK_EQ(to_rts(&end, &path), EINVAL);
	CHECK_EQ(to_state(&end, IBV_QPS_RTR), EINVAL);
	CHECK_EQ(to_rtr(&end, &path, &path), 0);
	CHECK_EQ(post(&end, &end, IBV_WR_SEND, 1, 0, 8, 0), EINVAL);
	CHECK_EQ(to_rtr(&end, &path, &path), EINVAL);
	CHECK_EQ(to_rts(&end, &path), 0);
	CHECK_EQ(state_of(&end), IBV_QPS_RTS);
	CHECK_EQ(to_state(&end, IBV_QPS_INIT), EINVAL);
	CHECK_EQ(to_state(&end, IBV_QPS_ERR), 0);
	CHECK_EQ(to_rts(&end, &path), EINVAL);
	expect_wc(&end, 1, IBV_WC_WR_FLUSH_ERR);
	CHECK_EQ(to_state(&end, IBV_QPS_RESET), 0);
	to_init(&end);
	close_end(&end);
}

CASE(values)
{
	struct ibv_qp_cap cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 };
	struct path good = default_path, own, remote;
	struct end end;

	open_end(&end, &cap, 16);
	describe(&end, &good);
	to_init(&end);
	own = good;
	own.mtu = (enum ibv_mtu)6;
	CHECK_EQ(to_rtr(&end, &own, &good), EINVAL);
	own = good;
	own.gid_index = 9; /* behind the table */
	CHECK_EQ(to_rtr(&end, &own, &good), EINVAL);
	own.gid_index = 1; /* IPv6 towards an IPv4-mapped GID */
	CHECK_EQ(to_rtr(&end, &own, &good), EINVAL);
	remote = good;
	remote.psn = 1 << 24;
	CHECK_EQ(to_rtr(&end, &good, &remote), EINVAL);
	remote = good;
	remote.qpn = 1 << 24;
	CHECK_EQ(to_rtr(&end, &good, &remote), EINVAL);
	remote = good;
	memset(&remote.gid, 0, sizeof(remote.gid));
	CHECK_EQ(to_rtr(&end, &good, &remote), EINVAL);
	remote = good;
	remote.lid = 1; /* without a GRH on Ethernet */
	CHECK_EQ(to_rtr(&end, &good, &remote), EINVAL);
	CHECK_EQ(to_rtr(&end, &good, &good), 0);
	own = good;
	own.retry_cnt = 8;
	CHECK_EQ(to_rts(&end, &own), EINVAL);
	own = good;
	own.timeout = 32;
	CHECK_EQ(to_rts(&end, &own), EINVAL);
	own = good;
	own.psn = 1 << 24;
	CHECK_EQ(to_rts(&end, &own), EINVAL);
	CHECK_EQ(to_rts(&end, &good), 0);
	close_end(&end);
}

CASE(flush)
{
	struct end a, b;

	open_pair(&a, &b, &default_path);
	for (uint64_t id = 0; id < 3; id++)
		CHECK_EQ(post_recv(&a, 100 + id, 0, 8), 0);
	CHECK_EQ(to_state(&a, IBV_QPS_ERR), 0);
	for (uint64_t id = 0; id < 3; id++)
		expect_wc(&a, 100 + id, IBV_WC_WR_FLUSH_ERR);
	/* Unsignaled requests are told of too; later ones are taken and flushed. */
	CHECK_EQ(post(&a, &b, IBV_WR_RDMA_WRITE, 7, 0, 8, 0), 0);
	CHECK_EQ(post_recv(&a, 103, 0, 8), 0);
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc = next_wc(&a);

		CHECK_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
		CHECK(wc.wr_id == 7 || wc.wr_id == 103);
	}
	close_pair(&a, &b);
}

/* Requests leave the send queue when a later signaled one is polled, not when they are done. */
CASE(sq_accounting)
{
	struct end a, b;

	open_pair(&a, &b, &default_path);
	for (uint64_t id = 0; id < 15; id++)
		CHECK_EQ(post(&a, &b, IBV_WR_RDMA_WRITE, id, 0, 64, 0), 0);
	CHECK_EQ(post(&a, &b, IBV_WR_RDMA_WRITE, 15, 0, 64, IBV_SEND_SIGNALED), 0);
	CHECK_EQ(post(&a, &b, IBV_WR_RDMA_WRITE, 16, 0, 64, 0), ENOMEM);
	for (uint64_t end = now_ms() + 100; now_ms() < end;)
		CHECK_EQ(post(&a, &b, IBV_WR_RDMA_WRITE, 16, 0, 64, 0), ENOMEM);
	expect_wc(&a, 15, IBV_WC_SUCCESS);
	for (uint64_t id = 20; id < 36; id++)
		CHECK_EQ(post(&a, &b, IBV_WR_RDMA_WRITE, id, 0, 64, id == 35 ? IBV_SEND_SIGNALED : 0), 0);
	CHECK_EQ(post(&a, &b, IBV_WR_RDMA_WRITE, 36, 0, 64, 0), ENOMEM);
	expect_wc(&a, 35, IBV_WC_SUCCESS);
	close_pair(&a, &b);
}

CASE(rq_accounting)
{
	struct ibv_sge sge[3] = { { 0 } };
	struct ibv_recv_wr recv = { .sg_list = sge, .num_sge = 3 }, *bad_recv = NULL;
	struct ibv_send_wr send = { .sg_list = sge, .num_sge = 3, .opcode = IBV_WR_SEND }, *bad_send = NULL;
	struct end a, b;

	open_pair(&a, &b, &default_path);
	CHECK_EQ(ibv_post_recv(b.qp, &recv, &bad_recv), EINVAL); /* max_recv_sge is 2 */
	CHECK(bad_recv == &recv);
	CHECK_EQ(ibv_post_send(a.qp, &send, &bad_send), EINVAL);
	CHECK(bad_send == &send);
	for (uint64_t id = 0; id < 16; id++)
		CHECK_EQ(post_recv(&b, id, 0, 64), 0);
	CHECK_EQ(post_recv(&b, 16, 0, 64), ENOMEM);
	CHECK_EQ(post(&a, &b, IBV_WR_SEND, 1, 0, 64, IBV_SEND_SIGNALED), 0);
	expect_wc(&a, 1, IBV_WC_SUCCESS);
	CHECK_EQ(expect_wc(&b, 0, IBV_WC_SUCCESS).byte_len, 64);
	CHECK_EQ(post_recv(&b, 16, 0, 64), 0);
	close_pair(&a, &b);
}

CASE(inline_data)
{
	struct end a, b;
	uint8_t bytes[61];
	struct ibv_sge sge = { (uintptr_t)bytes, 60, 0 }; /* no key: the bytes are copied */
	struct ibv_send_wr wr = { .wr_id = 5, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
				  .send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED }, *bad;

	open_pair(&a, &b, &default_path);
	wr.wr.rdma.remote_addr = (uintptr_t)b.buffer;
	wr.wr.rdma.rkey = b.mr->rkey;
	memset(bytes, 0x11, sizeof(bytes));
	CHECK_EQ(post_recv(&b, 0, 0, 0), 0);
	CHECK_EQ(ibv_post_send(a.qp, &wr, &bad), 0);
	memset(bytes, 0x22, sizeof(bytes)); /* after the post the source is the caller's */
	expect_wc(&b, 0, IBV_WC_SUCCESS);
	for (int i = 0; i < 60; i++)
		CHECK_EQ(b.buffer[i], 0x11);
	CHECK_EQ(b.buffer[60], 0);
	expect_wc(&a, 5, IBV_WC_SUCCESS);
	sge.length = 61;
	CHECK_EQ(ibv_post_send(a.qp, &wr, &bad), EINVAL);
	close_pair(&a, &b);
}

CASE(cq_overrun)
{
	struct ibv_qp_cap cap = { .max_send_wr = 16, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 };
	struct ibv_wc wc[16];
	struct ibv_async_event event;
	struct end a, b;

	open_end(&a, &cap, 4);
	open_end(&b, &cap, 4);
	connect_ends(&a, &b, &default_path);
	for (uint64_t id = 0; id < 5; id++)
		CHECK_EQ(post(&a, &b, IBV_WR_RDMA_WRITE, id, 0, 8, IBV_SEND_SIGNALED), 0);
	event = next_event(&a);
	CHECK_EQ(event.event_type, IBV_EVENT_CQ_ERR);
	CHECK(event.element.cq == a.cq);
	event = next_event(&a);
	CHECK_EQ(event.event_type, IBV_EVENT_QP_FATAL);
	CHECK(event.element.qp == a.qp);
	CHECK_EQ(state_of(&a), IBV_QPS_ERR);
	CHECK_EQ(ibv_poll_cq(a.cq, 16, wc), 4);
	CHECK_EQ(ibv_poll_cq(a.cq, 16, wc), 0);
	close_pair(&a, &b);
}
