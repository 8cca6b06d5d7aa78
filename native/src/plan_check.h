/*
 * plan_check.h - what must hold of a schedule and a chunk table before they are bound.
 *
 * Whatever a schedule says, its rows touch no byte outside the arrays that a rank and its peers have in the collective:
 * refused here, once, so that the engine and the links need not look.
 */
#ifndef RR_PLAN_CHECK_H
#define RR_PLAN_CHECK_H

#include "plan.h"

rr_status rr_plan_check_spec(int32_t rank, int32_t world, const rr_plan_spec *spec);
/* Of a spec that passed the one above. */
rr_status rr_plan_check_rows(const rr_plan_spec *spec);

static inline bool rr_collective_reduces(int32_t collective)
{
	return collective == RR_ALL_REDUCE || collective == RR_REDUCE_SCATTER || collective == RR_REDUCE;
}

#endif
