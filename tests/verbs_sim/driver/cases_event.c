/* cases_event.c - completion channels, asynchronous events, and devices that break. */
#include "driver.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

int verbs_sim_inject(const char *action);

/* One event for each time the queue is armed, at the next entry, not for entries that lie there. */
CASE(notification)
{
	struct epoll_event ready = { .events = EPOLLIN };
	int epoll = epoll_create1(EPOLL_CLOEXEC);
	struct ibv_cq *cq;
	void *context;
	struct end a, b;

	open_pair(&a, &b, &default_path);
	CHECK_EQ(fcntl(b.channel->fd, F_SETFL, O_NONBLOCK), 0);
	CHECK_EQ(epoll_ctl(epoll, EPOLL_CTL_ADD, b.channel->fd, &ready), 0);
	for (uint64_t id = 0; id < 3; id++)
		CHECK_EQ(post_recv(&b, id, 0, 8), 0);
	CHECK_EQ(post(&a, &b, IBV_WR_SEND, 0, 0, 8, IBV_SEND_SIGNALED), 0);
	expect_wc(&a, 0, IBV_WC_SUCCESS);
	CHECK_EQ(epoll_wait(epoll, &ready, 1, 50), 0); /* not armed */
	CHECK_EQ(ibv_req_notify_cq(b.cq, 0), 0);
	CHECK_EQ(epoll_wait(epoll, &ready, 1, 50), 0); /* the entry came before */
	CHECK_EQ(post(&a, &b, IBV_WR_SEND, 1, 0, 8, IBV_SEND_SIGNALED), 0);
	CHECK_EQ(post(&a, &b, IBV_WR_SEND, 2, 0, 8, IBV_SEND_SIGNALED), 0);
	CHECK_EQ(epoll_wait(epoll, &ready, 1, WAIT_MS), 1);
	for (uint64_t id = 0; id < 3; id++)
		expect_wc(&b, id, IBV_WC_SUCCESS);
	CHECK_EQ(ibv_get_cq_event(b.channel, &cq, &context), 0);
	CHECK(cq == b.cq && context == &b);
	CHECK_EQ(ibv_get_cq_event(b.channel, &cq, &context), -1);
	CHECK_EQ(errno, EAGAIN);
	ibv_ack_cq_events(b.cq, 1);
	CHECK_EQ(ibv_destroy_comp_channel(b.channel), EBUSY);
	close_pair(&a, &b);
	close(epoll);
}

static enum ibv_port_state port_state(const struct end *end)
{
	struct ibv_port_attr port;

	CHECK_EQ(ibv_query_port(end->context, 1, &port), 0);
	return port.state;
}

CASE(port_events)
{
	struct ibv_async_event event;
	struct end a, b;

	open_pair(&a, &b, &default_path);
	CHECK_EQ(port_state(&a), IBV_PORT_ACTIVE);
	CHECK_EQ(verbs_sim_inject("port_down"), 0);
	event = next_event(&a);
	CHECK_EQ(event.event_type, IBV_EVENT_PORT_ERR);
	CHECK_EQ(event.element.port_num, 1);
	CHECK_EQ(next_event(&b).event_type, IBV_EVENT_PORT_ERR);
	CHECK_EQ(port_state(&a), IBV_PORT_DOWN);
	CHECK_EQ(post(&a, &b, IBV_WR_RDMA_WRITE, 1, 0, 8, 0), 0);
	expect_wc(&a, 1, IBV_WC_RETRY_EXC_ERR);
	CHECK_EQ(verbs_sim_inject("port_up"), 0);
	CHECK_EQ(next_event(&a).event_type, IBV_EVENT_PORT_ACTIVE);
	CHECK_EQ(verbs_sim_inject("no such thing"), EINVAL);
	close_pair(&a, &b);
}

/* The wire is cut while requests are under way and comes back before the retries are used up: nothing is lost. */
CASE(link_flap)
{
	struct path path = default_path;
	struct end a, b;

	path.timeout = 20; /* 4 s, twice, scaled to 0.8 s */
	open_pair(&a, &b, &path);
	for (uint64_t id = 0; id < 8; id++) {
		CHECK_EQ(post_recv(&b, id, 0, 0), 0);
		CHECK_EQ(post(&a, &b, IBV_WR_RDMA_WRITE_WITH_IMM, id, 0, BUFFER_BYTES, IBV_SEND_SIGNALED), 0);
		if (id == 3) {
			CHECK_EQ(verbs_sim_inject("port_down"), 0);
			usleep(20000);
			CHECK_EQ(verbs_sim_inject("port_up"), 0);
		}
	}
	for (uint64_t id = 0; id < 8; id++) {
		CHECK_EQ(expect_wc(&b, id, IBV_WC_SUCCESS).imm_data, id);
		expect_wc(&a, id, IBV_WC_SUCCESS);
	}
	close_pair(&a, &b);
}

CASE(qp_fatal)
{
	struct ibv_async_event event;
	struct end a, b;

	open_pair(&a, &b, &default_path);
	CHECK_EQ(post_recv(&a, 1, 0, 8), 0);
	CHECK_EQ(post(&b, &a, IBV_WR_RDMA_WRITE, 1, 0, 8, 0), 0);
	event = next_event(&a); /* by VERBS_SIM */
	CHECK_EQ(event.event_type, IBV_EVENT_QP_FATAL);
	CHECK(event.element.qp == a.qp);
	expect_wc(&a, 1, IBV_WC_WR_FLUSH_ERR);
	close_pair(&a, &b);
}

CASE(device_fatal)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	struct end a, b;

	open_pair(&a, &b, &default_path);
	CHECK_EQ(verbs_sim_inject("device_fatal"), 0);
	CHECK_EQ(next_event(&a).event_type, IBV_EVENT_DEVICE_FATAL);
	CHECK_EQ(state_of(&a), IBV_QPS_ERR);
	CHECK_EQ(post(&a, &b, IBV_WR_RDMA_WRITE, 1, 0, 8, 0), EIO);
	CHECK_EQ(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE), EIO);
	CHECK(!ibv_reg_mr(a.pd, a.buffer, 8, 0));
	CHECK_EQ(errno, EIO);
	close_pair(&a, &b); /* destroying still works */
}
