/*
 * verbs_qp.h - the life of a reliable-connected queue pair: RESET, INIT, RTR, RTS, ERR.
 *
 *   RESET --init--> INIT --rtr--> RTR --rts--> RTS --error--> ERR
 *                   receives may  receives     sends
 *                   be posted
 */
#ifndef RR_VERBS_QP_H
#define RR_VERBS_QP_H

#include "verbs_device.h"

#define RR_QPS_MAX 8u
#define RR_PSN_MASK 0xffffffu

/* Settings of all queue pairs of a communicator, defaults filled in. */
struct rr_qp_settings {
	uint32_t qps;
	uint8_t timeout_code; /* 4.096 us * 2^code */
	uint8_t retry_count;
	uint8_t rnr_retry;
	uint8_t service_level;
	uint8_t traffic_class;
	uint8_t hop_limit;
};

/* RR_ERR_ARGUMENT names the setting, what it was and what is accepted. */
rr_status rr_qp_settings_set(const rr_verbs_options *options, struct rr_qp_settings *out);
/* The smallest code whose time is at least timeout_ns, 1..31. */
uint8_t rr_qp_timeout_code(uint64_t timeout_ns);
uint64_t rr_qp_timeout_ns(uint8_t code);

/* `what` is for the error: "to rank 3, device rxe0". */
rr_status rr_qp_init(const struct rr_verbs *verbs, struct rr_ibv_qp *qp, uint8_t port, const char *what);
/* One that is read through, not written. */
rr_status rr_qp_init_read(const struct rr_verbs *verbs, struct rr_ibv_qp *qp, uint8_t port, const char *what);
rr_status rr_qp_rtr(const struct rr_verbs *verbs, struct rr_ibv_qp *qp, uint8_t port,
		    const struct rr_qp_settings *settings, const struct rr_rail_pair *pair, uint32_t peer_number,
		    uint32_t peer_psn, const char *what);
rr_status rr_qp_rts(const struct rr_verbs *verbs, struct rr_ibv_qp *qp, const struct rr_qp_settings *settings,
		    uint32_t psn, const char *what);
/* 0, or what the call returned. */
int rr_qp_error(const struct rr_verbs *verbs, struct rr_ibv_qp *qp);
const char *rr_qp_state_name(int state);

#endif
