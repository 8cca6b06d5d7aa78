/* link_verbs.h - links over InfiniBand or RoCE: RDMA WRITE WITH IMM into granted slots or granted memory. */
#ifndef RR_LINK_VERBS_H
#define RR_LINK_VERBS_H

#include "far.h"
#include "link.h"
#include "verbs_device.h"

/*
 * Both directions of the next channel to `peer`; closed one by one, before far. late: not even the control
 * connection brings it up, only this rank's wish or the peer's. ours: the rail that serves it, pair: what
 * rr_rails_match() gave; with the same turn it chooses another, should that rail stay dead. Nothing of the device is taken before the edge is first wanted. Settings are checked here.
 */
rr_status rr_link_verbs_open(struct rr_far *far, int32_t rank, int32_t peer, const struct rr_rail *ours,
			     const struct rr_rail_pair *pair, uint32_t turn, const rr_options *options, bool late,
			     struct rr_link **out, struct rr_link **in);

#endif
