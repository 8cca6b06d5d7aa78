/* cases_memory.c - keys, ranges and rights. */
#include "driver.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

CASE(bad_lkey)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = { .wr_id = 9, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE }, *bad;
	struct end a, b;

	open_pair(&a, &b, &default_path);
	sge = (struct ibv_sge){ (uintptr_t)a.buffer, 8, a.mr->lkey + 1 };
	wr.wr.rdma.remote_addr = (uintptr_t)b.buffer;
	wr.wr.rdma.rkey = b.mr->rkey;
	CHECK_EQ(post(&a, &b, IBV_WR_RDMA_WRITE, 8, 0, 8, IBV_SEND_SIGNALED), 0);
	CHECK_EQ(ibv_post_send(a.qp, &wr, &bad), 0);
	CHECK_EQ(post(&a, &b, IBV_WR_RDMA_WRITE, 10, 0, 8, 0), 0);
	expect_wc(&a, 8, IBV_WC_SUCCESS);
	expect_wc(&a, 9, IBV_WC_LOC_PROT_ERR);
	expect_wc(&a, 10, IBV_WC_WR_FLUSH_ERR);
	CHECK_EQ(state_of(&a), IBV_QPS_ERR);
	CHECK_EQ(state_of(&b), IBV_QPS_RTS);
	close_pair(&a, &b);
}

static void remote_access(uint64_t address_add, uint32_t rkey_add, uint32_t bytes)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = { .wr_id = 9, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE }, *bad;
	struct ibv_async_event event;
	struct end a, b;

	open_pair(&a, &b, &default_path);
	sge = (struct ibv_sge){ (uintptr_t)a.buffer, bytes, a.mr->lkey };
	memset(a.buffer, 0xff, bytes);
	wr.wr.rdma.remote_addr = (uintptr_t)b.buffer + address_add;
	wr.wr.rdma.rkey = b.mr->rkey + rkey_add;
	CHECK_EQ(post_recv(&b, 3, 0, 8), 0);
	CHECK_EQ(ibv_post_send(a.qp, &wr, &bad), 0);
	expect_wc(&a, 9, IBV_WC_REM_ACCESS_ERR);
	expect_wc(&b, 3, IBV_WC_WR_FLUSH_ERR);
	CHECK_EQ(state_of(&a), IBV_QPS_ERR);
	CHECK_EQ(state_of(&b), IBV_QPS_ERR);
	event = next_event(&b);
	CHECK_EQ(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
	CHECK(event.element.qp == b.qp);
	for (uint32_t i = 0; i < BUFFER_BYTES; i++)
		CHECK_EQ(b.buffer[i], 0);
	close_pair(&a, &b);
}

CASE(bad_rkey)
{
	remote_access(0, 1, 8);
}

CASE(out_of_range)
{
	remote_access(BUFFER_BYTES - 7, 0, 8);
	remote_access(-1ull, 0, 8);
}

/* A key whose region may be written, on a queue pair that may not; a region that may only be read. */
CASE(access_flags)
{
	struct ibv_qp_attr attr = { .qp_access_flags = IBV_ACCESS_REMOTE_READ };
	struct end a, b;

	open_pair(&a, &b, &default_path);
	CHECK_EQ(ibv_modify_qp(b.qp, &attr, IBV_QP_ACCESS_FLAGS), 0);
	CHECK_EQ(post(&a, &b, IBV_WR_RDMA_WRITE, 1, 0, 8, 0), 0);
	expect_wc(&a, 1, IBV_WC_REM_INV_REQ_ERR);
	CHECK_EQ(next_event(&b).event_type, IBV_EVENT_QP_REQ_ERR);
	close_pair(&a, &b);

	open_pair(&a, &b, &default_path);
	CHECK_EQ(ibv_dereg_mr(b.mr), 0);
	b.mr = ibv_reg_mr(b.pd, b.buffer, BUFFER_BYTES, IBV_ACCESS_REMOTE_READ);
	CHECK_EQ(post(&a, &b, IBV_WR_RDMA_READ, 1, 0, 8, IBV_SEND_SIGNALED), 0);
	expect_wc(&a, 1, IBV_WC_SUCCESS);
	CHECK_EQ(post(&a, &b, IBV_WR_RDMA_WRITE, 2, 0, 8, 0), 0);
	expect_wc(&a, 2, IBV_WC_REM_ACCESS_ERR);
	CHECK_EQ(next_event(&b).event_type, IBV_EVENT_QP_ACCESS_ERR);
	close_pair(&a, &b);
}

CASE(registration)
{
	struct ibv_qp_cap cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 };
	char *pages = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr;
	struct end end;

	open_end(&end, &cap, 4);
	CHECK(!ibv_reg_mr(end.pd, end.buffer, 64, IBV_ACCESS_REMOTE_WRITE)); /* without local write */
	CHECK_EQ(errno, EINVAL);
	CHECK(!ibv_reg_mr(end.pd, end.buffer, 0, 0));
	CHECK_EQ(errno, EINVAL);
	CHECK(!ibv_reg_mr(end.pd, pages, 8192, IBV_ACCESS_LOCAL_WRITE)); /* read-only pages */
	CHECK_EQ(errno, EFAULT);
	mr = ibv_reg_mr(end.pd, pages, 8192, 0);
	CHECK(mr);
	CHECK(mr->lkey != mr->rkey);
	CHECK_EQ(ibv_dealloc_pd(end.pd), EBUSY);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	munmap(pages + 4096, 4096);
	CHECK(!ibv_reg_mr(end.pd, pages, 8192, 0)); /* a hole */
	CHECK_EQ(errno, EFAULT);
	CHECK(!ibv_reg_dmabuf_mr(end.pd, 0, 4096, 0, -1, 0));
	CHECK_EQ(errno, EOPNOTSUPP);
	munmap(pages, 4096);
	close_end(&end);
}

/* Memory given back to the system while it is registered: told as a violation and as an error, not as a signal. */
CASE(unmapped)
{
	char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_sge sge = { (uintptr_t)page, 4096, 0 };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE }, *bad;
	struct ibv_mr *mr;
	struct end a, b;

	open_pair(&a, &b, &default_path);
	mr = ibv_reg_mr(a.pd, page, 4096, 0);
	CHECK(mr);
	sge.lkey = mr->lkey;
	wr.wr.rdma.remote_addr = (uintptr_t)b.buffer;
	wr.wr.rdma.rkey = b.mr->rkey;
	munmap(page, 4096);
	CHECK_EQ(ibv_post_send(a.qp, &wr, &bad), 0);
	expect_wc(&a, 1, IBV_WC_LOC_PROT_ERR);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	close_pair(&a, &b);
}
