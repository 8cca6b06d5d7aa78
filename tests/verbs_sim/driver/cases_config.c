/* cases_config.c - cases whose meaning the environment gives: the Python side sets VERBS_SIM and reads the report. */
#include "driver.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

static const struct ibv_qp_cap cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 };

/* Ends with one of each still there: the report counts them. */
CASE(leaves_all)
{
	struct end a;

	open_end(&a, &cap, 16);
	CHECK(ibv_get_device_list(NULL));
}

CASE(misuses)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct end a, b;
	struct ibv_cq *cq;
	void *context;

	open_pair(&a, &b, &default_path);
	CHECK_EQ(ibv_close_device(a.context), EBUSY);
	CHECK_EQ(ibv_destroy_cq(a.cq), EBUSY);
	CHECK_EQ(ibv_req_notify_cq(a.cq, 0), 0);
	CHECK_EQ(post_recv(&a, 1, 0, 8), 0);
	CHECK_EQ(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE), 0);
	CHECK_EQ(ibv_get_cq_event(a.channel, &cq, &context), 0); /* never acknowledged */
	close_pair(&a, &b);
}

/* Two requests that no acknowledgement has reached when their queue pair goes: with delay_us=1000000. */
CASE(drops)
{
	struct end a, b;

	open_pair(&a, &b, &default_path);
	CHECK_EQ(post(&a, &b, IBV_WR_RDMA_WRITE, 1, 0, 8, 0), 0);
	CHECK_EQ(post(&a, &b, IBV_WR_RDMA_WRITE, 2, 0, 8, 0), 0);
	close_pair(&a, &b);
}

CASE(gid_table)
{
	struct ibv_port_attr port;
	struct end end;

	open_end(&end, &cap, 16);
	CHECK_EQ(ibv_query_port(end.context, 1, &port), 0);
	printf("link_layer %d lid %d mtu %d\n", port.link_layer, port.lid, 128 << port.active_mtu);
	for (int row = 0; row < port.gid_tbl_len; row++) {
		struct ibv_gid_entry entry = { .gid_type = 99 };
		union ibv_gid gid;
		char text[INET6_ADDRSTRLEN];
		int error = ibv_query_gid_ex(end.context, 1, (uint32_t)row, &entry, 0);

		if (ibv_query_gid(end.context, 1, row, &gid))
			printf("%d %s\n", row, strerror(errno));
		else
			printf("%d %s %s\n", row, inet_ntop(AF_INET6, gid.raw, text, sizeof(text)),
			       error ? strerror(error) : entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? "v2" : "v1");
		CHECK(error || !memcmp(&entry.gid, &gid, sizeof(gid)));
	}
	close_end(&end);
}

/* By row 0 of the GID table; with link_layer=infiniband by LID, without a GRH. */
CASE(first_row)
{
	struct path path = default_path;
	struct end a, b;

	path.gid_index = 0;
	open_pair(&a, &b, &path);
	CHECK_EQ(post_recv(&b, 1, 0, 0), 0);
	CHECK_EQ(post(&a, &b, IBV_WR_RDMA_WRITE_WITH_IMM, 2, 0, 4096, IBV_SEND_SIGNALED), 0);
	expect_wc(&b, 1, IBV_WC_SUCCESS);
	expect_wc(&a, 2, IBV_WC_SUCCESS);
	close_pair(&a, &b);
}

/* Writes with immediate, one at a time, until one fails at either end: its number and both statuses are printed. */
CASE(breaks)
{
	enum ibv_wc_status sent = IBV_WC_SUCCESS, received = IBV_WC_SUCCESS;
	uint64_t id = 0;
	struct end a, b;

	open_pair(&a, &b, &default_path);
	while (sent == IBV_WC_SUCCESS && received == IBV_WC_SUCCESS && id < 20) {
		struct ibv_wc wc;

		CHECK_EQ(post_recv(&b, ++id, 0, 0), 0);
		CHECK_EQ(post(&a, &b, IBV_WR_RDMA_WRITE_WITH_IMM, id, 0, 8, IBV_SEND_SIGNALED), 0);
		sent = next_wc(&a).status;
		for (uint64_t until = now_ms() + (sent == IBV_WC_SUCCESS ? WAIT_MS : 50); now_ms() < until;) {
			if (ibv_poll_cq(b.cq, 1, &wc) == 1) {
				received = wc.status;
				break;
			}
		}
	}
	printf("%d: %s; %s\n", (int)id, ibv_wc_status_str(sent), ibv_wc_status_str(received));
	close_pair(&a, &b);
}

/* max_inline=8,max_sge=2,max_qp_wr=32,max_cqe=100,max_rd_atomic=3,memlock_kb=1028 */
CASE(limits)
{
	struct ibv_qp_cap good = { .max_send_wr = 32, .max_recv_wr = 32, .max_send_sge = 2, .max_recv_sge = 2,
				   .max_inline_data = 8 };
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC };
	struct path path = default_path;
	struct ibv_device_attr device;
	struct ibv_mr *mr;
	struct end end;

	open_end(&end, &good, 100);
	init.send_cq = init.recv_cq = end.cq;
	CHECK_EQ(ibv_query_device(end.context, &device), 0);
	CHECK_EQ(device.max_sge, 2);
	CHECK_EQ(device.max_qp_wr, 32);
	CHECK_EQ(device.max_cqe, 100);
	CHECK_EQ(device.max_qp_rd_atom, 3);
	for (int over = 0; over < 5; over++) {
		init.cap = good;
		init.cap.max_send_wr += over == 0;
		init.cap.max_recv_wr += over == 1;
		init.cap.max_send_sge += over == 2;
		init.cap.max_recv_sge += over == 3;
		init.cap.max_inline_data += over == 4;
		CHECK(!ibv_create_qp(end.pd, &init));
		CHECK_EQ(errno, EINVAL);
	}
	CHECK(!ibv_create_cq(end.context, 101, NULL, NULL, 0));
	CHECK_EQ(errno, EINVAL);
	mr = ibv_reg_mr(end.pd, end.buffer, 4096, 0); /* beside the buffer's 1024 KiB */
	CHECK(mr);
	CHECK(!ibv_reg_mr(end.pd, end.buffer, 1, 0));
	CHECK_EQ(errno, ENOMEM);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	describe(&end, &path);
	to_init(&end);
	CHECK_EQ(to_rtr(&end, &path, &path), EINVAL); /* asks for 4 reads at once */
	close_end(&end);
}

/* fail=ibv_alloc_pd:2:ENOMEM,fail=ibv_post_send:3:EIO,fail=ibv_poll_cq:2+:EIO,unsupported=ibv_create_comp_channel */
CASE(nth_calls)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = ibv_open_device(list[0]);
	struct ibv_pd *first = ibv_alloc_pd(context), *third;
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	struct ibv_wc wc;

	ibv_free_device_list(list);
	CHECK(first && cq);
	CHECK(!ibv_alloc_pd(context));
	CHECK_EQ(errno, ENOMEM);
	third = ibv_alloc_pd(context);
	CHECK(third);
	CHECK_EQ(ibv_poll_cq(cq, 1, &wc), 0);
	CHECK_EQ(ibv_poll_cq(cq, 1, &wc), -1);
	CHECK_EQ(ibv_poll_cq(cq, 1, &wc), -1);
	for (int i = 0; i < 2; i++) {
		CHECK(!ibv_create_comp_channel(context));
		CHECK_EQ(errno, EOPNOTSUPP);
	}
	CHECK_EQ(ibv_destroy_cq(cq), 0);
	CHECK_EQ(ibv_dealloc_pd(first), 0);
	CHECK_EQ(ibv_dealloc_pd(third), 0);
	CHECK_EQ(ibv_close_device(context), 0);
}

/* wc_error=2:REM_OP_ERR:0x77 */
CASE(wc_errors)
{
	struct end a, b;

	open_pair(&a, &b, &default_path);
	for (uint64_t id = 1; id < 4; id++)
		CHECK_EQ(post(&a, &b, IBV_WR_RDMA_WRITE, id, 0, 8, IBV_SEND_SIGNALED), 0);
	expect_wc(&a, 1, IBV_WC_SUCCESS);
	CHECK_EQ(expect_wc(&a, 2, IBV_WC_REM_OP_ERR).vendor_err, 0x77);
	CHECK(next_wc(&a).wr_id == 3);
	CHECK_EQ(state_of(&a), IBV_QPS_ERR);
	close_pair(&a, &b);
}

CASE(no_device)
{
	int count = -1;
	struct ibv_device **list = ibv_get_device_list(&count);

	CHECK(list && !list[0]);
	CHECK_EQ(count, 0);
	ibv_free_device_list(list);
}
