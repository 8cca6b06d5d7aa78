/*
 * link.h - the contract of a link: one direction of one edge, rank to rank, over one transport.
 *
 * The engine holds two links a peer, out and in. Nothing here blocks. A link knows no algorithm.
 *
 *   sender    reserve -> (fill place) -> commit      after a reserve every path commits or aborts
 *   receiver  peek -> (use data in place) -> release
 *
 * Transfers are numbered on a link, first in, first out. A transfer names its mode (wire.h), which
 * both ends computed alike; the link turns the mode into an address:
 *
 *   mode     reserve gives            peek gives
 *   SLOT     a slot to fill           the slot
 *   SOURCE   NULL: nothing to fill    the sender's memory, mapped here
 *   WRITE    the receiver's memory    the receiver's own memory, already filled
 *   CMA      NULL: nothing to fill    `landing` if given, filled now; else a bounce buffer
 *   STREAM   NULL: nothing to fill    `landing` if given, filled now; else a bounce buffer
 *
 * Far links (STREAM and RDMA) send out of `pieces`, the sender's own memory after the pass, where they
 * can; reserve then gives NULL, and commit raises `held_end`: released() counts a transfer once the memory
 * is its owner's again. Where an RDMA link cannot (memory without a key, many pieces) reserve gives a slot
 * of its staging, in the modes SLOT and WRITE alike.
 *
 * Implied transfers. What is read in place out of a sender's INPUT (SOURCE, CMA) is there from its OPEN
 * on, and stays until it is released: no DATA is sent. Both ends count it in its turn; the receiver may
 * be ahead of the sender in this. commit() of an implied transfer needs no reserve and no credit.
 *
 * Threads: the driver of the communicator only.
 */
#ifndef RR_LINK_H
#define RR_LINK_H

#include <stdbool.h>
#include <sys/uio.h>

#include "rdmaring.h"
#include "wire.h"

#define RR_PIECES_MAX 16u /* a slice in more pieces than these is packed first */

struct rr_link;

/* What a link can do, known to both ends: it decides, with both OPENs, the mode of a transfer. */
enum rr_link_kind {
	RR_LINK_MAPPED = 0, /* the ends map each other's pages */
	RR_LINK_STREAM = 1, /* bytes are pushed and landed by the receiver */
	RR_LINK_RDMA = 2    /* the sender writes slots or memory that the receiver granted */
};

/* One slice on its way. */
struct rr_transfer {
	uint64_t op;
	uint32_t order;
	uint32_t slice;
	uint32_t bytes;
	enum rr_mode mode;
	/*
	 * Where the ends were told their counts apart: 1 + the bytes of all of the row's slices, compared by the receiver
	 * (RR_ERR_MISMATCH); else 0, and not compared. Such transfers go by SLOT or STREAM alone, out of scratch, too: the engine
	 * tells no places then. See rr_link_row_differs().
	 */
	uint64_t row_bytes;
	/* sender, at commit, where the operation checks; else 0: CRC32C of the bytes as they are, and as their origin had them */
	uint32_t crc, origin;
	void *landing;            /* receiver: where the bytes go if the row only lands them, else NULL */
	uint64_t coordinate;      /* sender, or implied: byte offset in `buffer` */
	enum rr_buffer_id buffer; /* SLOT: unused; SOURCE, CMA: the sender's; WRITE: the receiver's */
	bool implied;             /* see above; coordinate is then known to the receiver, too */
	bool copied; /* sender: the pass only copies its source */
	/* sender: how many sends of this slice are yet to be reserved, this one counted; the slot that one before it was given */
	uint32_t alike;
	const void *given;
	/* far sender: where the bytes lie after the pass; count 0: in more than RR_PIECES_MAX pieces */
	struct iovec pieces[RR_PIECES_MAX];
	uint32_t piece_count;
	bool on_device; /* pieces and landing are addresses of a device's memory: the processor reaches nothing there */
};

struct rr_link_ops {
	const char *transport;

	/* Tell the peer which operation this rank entered. RR_AGAIN: no room yet. descriptor: what open->descriptor is the hash of. */
	rr_status (*open_post)(struct rr_link *out, const struct rr_open *open, const struct rr_descriptor *descriptor);
	/* The peer's OPEN for `op`. RR_AGAIN: it has not entered. The line stays valid during op. */
	rr_status (*open_peek)(struct rr_link *in, uint64_t op, const struct rr_open **open);
	/*
	 * Both OPENs are known: take up the peer's places for this operation. Called once an operation
	 * for the pair (out, in) of a peer, before the first transfer.
	 */
	rr_status (*open_accept)(struct rr_link *link, const struct rr_open *peer);

	/*
	 * *place is NULL where there is nothing to fill. RR_AGAIN: no credit. A link may answer with the slot `given`,
	 * which is filled once then: each of the sends that it serves commits or aborts it.
	 */
	rr_status (*reserve)(struct rr_link *out, const struct rr_transfer *transfer, void **place);
	void (*commit)(struct rr_link *out, const struct rr_transfer *transfer);
	void (*abort)(struct rr_link *out);
	/* How many transfers the receiver is done with; counted as `sent` below. */
	uint64_t (*released)(struct rr_link *out);

	/* RR_AGAIN: not here yet. The same transfer may be peeked again until it is released. */
	rr_status (*peek)(struct rr_link *in, const struct rr_transfer *transfer, const void **data);
	void (*release)(struct rr_link *in, uint32_t bytes);

	/* Wake the peer if it sleeps. Called once a pass over all that was committed and released. */
	void (*flush)(struct rr_link *out);

	/* ---- far links; NULL elsewhere ---- */

	/* Move what is under way. Called for both directions once a pass. Errors are the link's. */
	rr_status (*progress)(struct rr_link *link);
	/*
	 * A tiny message, at most RR_MAILBOX_BYTES: numbered by the mailbox, at most one ahead of the receiver.
	 * The payload is copied. tiny_peek: *payload stays valid until the next tiny_peek of another serial.
	 */
	rr_status (*tiny_post)(struct rr_link *out, uint64_t tag, const void *payload, uint32_t bytes);
	rr_status (*tiny_peek)(struct rr_link *in, uint32_t serial, uint64_t *tag, const void **payload, uint32_t *bytes);
	/* After an error: when it returns nobody touches this rank's memory by this link any more. May be NULL. */
	void (*sever)(struct rr_link *link);
	/* 0: all that was handed over is with the peer's kernel, else a number that changes with it. NULL: not known, waiting for credit tells. */
	uint64_t (*outstanding)(struct rr_link *out);
	/* How the edge is served, for people: device, rail, and why not better. May be NULL. */
	void (*describe)(struct rr_link *link, rr_link_facts *facts);

	void (*close)(struct rr_link *link);
};

/* The part all links have; a transport embeds it first. */
struct rr_link {
	const struct rr_link_ops *ops;
	int32_t peer;
	enum rr_link_kind kind;
	bool cma; /* the receiver may read the sender's ordinary memory */
	bool past;  /* out: the slot, or the cell of scratch, that was reserved last is best filled past the caches (apart.h) */
	uint32_t granted; /* in: bit b: the peer was told, for this operation, where our buffer b lies in a device's memory */
	uint32_t crc, origin; /* in: what the transfer peeked last carries */
	bool dirty; /* something was committed, released or opened since the last flush */
	/*
	 * out: 1 + number of the last transfer of this operation for which the sender's memory may still be read, until
	 * released() has counted it; 0: of none. Raised by commit, cleared by the engine.
	 */
	uint64_t held_end;
	uint64_t sent;  /* transfers committed (out) or released (in), since the link was opened */
	uint64_t released_seen; /* out: released() gives no less; where a link learns more by the way. 0: not known */
	uint64_t bytes; /* their payload */
};

/* The error of a receiver whose row has another size than the sender's; both as in rr_transfer. */
rr_status rr_link_row_differs(const struct rr_link *link, uint64_t theirs, uint64_t ours);

/* Is the receiver done with the first `count` transfers, counted as `sent`? */
static inline bool rr_link_has_released(struct rr_link *out, uint64_t count)
{
	return out->released_seen >= count || out->ops->released(out) >= count;
}

static inline bool rr_mode_implied(enum rr_mode mode, int32_t source_buffer)
{
	return (mode == RR_MODE_SOURCE || mode == RR_MODE_CMA) && source_buffer == RR_INPUT;
}

/* The mode of a transfer, from what both ends know. `lands`: the receiver's row only lands the bytes. */
static inline enum rr_mode rr_mode_choose(const struct rr_link *link, const struct rr_place *source,
					  const struct rr_place *landing)
{
	if (link->kind == RR_LINK_STREAM)
		return RR_MODE_STREAM;
	if (landing && landing->reach == RR_REACH_REGION)
		return RR_MODE_WRITE;
	if (link->kind == RR_LINK_RDMA)
		return RR_MODE_SLOT;
	if (source->reach == RR_REACH_REGION)
		return RR_MODE_SOURCE;
	if (source->reach == RR_REACH_CMA && link->cma)
		return RR_MODE_CMA;
	return RR_MODE_SLOT;
}

#endif
