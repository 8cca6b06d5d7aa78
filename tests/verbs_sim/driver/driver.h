/* driver.h - what the cases share: two connected ends in one process, and checks that tell where they failed. */
#ifndef VERBS_SIM_DRIVER_H
#define VERBS_SIM_DRIVER_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                     \
	do {                                                                                 \
		if (!(condition)) {                                                          \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);      \
			exit(1);                                                             \
		}                                                                            \
	} while (0)

#define CHECK_EQ(got, wanted)                                                                \
	do {                                                                                 \
		long long got_ = (long long)(got), wanted_ = (long long)(wanted);            \
		if (got_ != wanted_) {                                                       \
			fprintf(stderr, "%s:%d: %s is %lld, not %s = %lld\n", __FILE__,      \
				__LINE__, #got, got_, #wanted, wanted_);                     \
			exit(1);                                                             \
		}                                                                            \
	} while (0)

#define BUFFER_BYTES (1u << 20)
#define WAIT_MS      10000

struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq; /* of sends and receives */
	struct ibv_qp *qp;
	uint8_t *buffer;
	struct ibv_mr *mr;
};

/* What the two ends tell each other, and settings of the connection. */
struct path {
	uint32_t qpn, psn;
	union ibv_gid gid;
	uint16_t lid;
	unsigned gid_index;
	uint8_t timeout, retry_cnt, rnr_retry;
	enum ibv_mtu mtu;
	uint32_t rkey;
	uint64_t address;
};

extern const struct path default_path;

void open_end(struct end *end, const struct ibv_qp_cap *cap, int cqe);
void close_end(struct end *end);
void describe(const struct end *end, struct path *path);
/* From RESET to RTS towards the remote; checks that each call succeeds. */
void to_init(struct end *end);
int to_rtr(struct end *end, const struct path *own, const struct path *remote);
int to_rts(struct end *end, const struct path *own);
void connect_ends(struct end *a, struct end *b, const struct path *settings);
/* Two ends, connected, with queues of 16 and room for 64 completions. */
void open_pair(struct end *a, struct end *b, const struct path *settings);
void close_pair(struct end *a, struct end *b);

enum ibv_qp_state state_of(const struct end *end);
int post_recv(struct end *end, uint64_t id, uint32_t offset, uint32_t bytes);
/* From the same offset of the buffer to that of the remote's. */
int post(struct end *end, const struct end *remote, enum ibv_wr_opcode opcode, uint64_t id, uint32_t offset,
	 uint32_t bytes, unsigned flags);
/* The next completion; fails after WAIT_MS. */
struct ibv_wc next_wc(struct end *end);
/* The next completion has this status and id. */
struct ibv_wc expect_wc(struct end *end, uint64_t id, enum ibv_wc_status status);
/* The next asynchronous event, which is acknowledged. */
struct ibv_async_event next_event(struct end *end);
uint64_t now_ms(void);

typedef void case_function(void);
#define CASE(name) void name(void)

CASE(states); CASE(values); CASE(flush); CASE(sq_accounting); CASE(rq_accounting);
CASE(bad_lkey); CASE(bad_rkey); CASE(out_of_range); CASE(access_flags); CASE(registration);
CASE(rnr_exceeded); CASE(rnr_forever); CASE(inline_data); CASE(receive_too_short);
CASE(imm_order); CASE(reorder); CASE(source_reuse); CASE(reads); CASE(errors_leave_fields_undefined);
CASE(dead_peer); CASE(wrong_psn); CASE(wrong_gid_type); CASE(mtu_mismatch); CASE(two_processes);
CASE(cq_overrun); CASE(notification); CASE(port_events); CASE(link_flap); CASE(qp_fatal); CASE(device_fatal);
CASE(leaves_all); CASE(misuses); CASE(gid_table); CASE(first_row); CASE(breaks); CASE(limits); CASE(drops); CASE(landing);
CASE(nth_calls); CASE(wc_errors); CASE(no_device);
CASE(unmapped); CASE(stopped_peer);

#endif
