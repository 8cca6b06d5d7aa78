/* verbs_words.h - completion errors and device events in plain words: what happened, what it usually means, what to do. */
#ifndef RR_VERBS_WORDS_H
#define RR_VERBS_WORDS_H

#include "verbs_qp.h"

/* Where on the fabric. */
struct rr_verbs_where {
	int32_t peer;
	const char *device;
	uint8_t port;
	const struct rr_rail_pair *pair;
	uint32_t our_number, their_number; /* of the queue pair */
	int state;                          /* of ours, enum rr_ibv_qp_state, or -1 */
};

/* The first completion that failed, and is not a flush, as this thread's record. Returns RR_ERR_LINK. */
rr_status rr_verbs_fail(const struct rr_verbs_where *where, const struct rr_ibv_wc *wc, const char *doing);
/* An event of device, port, queue pair or completion queue. RR_OK: it is no error. */
rr_status rr_verbs_event(const char *device, const struct rr_ibv_async_event *event);
const char *rr_verbs_wc_name(int status);
/* Whether an edge that failed may be made anew. */
enum rr_mendable {
	RR_MENDABLE_NOT = 0,
	RR_MENDABLE_HERE = 1,     /* on the same rail */
	RR_MENDABLE_ELSEWHERE = 2 /* the device is lost: on another rail alone */
};
/* May new queue pairs help? Not after requests that a device or a registration refused. */
enum rr_mendable rr_verbs_wc_mendable(int status);
/* Might the peer's end alone have caused it? Its own record tells more then, if it comes. */
bool rr_verbs_wc_of_peer(int status);

#endif
