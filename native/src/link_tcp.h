/* link_tcp.h - links over TCP between ranks of different nodes. */
#ifndef RR_LINK_TCP_H
#define RR_LINK_TCP_H

#include "far.h"
#include "link.h"

/* Both directions of the next channel to `peer`, joined when first used; late: see far.h. slot_bytes: of the largest slice. */
rr_status rr_link_tcp_open(struct rr_far *far, int32_t peer, uint32_t streams, uint64_t slot_bytes, bool late,
			   struct rr_link **out, struct rr_link **in);

#endif
