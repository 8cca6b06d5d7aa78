/*
 * stage.h - ordinary input on its way to ranks of this node.
 *
 * Peers cannot read ordinary memory in place. Among many ranks, what they will read of a rank's input is therefore
 * copied to the communicator's registered scratch before OPEN is posted. From there on it is registered input, there
 * from its OPEN: as many copies as by way of slots, but no DATA and no credit, and one meeting of all ranks fewer.
 * Only inputs that pay for the memory: see operation.c for the bounds. Nothing of it shows in rows or OPENs of others.
 */
#ifndef RR_STAGE_H
#define RR_STAGE_H

#include "comm.h"

/*
 * Which parts of the input the plan's rows send to ranks of this node. None if one of them sends nothing here:
 * then this rank need not wait for it, as it would have to for the scratch.
 */
rr_status rr_stage_find(const struct rr_comm *comm, struct rr_plan *plan);
/*
 * Copy them. *place says then how peers reach the copy; it stays as it is where nothing is to be copied, or where
 * memory is short. RR_AGAIN: a peer could not be told yet.
 */
rr_status rr_stage_input(struct rr_comm *comm, struct rr_work *work, struct rr_place *place);

#endif
