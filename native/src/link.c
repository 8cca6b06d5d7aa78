/* link.c - what links of all transports say alike. */
#include "link.h"

#include "status.h"

rr_status rr_link_row_differs(const struct rr_link *link, uint64_t theirs, uint64_t ours)
{
	rr_status status;

	if (!theirs)
		return rr_fail(RR_ERR_PROTOCOL, "rank %d does not say how many bytes it sends: is another version at the other end?",
			       link->peer);
	status = rr_fail(RR_ERR_MISMATCH, "expects %llu bytes, rank %d sends %llu", (unsigned long long)(ours - 1), link->peer,
			 (unsigned long long)(theirs - 1));
	rr_error_here()->peer = link->peer;
	return status;
}
