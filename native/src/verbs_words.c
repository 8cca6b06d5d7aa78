/* verbs_words.c - see verbs_words.h. */
#include "verbs_words.h"

#include <stdio.h>
#include <string.h>

#include "status.h"

struct words {
	const char *name;    /* as in libibverbs */
	const char *meaning; /* what it usually means */
	const char *remedy;
};

static const struct words words_of[] = {
	[RR_IBV_WC_LOC_LEN_ERR] = {"LOC_LEN_ERR", "a message was longer than the device or the receive allows",
		"report it as a bug, with the message size"},
	[RR_IBV_WC_LOC_QP_OP_ERR] = {"LOC_QP_OP_ERR", "the device refused the request itself",
		"see dmesg for the device's driver; report it as a bug if that says nothing"},
	[RR_IBV_WC_LOC_PROT_ERR] = {"LOC_PROT_ERR", "this rank's memory was not registered, or no more: memory was freed while a run used it",
		"keep buffers until their run has ended; close the communicator before its memory goes"},
	[RR_IBV_WC_WR_FLUSH_ERR] = {"WR_FLUSH_ERR", "the queue pair was already in error when the request's turn came",
		"the cause is an earlier error of this queue pair, or the device's reset: see dmesg"},
	[RR_IBV_WC_BAD_RESP_ERR] = {"BAD_RESP_ERR", "the peer's device answered what was not asked",
		"compare firmware and drivers of both devices"},
	[RR_IBV_WC_LOC_ACCESS_ERR] = {"LOC_ACCESS_ERR", "the peer wrote where this rank's registration does not allow it",
		"report it as a bug, with the versions of both ranks"},
	[RR_IBV_WC_REM_INV_REQ_ERR] = {"REM_INV_REQ_ERR", "the peer's device found the request invalid: too long, or writing is not allowed there",
		"compare the versions of both ranks"},
	[RR_IBV_WC_REM_ACCESS_ERR] = {"REM_ACCESS_ERR", "the peer's memory is not registered (any more) where we wrote: the peer ended the operation, or freed the memory",
		"look at that rank's own error; keep registered memory until its run has ended on all ranks"},
	[RR_IBV_WC_REM_OP_ERR] = {"REM_OP_ERR", "the peer's device could not carry out the request",
		"look at that rank's own error and at dmesg on its host"},
	[RR_IBV_WC_RETRY_EXC_ERR] = {"RETRY_EXC_ERR", "no acknowledgement came: the peer died, its port is down, packets go to a wrong or unreachable address, "
		"packets of full MTU are dropped on the way, or a lossless fabric is not (PFC)",
		"see that rank's output; rdmaring doctor --peer HOST compares GIDs and subnets and probes the MTU at full size; raise RDMARING_VERBS_RETRY_TIMEOUT_S if the fabric is only slow"},
	[RR_IBV_WC_RNR_RETRY_EXC_ERR] = {"RNR_RETRY_EXC_ERR", "the peer had posted no receive, which its credits rule out",
		"compare the versions of both ranks; report it as a bug if they are equal"},
	[RR_IBV_WC_REM_ABORT_ERR] = {"REM_ABORT_ERR", "the peer's device aborted the request", "see dmesg on the peer's host"},
	[RR_IBV_WC_FATAL_ERR] = {"FATAL_ERR", "the device failed", "see dmesg; the device may need a reset"},
	[RR_IBV_WC_RESP_TIMEOUT_ERR] = {"RESP_TIMEOUT_ERR", "the device did not answer in time", "see dmesg; the device may need a reset"},
	[RR_IBV_WC_GENERAL_ERR] = {"GENERAL_ERR", "the transport failed for a reason that the device does not tell",
		"see dmesg and the vendor code"},
};

static const struct words unknown_words = {"an unknown status", "the device reports what this library has no words for",
					   "see dmesg and the vendor code"};

static const struct words *find_words(int status)
{
	size_t count = sizeof(words_of) / sizeof(words_of[0]);

	return status >= 0 && (size_t)status < count && words_of[status].name ? &words_of[status] : &unknown_words;
}

const char *rr_verbs_wc_name(int status)
{
	return status == RR_IBV_WC_SUCCESS ? "SUCCESS" : find_words(status)->name;
}

bool rr_verbs_wc_of_peer(int status)
{
	return status == RR_IBV_WC_REM_ACCESS_ERR || status == RR_IBV_WC_REM_OP_ERR || status == RR_IBV_WC_REM_INV_REQ_ERR ||
	       status == RR_IBV_WC_RETRY_EXC_ERR || status == RR_IBV_WC_WR_FLUSH_ERR;
}

enum rr_mendable rr_verbs_wc_mendable(int status)
{
	switch (status) {
	case RR_IBV_WC_RETRY_EXC_ERR:
	case RR_IBV_WC_WR_FLUSH_ERR:
	case RR_IBV_WC_RESP_TIMEOUT_ERR:
	case RR_IBV_WC_GENERAL_ERR:
		return RR_MENDABLE_HERE;
	case RR_IBV_WC_FATAL_ERR:
		return RR_MENDABLE_ELSEWHERE;
	default:
		return RR_MENDABLE_NOT;
	}
}

rr_status rr_verbs_fail(const struct rr_verbs_where *where, const struct rr_ibv_wc *wc, const char *doing)
{
	const struct words *words = find_words(wc->status);
	char ours[RR_GID_TEXT_BYTES], theirs[RR_GID_TEXT_BYTES];

	rr_gid_text(where->pair->our_gid.gid, ours);
	rr_gid_text(where->pair->their_gid.gid, theirs);
	rr_fail(RR_ERR_LINK,
		"%s rank %d failed with %s (%d, vendor code 0x%x): %s. Device %s port %u, GID %u %s to %s (%s), queue pair 0x%x to 0x%x, state %s",
		doing, where->peer, words->name, wc->status, wc->vendor_err, words->meaning, where->device, where->port,
		where->pair->our_gid.index, ours, theirs, rr_gid_type_name(where->pair->our_gid.type), where->our_number,
		where->their_number, where->state < 0 ? "unknown" : rr_qp_state_name(where->state));
	rr_error *error = rr_error_here();
	error->peer = where->peer;
	snprintf(error->transport, sizeof(error->transport), "verbs");
	snprintf(error->hint, sizeof(error->hint), "%s", words->remedy);
	return RR_ERR_LINK;
}

static rr_status event_fails(const char *device, const char *what, const char *remedy)
{
	rr_fail(RR_ERR_LINK, "device %s: %s", device, what);
	snprintf(rr_error_here()->transport, sizeof(rr_error_here()->transport), "verbs");
	snprintf(rr_error_here()->hint, sizeof(rr_error_here()->hint), "%s", remedy);
	return RR_ERR_LINK;
}

rr_status rr_verbs_event(const char *device, const struct rr_ibv_async_event *event)
{
	char what[160];

	switch (event->event_type) {
	case RR_IBV_EVENT_PORT_ERR:
		snprintf(what, sizeof(what), "port %d went down", event->element.port_num);
		return event_fails(device, what, "see the cable, the switch's port and the network device (ip link); rdmaring doctor shows the port's state");
	case RR_IBV_EVENT_DEVICE_FATAL:
		return event_fails(device, "the device failed", "see dmesg; the device may need a reset");
	case RR_IBV_EVENT_CQ_ERR:
		return event_fails(device, "a completion queue failed (overrun, or a protection error)", "see dmesg; report it as a bug if that says nothing");
	case RR_IBV_EVENT_QP_FATAL:
	case RR_IBV_EVENT_QP_REQ_ERR:
	case RR_IBV_EVENT_QP_ACCESS_ERR:
		snprintf(what, sizeof(what), "queue pair 0x%x failed (%s)", event->element.qp->qp_num,
			 event->event_type == RR_IBV_EVENT_QP_FATAL ? "fatal"
			 : event->event_type == RR_IBV_EVENT_QP_REQ_ERR ? "an invalid request"
									  : "an access that is not allowed");
		return event_fails(device, what, "see dmesg, and the errors of the other ranks");
	}
	return RR_OK; /* established, drained, active, addresses that changed: what matters shows in completions */
}
