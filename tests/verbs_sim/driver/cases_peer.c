/* cases_peer.c - a peer that is another process, is gone, sleeps, or was told something else. */
#include "driver.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct ibv_qp_cap cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 };

static void exchange(int fd, const struct path *own, struct path *remote)
{
	CHECK_EQ(write(fd, own, sizeof(*own)), (ssize_t)sizeof(*own));
	CHECK_EQ(read(fd, remote, sizeof(*remote)), (ssize_t)sizeof(*remote));
}

/* Opens an end and connects it to that of the process at the other side of fd; both are in RTS on return. */
static void join(int fd, struct end *end, struct path *remote)
{
	struct path own = default_path, unused;

	open_end(end, &cap, 64);
	describe(end, &own);
	exchange(fd, &own, remote);
	to_init(end);
	CHECK_EQ(to_rtr(end, &own, remote), 0);
	CHECK_EQ(to_rts(end, &own), 0);
	exchange(fd, &own, &unused);
}

static int write_imm(struct end *end, const struct path *remote, uint64_t id, uint32_t offset, uint32_t bytes)
{
	struct ibv_sge sge = { (uintptr_t)end->buffer + offset, bytes, end->mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
		.send_flags = IBV_SEND_SIGNALED, .imm_data = (uint32_t)id,
		.wr.rdma = { remote->address + offset, remote->rkey },
	}, *bad;

	return ibv_post_send(end->qp, &wr, &bad);
}

/* The child's part: it echoes what arrives, adding 1, until it is told no more. */
static void echo(int fd, int rounds)
{
	struct path remote;
	struct end end;

	join(fd, &end, &remote);
	for (int round = 0; round < rounds; round++) {
		struct ibv_wc wc;

		CHECK_EQ(post_recv(&end, (uint64_t)round, 0, 0), 0);
		wc = expect_wc(&end, (uint64_t)round, IBV_WC_SUCCESS);
		for (uint32_t i = 0; i < wc.byte_len; i++)
			end.buffer[i]++;
		CHECK_EQ(write_imm(&end, &remote, (uint64_t)round, 0, wc.byte_len), 0);
		expect_wc(&end, (uint64_t)round, IBV_WC_SUCCESS);
	}
	close_end(&end);
	exit(0);
}

static pid_t start_echo(int *fd, int rounds)
{
	int ends[2];
	pid_t child;

	CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		close(ends[0]);
		setenv("RDMARING_HOST_ID", "another host", 1);
		echo(ends[1], rounds);
	}
	close(ends[1]);
	*fd = ends[0];
	return child;
}

CASE(two_processes)
{
	enum { ROUNDS = 12 };
	struct path remote;
	struct end end;
	int fd, status;
	pid_t child = start_echo(&fd, ROUNDS);

	join(fd, &end, &remote);
	CHECK_EQ(end.qp->qp_num, remote.qpn); /* as may be between two hosts: nobody may rely on the opposite */
	for (uint64_t round = 0; round < ROUNDS; round++) {
		uint32_t bytes = round == ROUNDS - 1 ? BUFFER_BYTES : (uint32_t)(1 << round);

		memset(end.buffer, (int)round, bytes);
		CHECK_EQ(post_recv(&end, 100 + round, 0, 0), 0);
		CHECK_EQ(write_imm(&end, &remote, round, 0, bytes), 0);
		for (int i = 0; i < 2; i++) {
			struct ibv_wc wc = next_wc(&end);

			CHECK_EQ(wc.status, IBV_WC_SUCCESS);
			CHECK(wc.wr_id == round || wc.wr_id == 100 + round);
		}
		for (uint32_t i = 0; i < bytes; i++)
			CHECK_EQ(end.buffer[i], round + 1);
	}
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
	close_end(&end);
	close(fd);
}

CASE(dead_peer)
{
	struct path remote;
	struct end end;
	int fd;
	pid_t child = start_echo(&fd, 1);

	join(fd, &end, &remote);
	CHECK_EQ(kill(child, SIGKILL), 0);
	CHECK_EQ(waitpid(child, NULL, 0), child);
	CHECK_EQ(post_recv(&end, 5, 0, 0), 0);
	CHECK_EQ(write_imm(&end, &remote, 1, 0, 64), 0);
	CHECK_EQ(write_imm(&end, &remote, 2, 0, 64), 0);
	for (int i = 0; i < 3; i++) { /* the order of a send's and a receive's completion is not fixed */
		struct ibv_wc wc = next_wc(&end);

		CHECK_EQ(wc.status, wc.wr_id == 1 ? IBV_WC_RETRY_EXC_ERR : IBV_WC_WR_FLUSH_ERR);
	}
	CHECK_EQ(state_of(&end), IBV_QPS_ERR);
	close_end(&end);
	close(fd);
}

/* A stopped process is not a dead one: its NIC would go on to answer. */
CASE(stopped_peer)
{
	struct path remote;
	struct end end;
	struct ibv_wc wc;
	int fd;
	pid_t child = start_echo(&fd, 1);

	join(fd, &end, &remote);
	CHECK_EQ(kill(child, SIGSTOP), 0);
	CHECK_EQ(waitpid(child, NULL, WUNTRACED), child);
	CHECK_EQ(post_recv(&end, 5, 0, 0), 0);
	CHECK_EQ(write_imm(&end, &remote, 1, 0, 64), 0);
	for (uint64_t until = now_ms() + 300; now_ms() < until;)
		CHECK_EQ(ibv_poll_cq(end.cq, 1, &wc), 0);
	CHECK_EQ(kill(child, SIGCONT), 0);
	CHECK_EQ(next_wc(&end).status, IBV_WC_SUCCESS);
	CHECK_EQ(next_wc(&end).status, IBV_WC_SUCCESS);
	CHECK_EQ(waitpid(child, NULL, 0), child);
	close_end(&end);
	close(fd);
}

/* Two ends that know each other, except that b was told `of_a` and a was told `of_b`. */
static void misconnect(struct end *a, struct end *b, const struct path *own_a, const struct path *of_a,
		       const struct path *own_b, const struct path *of_b)
{
	to_init(a);
	to_init(b);
	CHECK_EQ(to_rtr(a, own_a, of_b), 0);
	CHECK_EQ(to_rtr(b, own_b, of_a), 0);
	CHECK_EQ(to_rts(a, own_a), 0);
	CHECK_EQ(to_rts(b, own_b), 0);
}

CASE(wrong_psn)
{
	struct path of_a = default_path, of_b = default_path, wrong;
	struct end a, b;

	open_end(&a, &cap, 64);
	open_end(&b, &cap, 64);
	describe(&a, &of_a);
	describe(&b, &of_b);
	wrong = of_a;
	wrong.psn++;
	misconnect(&a, &b, &of_a, &wrong, &of_b, &of_b);
	CHECK_EQ(post(&a, &b, IBV_WR_RDMA_WRITE, 1, 0, 8, 0), 0);
	expect_wc(&a, 1, IBV_WC_RETRY_EXC_ERR);
	CHECK_EQ(post(&b, &a, IBV_WR_RDMA_WRITE, 1, 0, 8, IBV_SEND_SIGNALED), 0);
	expect_wc(&b, 1, IBV_WC_RETRY_EXC_ERR); /* a is in ERR */
	close_pair(&a, &b);
}

/* One end speaks RoCE v1, the other v2, at the same address. */
CASE(wrong_gid_type)
{
	struct path of_a = default_path, of_b = default_path;
	struct end a, b;

	open_end(&a, &cap, 64);
	open_end(&b, &cap, 64);
	of_a.gid_index = 2;
	describe(&a, &of_a);
	describe(&b, &of_b);
	misconnect(&a, &b, &of_a, &of_a, &of_b, &of_b);
	CHECK_EQ(post(&a, &b, IBV_WR_RDMA_WRITE, 1, 0, 8, 0), 0);
	expect_wc(&a, 1, IBV_WC_RETRY_EXC_ERR);
	close_pair(&a, &b);
}

/* Packets longer than what the target was told: refused as soon as a message needs them. */
CASE(mtu_mismatch)
{
	struct path of_a = default_path, of_b = default_path;
	struct end a, b;

	open_end(&a, &cap, 64);
	open_end(&b, &cap, 64);
	of_a.mtu = IBV_MTU_4096;
	describe(&a, &of_a);
	describe(&b, &of_b);
	misconnect(&a, &b, &of_a, &of_a, &of_b, &of_b);
	CHECK_EQ(post(&b, &a, IBV_WR_RDMA_WRITE, 1, 0, 8192, IBV_SEND_SIGNALED), 0);
	expect_wc(&b, 1, IBV_WC_SUCCESS);
	CHECK_EQ(post(&a, &b, IBV_WR_RDMA_WRITE, 1, 0, 1024, IBV_SEND_SIGNALED), 0);
	expect_wc(&a, 1, IBV_WC_SUCCESS);
	CHECK_EQ(post(&a, &b, IBV_WR_RDMA_WRITE, 2, 0, 1025, IBV_SEND_SIGNALED), 0);
	expect_wc(&a, 2, IBV_WC_REM_INV_REQ_ERR);
	CHECK_EQ(next_event(&b).event_type, IBV_EVENT_QP_REQ_ERR);
	close_pair(&a, &b);
}
