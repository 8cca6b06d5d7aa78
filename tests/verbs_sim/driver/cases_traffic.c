/* cases_traffic.c - receiver not ready, order, and when bytes may be read. */
#include "driver.h"

#include <string.h>

CASE(rnr_exceeded)
{
	struct path path = default_path;
	struct end a, b;

	path.rnr_retry = 2;
	open_pair(&a, &b, &path);
	CHECK_EQ(post(&a, &b, IBV_WR_RDMA_WRITE, 1, 0, 8, 0), 0); /* takes no receive */
	CHECK_EQ(post(&a, &b, IBV_WR_SEND, 2, 0, 8, 0), 0);
	CHECK_EQ(post(&a, &b, IBV_WR_SEND, 3, 0, 8, 0), 0);
	expect_wc(&a, 2, IBV_WC_RNR_RETRY_EXC_ERR);
	expect_wc(&a, 3, IBV_WC_WR_FLUSH_ERR);
	CHECK_EQ(state_of(&a), IBV_QPS_ERR);
	CHECK_EQ(state_of(&b), IBV_QPS_RTS);
	close_pair(&a, &b);
}

CASE(rnr_forever)
{
	struct end a, b;

	open_pair(&a, &b, &default_path); /* rnr_retry 7 */
	CHECK_EQ(post(&a, &b, IBV_WR_RDMA_WRITE_WITH_IMM, 2, 0, 8, IBV_SEND_SIGNALED), 0);
	for (uint64_t end = now_ms() + 50; now_ms() < end;) {
		struct ibv_wc wc;

		CHECK_EQ(ibv_poll_cq(a.cq, 1, &wc), 0);
	}
	CHECK_EQ(post_recv(&b, 4, 0, 0), 0);
	CHECK_EQ(expect_wc(&b, 4, IBV_WC_SUCCESS).opcode, IBV_WC_RECV_RDMA_WITH_IMM);
	expect_wc(&a, 2, IBV_WC_SUCCESS);
	close_pair(&a, &b);
}

CASE(receive_too_short)
{
	struct end a, b;

	open_pair(&a, &b, &default_path);
	CHECK_EQ(post_recv(&b, 1, 0, 64), 0);
	CHECK_EQ(post_recv(&b, 2, 0, 63), 0);
	CHECK_EQ(post(&a, &b, IBV_WR_SEND, 1, 0, 64, IBV_SEND_SIGNALED), 0);
	CHECK_EQ(post(&a, &b, IBV_WR_SEND, 2, 0, 64, 0), 0);
	expect_wc(&b, 1, IBV_WC_SUCCESS);
	expect_wc(&b, 2, IBV_WC_LOC_LEN_ERR);
	expect_wc(&a, 1, IBV_WC_SUCCESS);
	expect_wc(&a, 2, IBV_WC_REM_INV_REQ_ERR);
	close_pair(&a, &b);
}

static void fill(uint8_t *at, uint32_t bytes, uint64_t seed)
{
	for (uint32_t i = 0; i < bytes; i++)
		at[i] = (uint8_t)((seed * 131 + i) >> (i % 3));
}

/* Writes of growing size, each with a plain write before it: with the immediate, the bytes of both are there. */
CASE(imm_order)
{
	struct end a, b;

	open_pair(&a, &b, &default_path);
	for (uint64_t round = 0; round < 40; round++) {
		uint32_t bytes = (uint32_t)(round * 2311 + 1), half = BUFFER_BYTES / 2;
		struct ibv_wc wc;

		fill(a.buffer, bytes, round);
		fill(a.buffer + half, bytes, round + 1000);
		CHECK_EQ(post_recv(&b, round, 0, 0), 0);
		CHECK_EQ(post(&a, &b, IBV_WR_RDMA_WRITE, round, half, bytes, 0), 0);
		CHECK_EQ(post(&a, &b, IBV_WR_RDMA_WRITE_WITH_IMM, round, 0, bytes, IBV_SEND_SIGNALED), 0);
		wc = expect_wc(&b, round, IBV_WC_SUCCESS);
		CHECK_EQ(wc.imm_data, round);
		CHECK_EQ(wc.byte_len, bytes);
		CHECK_EQ(wc.wc_flags, IBV_WC_WITH_IMM);
		CHECK(!memcmp(a.buffer, b.buffer, bytes));
		CHECK(!memcmp(a.buffer + half, b.buffer + half, bytes));
		expect_wc(&a, round, IBV_WC_SUCCESS);
	}
	close_pair(&a, &b);
}

/* Four queue pairs, one completion queue each end: order holds within each, and, with delays, not across them. */
CASE(reorder)
{
	enum { PAIRS = 4, ROUNDS = 16 };
	struct end a[PAIRS], b[PAIRS];
	int next[PAIRS] = { 0 }, across = 0, last = -1;

	for (int i = 0; i < PAIRS; i++)
		open_pair(&a[i], &b[i], &default_path);
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < PAIRS; i++) {
			CHECK_EQ(post_recv(&b[i], (uint64_t)round, 0, 0), 0);
			CHECK_EQ(post(&a[i], &b[i], IBV_WR_RDMA_WRITE_WITH_IMM, (uint64_t)round, 0, 8, 0), 0);
		}
	}
	for (int seen = 0; seen < PAIRS * ROUNDS;) {
		for (int i = 0; i < PAIRS; i++) {
			struct ibv_wc wc;

			if (ibv_poll_cq(b[i].cq, 1, &wc) != 1)
				continue;
			CHECK_EQ(wc.status, IBV_WC_SUCCESS);
			CHECK_EQ(wc.imm_data, next[i]); /* within a queue pair */
			next[i]++;
			seen++;
			across += next[i] * PAIRS + i < last;
			last = next[i] * PAIRS + i;
		}
	}
	printf("%d overtaken\n", across);
	for (int i = 0; i < PAIRS; i++)
		close_pair(&a[i], &b[i]);
}

/* A source changed between post and completion: with delays the change reaches the target in most of the cases. */
CASE(source_reuse)
{
	int torn = 0;
	struct end a, b;

	open_pair(&a, &b, &default_path);
	for (uint64_t round = 0; round < 40; round++) {
		memset(a.buffer, 1, 4096);
		CHECK_EQ(post_recv(&b, round, 0, 0), 0);
		CHECK_EQ(post(&a, &b, IBV_WR_RDMA_WRITE_WITH_IMM, round, 0, 4096, IBV_SEND_SIGNALED), 0);
		memset(a.buffer, 2, 4096);
		expect_wc(&b, round, IBV_WC_SUCCESS);
		expect_wc(&a, round, IBV_WC_SUCCESS);
		torn += memchr(b.buffer, 2, 4096) != NULL;
	}
	printf("%d torn\n", torn);
	close_pair(&a, &b);
}

/* How the bytes of a write come to be seen, and whether the sender is told before. */
CASE(landing)
{
	enum { BYTES = 65536, ROUNDS = 60 };
	int all_before = 0, second_half_first = 0, none_before = 0, sender_first = 0;
	struct end a, b;

	open_pair(&a, &b, &default_path);
	memset(a.buffer, 1, BYTES);
	for (uint64_t round = 0; round < ROUNDS; round++) {
		volatile uint8_t *first = b.buffer, *last = b.buffer + BYTES - 1;
		bool swapped = false, any = false, all = false, told = false;
		struct ibv_wc wc;

		memset(b.buffer, 0, BYTES);
		CHECK_EQ(post_recv(&b, round, 0, 0), 0);
		CHECK_EQ(post(&a, &b, IBV_WR_RDMA_WRITE_WITH_IMM, round, 0, BYTES, IBV_SEND_SIGNALED), 0);
		while (ibv_poll_cq(b.cq, 1, &wc) == 0) {
			swapped |= *last && !*first;
			any |= *first || *last;
			all |= *first && *last;
			if (!told && ibv_poll_cq(a.cq, 1, &wc) == 1) {
				told = true;
				sender_first += !*first;
			}
		}
		CHECK(*first && *last);
		all_before += all && !swapped;
		second_half_first += swapped;
		none_before += !any;
		if (!told)
			expect_wc(&a, round, IBV_WC_SUCCESS);
	}
	printf("%d %d %d %d\n", all_before, second_half_first, none_before, sender_first);
	close_pair(&a, &b);
}

CASE(reads)
{
	struct end a, b;

	open_pair(&a, &b, &default_path);
	fill(a.buffer, BUFFER_BYTES, 1);
	/* A read sees the write before it; more reads than may be open at once wait their turn. */
	CHECK_EQ(post(&a, &b, IBV_WR_RDMA_WRITE, 1, 0, BUFFER_BYTES, 0), 0);
	for (uint64_t id = 2; id < 10; id++)
		CHECK_EQ(post(&a, &b, IBV_WR_RDMA_READ, id, 0, BUFFER_BYTES, IBV_SEND_SIGNALED), 0);
	for (uint64_t id = 2; id < 10; id++) {
		struct ibv_wc wc = expect_wc(&a, id, IBV_WC_SUCCESS);

		CHECK_EQ(wc.opcode, IBV_WC_RDMA_READ);
		CHECK_EQ(wc.byte_len, BUFFER_BYTES);
	}
	CHECK(!memcmp(a.buffer, b.buffer, BUFFER_BYTES));
	fill(b.buffer, BUFFER_BYTES, 2);
	CHECK_EQ(post(&a, &b, IBV_WR_RDMA_READ, 10, 0, BUFFER_BYTES, IBV_SEND_SIGNALED), 0);
	expect_wc(&a, 10, IBV_WC_SUCCESS);
	CHECK(!memcmp(a.buffer, b.buffer, BUFFER_BYTES));
	close_pair(&a, &b);
}

/* Of a failed completion wr_id, status, qp_num and vendor_err are defined; the others are filled with 0xa5. */
CASE(errors_leave_fields_undefined)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct end a, b;
	struct ibv_wc wc;

	open_pair(&a, &b, &default_path);
	CHECK_EQ(post_recv(&a, 77, 0, 8), 0);
	CHECK_EQ(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE), 0);
	wc = expect_wc(&a, 77, IBV_WC_WR_FLUSH_ERR);
	CHECK_EQ((uint32_t)wc.opcode, 0xa5a5a5a5u);
	CHECK_EQ(wc.byte_len, 0xa5a5a5a5u);
	close_pair(&a, &b);
}
