/* verbs_qp.c - see verbs_qp.h. */
#include "verbs_qp.h"

#include <stdio.h>
#include <string.h>

#include "status.h"

/*
 * A packet without an answer is sent again after the timeout, retry_count times: 8 x 0.54 s = 4.3 s until a dead
 * path is an error, which is when keepalive finds a lost host, too. Devices may take up to four times as long.
 */
#define TIMEOUT_CODE_DEFAULT 17u
#define RETRY_COUNT_DEFAULT 7u
#define RNR_RETRY_DEFAULT 7u    /* no limit; receives are posted for all that may come, so it does not happen */
#define MIN_RNR_TIMER_CODE 12u  /* 0.64 ms */
#define HOP_LIMIT_DEFAULT 64u
#define RD_ATOMIC 1u            /* reads flush GPU memory, one at a time (verbs_gdr.c); some devices refuse 0 */
#define TIMEOUT_UNIT_NS 4096u

uint64_t rr_qp_timeout_ns(uint8_t code)
{
	return (uint64_t)TIMEOUT_UNIT_NS << code;
}

uint8_t rr_qp_timeout_code(uint64_t timeout_ns)
{
	uint8_t code = 1;

	while (code < 31 && rr_qp_timeout_ns(code) < timeout_ns)
		code++;
	return code;
}

static rr_status in_range(const char *name, uint64_t value, uint64_t low, uint64_t high)
{
	if (value >= low && value <= high)
		return RR_OK;
	return rr_fail(RR_ERR_ARGUMENT, "verbs.%s is %llu: accepted are %llu to %llu", name, (unsigned long long)value,
		       (unsigned long long)low, (unsigned long long)high);
}

rr_status rr_qp_settings_set(const rr_verbs_options *options, struct rr_qp_settings *out)
{
	uint64_t retry = options->retry_count ? options->retry_count : RETRY_COUNT_DEFAULT;
	uint64_t rnr = options->rnr_retry ? options->rnr_retry : RNR_RETRY_DEFAULT;
	uint64_t hops = options->hop_limit ? options->hop_limit : HOP_LIMIT_DEFAULT;
	uint64_t qps = options->qps ? options->qps : 1;
	rr_status status = in_range("qps", qps, 1, RR_QPS_MAX);

	if (status == RR_OK)
		status = in_range("retry_count", retry, 1, 7);
	if (status == RR_OK)
		status = in_range("rnr_retry", rnr, 1, 7);
	if (status == RR_OK)
		status = in_range("service_level", options->service_level, 0, 15);
	if (status == RR_OK)
		status = in_range("traffic_class", options->traffic_class, 0, 255);
	if (status == RR_OK)
		status = in_range("hop_limit", hops, 1, 255);
	if (status == RR_OK)
		status = in_range("timeout_ns", options->timeout_ns, 0, rr_qp_timeout_ns(31));
	if (status == RR_OK)
		status = in_range("gpu_direct", options->gpu_direct, 0, 3);
	if (status != RR_OK)
		return status;
	out->qps = (uint32_t)qps;
	out->timeout_code = options->timeout_ns ? rr_qp_timeout_code(options->timeout_ns) : TIMEOUT_CODE_DEFAULT;
	out->retry_count = (uint8_t)retry;
	out->rnr_retry = (uint8_t)rnr;
	out->service_level = (uint8_t)options->service_level;
	out->traffic_class = (uint8_t)options->traffic_class;
	out->hop_limit = (uint8_t)hops;
	return RR_OK;
}

static rr_status modify(const struct rr_verbs *verbs, struct rr_ibv_qp *qp, struct rr_ibv_qp_attr *attributes, int mask,
			const char *what)
{
	int result = verbs->modify_qp(qp, attributes, mask | RR_IBV_QP_STATE);

	if (result == 0)
		return RR_OK;
	rr_fail(RR_ERR_LINK, "queue pair 0x%x %s cannot go to state %s: %s", qp->qp_num, what,
		rr_qp_state_name(attributes->qp_state), rr_verbs_error(result));
	strcpy(rr_error_here()->hint,
	       attributes->qp_state == RR_IBV_QPS_RTR
		       ? "the peer's address was not found from this port: compare both GID tables (rdmaring doctor --peer)"
		       : "see dmesg for the device's driver");
	return RR_ERR_LINK;
}

static rr_status init(const struct rr_verbs *verbs, struct rr_ibv_qp *qp, uint8_t port, unsigned int access, const char *what)
{
	struct rr_ibv_qp_attr attributes = {.qp_state = RR_IBV_QPS_INIT, .port_num = port, .qp_access_flags = access};

	return modify(verbs, qp, &attributes, RR_IBV_QP_PKEY_INDEX | RR_IBV_QP_PORT | RR_IBV_QP_ACCESS_FLAGS, what);
}

rr_status rr_qp_init(const struct rr_verbs *verbs, struct rr_ibv_qp *qp, uint8_t port, const char *what)
{
	return init(verbs, qp, port, RR_IBV_ACCESS_LOCAL_WRITE | RR_IBV_ACCESS_REMOTE_WRITE, what);
}

rr_status rr_qp_init_read(const struct rr_verbs *verbs, struct rr_ibv_qp *qp, uint8_t port, const char *what)
{
	return init(verbs, qp, port, RR_IBV_ACCESS_LOCAL_WRITE | RR_IBV_ACCESS_REMOTE_READ, what);
}

rr_status rr_qp_rtr(const struct rr_verbs *verbs, struct rr_ibv_qp *qp, uint8_t port,
		    const struct rr_qp_settings *settings, const struct rr_rail_pair *pair, uint32_t peer_number,
		    uint32_t peer_psn, const char *what)
{
	struct rr_ibv_qp_attr attributes = {
		.qp_state = RR_IBV_QPS_RTR,
		.path_mtu = rr_mtu_code(pair->mtu_bytes),
		.dest_qp_num = peer_number,
		.rq_psn = peer_psn & RR_PSN_MASK,
		.max_dest_rd_atomic = RD_ATOMIC,
		.min_rnr_timer = MIN_RNR_TIMER_CODE,
		.ah_attr = {.sl = settings->service_level, .port_num = port, .is_global = pair->global,
			    .dlid = pair->their_lid},
	};

	if (pair->global) {
		memcpy(attributes.ah_attr.grh.dgid.raw, pair->their_gid.gid, 16);
		attributes.ah_attr.grh.sgid_index = (uint8_t)pair->our_gid.index;
		attributes.ah_attr.grh.hop_limit = settings->hop_limit;
		attributes.ah_attr.grh.traffic_class = settings->traffic_class;
	}
	return modify(verbs, qp, &attributes,
		      RR_IBV_QP_AV | RR_IBV_QP_PATH_MTU | RR_IBV_QP_DEST_QPN | RR_IBV_QP_RQ_PSN |
			      RR_IBV_QP_MAX_DEST_RD_ATOMIC | RR_IBV_QP_MIN_RNR_TIMER,
		      what);
}

rr_status rr_qp_rts(const struct rr_verbs *verbs, struct rr_ibv_qp *qp, const struct rr_qp_settings *settings,
		    uint32_t psn, const char *what)
{
	struct rr_ibv_qp_attr attributes = {
		.qp_state = RR_IBV_QPS_RTS,
		.sq_psn = psn & RR_PSN_MASK,
		.timeout = settings->timeout_code,
		.retry_cnt = settings->retry_count,
		.rnr_retry = settings->rnr_retry,
		.max_rd_atomic = RD_ATOMIC,
	};

	return modify(verbs, qp, &attributes,
		      RR_IBV_QP_TIMEOUT | RR_IBV_QP_RETRY_CNT | RR_IBV_QP_RNR_RETRY | RR_IBV_QP_SQ_PSN |
			      RR_IBV_QP_MAX_QP_RD_ATOMIC,
		      what);
}

int rr_qp_error(const struct rr_verbs *verbs, struct rr_ibv_qp *qp)
{
	struct rr_ibv_qp_attr attributes = {.qp_state = RR_IBV_QPS_ERR};

	return verbs->modify_qp(qp, &attributes, RR_IBV_QP_STATE);
}

const char *rr_qp_state_name(int state)
{
	static const char *const names[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};

	return state >= 0 && state <= RR_IBV_QPS_ERR ? names[state] : "unknown";
}
