/* link_message.h - links over a transport that is not ours: a shared library's or a caller's (rdmaring_link.h). */
#ifndef RR_LINK_MESSAGE_H
#define RR_LINK_MESSAGE_H

#include "far.h"
#include "link.h"
#include "rdmaring_link.h"

/* Both directions of the next channel to `peer`, opened when first used; late: see far.h. body_bytes_max: of the largest message. */
rr_status rr_link_message_open(struct rr_far *far, const rr_message_transport *transport, int32_t rank, int32_t world,
			       int32_t peer, uint64_t body_bytes_max, bool late, struct rr_link **out, struct rr_link **in);

/* message_load.c */
/* Of this version, whole, with a name. whose: for the error's text. */
rr_status rr_message_check(const rr_message_transport *transport, const char *whose);
/* The transport of a shared library; *library is for dlclose(). */
rr_status rr_message_load(const char *path, void **library, const rr_message_transport **out);

#endif
