/*
 * far.h - ranks on other nodes: one control connection an edge, made when first needed.
 *
 * The lower rank dials, the higher accepts; both prove the job's key. The connection carries what is
 * slow: set-up messages of the edge's transport, STATE, FAILED and CLOSED. What a far rank says of
 * itself is written into its mirror page, which watch.c reads as it reads a near rank's own.
 *
 *   IDLE -> DIALING -> GREETING -> UP -> ENDED
 *
 * Threads: the driver of the communicator only. Nothing here blocks.
 */
#ifndef RR_FAR_H
#define RR_FAR_H

#include <stdbool.h>
#include <stdint.h>

#include "net.h"
#include "page.h"
#include "rdmaring.h"

#define RR_FAR_BODY_MAX 4096u   /* of one control message */
#define RR_FAR_STREAMS_MAX 16u  /* data sockets of an edge */

struct rr_far;

/*
 * What an edge's transport is told. user: the transport's. All may be NULL. They are called by rr_far_look() and
 * rr_far_want(), on the driver.
 */
struct rr_edge_ops {
	/* The control connection is up (again never: an edge lives once). */
	void (*up)(void *user);
	/* A set-up message of the peer's transport; body is valid during the call. */
	void (*message)(void *user, const void *body, uint32_t bytes);
	/* A data socket, proven, non-blocking, number `stream` of those asked for; it is the transport's to close. */
	void (*stream)(void *user, uint32_t stream, int socket);
};

enum rr_edge_state { RR_EDGE_IDLE = 0, RR_EDGE_DIALING = 1, RR_EDGE_GREETING = 2, RR_EDGE_UP = 3, RR_EDGE_ENDED = 4 };

/* Who serves the edge to `peer`, and how many data sockets it wants (0..RR_FAR_STREAMS_MAX; both ends alike). */
void rr_far_serve(struct rr_far *far, int32_t peer, const struct rr_edge_ops *ops, void *user, uint32_t streams);
/* Begin to join the edge if that has not begun. Errors: none of the peer's addresses can be reached, and why. */
rr_status rr_far_want(struct rr_far *far, int32_t peer);
enum rr_edge_state rr_far_state(const struct rr_far *far, int32_t peer);
/* A set-up message to the peer's transport. The edge is UP. RR_AGAIN: no room now. */
rr_status rr_far_send(struct rr_far *far, int32_t peer, const void *body, uint32_t bytes);
/* Let the driver's sleep end when fd has news (edge-triggered). Remove before closing fd. */
rr_status rr_far_sleep_on(struct rr_far *far, int fd);
void rr_far_sleep_off(struct rr_far *far, int fd);

#endif
