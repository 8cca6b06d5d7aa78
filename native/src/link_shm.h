/* link_shm.h - links between ranks that map each other's segments. */
#ifndef RR_LINK_SHM_H
#define RR_LINK_SHM_H

#include "link.h"
#include "shm.h"

/* One direction of the edge to `peer`. serial_start: both ends the same. The caller closes it. */
rr_status rr_link_shm_open(struct rr_shm *shm, int32_t peer, bool outgoing, uint64_t serial_start,
			   struct rr_link **out);

#endif
