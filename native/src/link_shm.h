/* link_shm.h - links between ranks that map each other's segments. */
#ifndef RR_LINK_SHM_H
#define RR_LINK_SHM_H

#include "link.h"
#include "shm.h"

/* One direction of the edge to `peer`: of operations, or of messages of two ranks. The caller closes it. */
rr_status rr_link_shm_open(struct rr_shm *shm, int32_t peer, bool outgoing, bool messages, struct rr_link **out);
/* Both directions of one edge: what comes by the one tells what the peer has released of the other. At both ends, or at none. */
void rr_link_shm_pair(struct rr_link *out, struct rr_link *in);

#endif
