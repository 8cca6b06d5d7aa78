/*
 * page.h - the progress page: what a rank tells the world about itself, and where the rest of its
 * segment lies.
 *
 * Each rank owns one segment (a memfd) a communicator; all ranks of the node map it. Its owner writes
 * everything in it, except `bell` (any waker). A page outlives its owner as long as someone maps it.
 *
 *   offset (lines of 64 bytes)
 *      0  identity        written once
 *      1  state, doorbell
 *      2  position        two stores a tiny operation, one a slice
 *      3  entries[16]     op << 8 | index in descriptors
 *      5  opens[16]       see wire.h
 *     21  waiting         what the owner waits in; written when it looks around, never by slice
 *     22  elsewhere       what its process waited in last, in whichever communicator
 *     23  pace            how busy its busiest edge is; written when it looks around while it waits
 *     24  descriptors[64]
 *         error           written before state says FAILED
 *         consumed[2 * count] per sender of the node: transfers released by this rank, one line each; of
 *                         operations, then of messages
 *         probes[count]   per receiver, 17 lines each; at one's own number the one that several receivers read
 *         mailbox lines   two, alternating by mailbox serial; then two payload areas
 *         rings[2 * count] per receiver: DATA lines; of operations, then of messages
 *         slots[count]    per receiver, on page boundaries; at one's own number those that several receivers read
 *         message slots[count] likewise
 */
#ifndef RR_PAGE_H
#define RR_PAGE_H

#include <stdalign.h>
#include <stddef.h>
#include <stdint.h>

#include "rdmaring.h"
#include "wire.h"

#define RR_PAGE_MAGIC 0x45474150474e5252ull /* "RRNGPAGE" */
#define RR_PAGE_VERSION 9                    /* raise on any change to this picture */
#define RR_ENTRY_COUNT 16u                   /* operations back that can be told apart */
#define RR_DESCRIPTOR_COUNT 64u              /* fits the low byte of an entry */
#define RR_MAILBOX_LINE_BYTES 56u            /* payload beside the tag */
#define RR_MAILBOX_BYTES 16384u              /* the largest tiny message */
#define RR_RING_COUNT 64u                    /* DATA lines a link */

_Static_assert(RR_DESCRIPTOR_COUNT <= 256, "an entry has a byte for the descriptor");

enum rr_page_state { RR_PAGE_SETUP = 0, RR_PAGE_RUNNING = 1, RR_PAGE_FAILED = 2, RR_PAGE_CLOSED = 3 };

/* How the owner of a page sleeps, and so how it is woken. */
enum rr_sleep { RR_SLEEPS_NOT = 0, RR_SLEEPS_ON_FUTEX = 1, RR_SLEEPS_ON_EPOLL = 2 };

/* The payload begins the line: a load of 64 bytes of which some count (reduce_ops_x86.h) touches no other line then. */
struct rr_mailbox_line {
	union {
		uint8_t payload[RR_MAILBOX_LINE_BYTES];
		_Atomic uint64_t summed; /* where the payload lies elsewhere: the tag, once the owner's sum is there for others */
	};
	_Atomic uint64_t tag; /* serial << 32 | descriptor hash; last */
} __attribute__((aligned(RR_CACHE_LINE)));
_Static_assert(sizeof(struct rr_mailbox_line) == 64, "payload and tag travel in one line");

/* Written by the receiver of a link, for its sender. */
struct rr_consumed {
	alignas(RR_CACHE_LINE) _Atomic uint64_t value; /* transfers released */
	_Atomic uint64_t probed, common_probed; /* the newest of the sender's probes, for this rank and for all, that was read */
};
_Static_assert(sizeof(struct rr_consumed) == 64, "counters of different writers share no line");

/*
 * Lines that are written only to find how far their readers are (apart.h): no payload, no counter lies here.
 *
 *	+-------+------+------+-----+-------+
 *	| asked | line | line | ... | line  |   RR_PROBE_LINES of them, all read before `asked` is answered
 *	+-------+------+------+-----+-------+
 */
#define RR_PROBE_LINES 16u
struct rr_probe {
	alignas(RR_CACHE_LINE) _Atomic uint64_t asked; /* number of the newest probe: its lines are written */
	struct {
		alignas(RR_CACHE_LINE) _Atomic uint64_t value;
	} lines[RR_PROBE_LINES];
};
_Static_assert(sizeof(struct rr_probe) == 64 * (1 + RR_PROBE_LINES), "a probe is whole lines");

/* A wait in one word: rr_wait_kind << 56 | row (24 bits, all ones: none) << 32 | peer. 0: none. */
struct rr_waiting {
	alignas(RR_CACHE_LINE) _Atomic uint64_t op; /* an older one than op_done + 1 counts for nothing */
	_Atomic uint64_t waits[2];                  /* for what comes; for room, where it sends */
	_Atomic uint64_t since_ns, seen_ns;         /* since when for just these; when the owner looked last */
	_Atomic uint64_t lacks; /* count << 32 | 1 + peer: what that rank has sent, waits for nothing, and never came; 0: nothing */
};
_Static_assert(sizeof(struct rr_waiting) == 64, "what its owner waits in is one line");

struct rr_elsewhere {
	alignas(RR_CACHE_LINE) _Atomic uint64_t comm;
	_Atomic uint64_t op;
	_Atomic uint64_t wait;    /* as above */
	_Atomic uint64_t process; /* of the peer in it */
	_Atomic uint64_t seen_ns;
};
_Static_assert(sizeof(struct rr_elsewhere) == 64, "so is what its process does");

/* far << 63 | peer (31 bits) << 32 | share of the time in which that edge was under way << 16 | share without a processor; in 1/1000 */
struct rr_pace {
	alignas(RR_CACHE_LINE) _Atomic uint64_t word; /* RR_PACE_NOT_KNOWN in the last place: the kernel does not tell */
	_Atomic uint64_t span_ns;           /* what the shares are of; old times count half */
	_Atomic uint64_t moved_ns, seen_ns; /* when bytes moved last; when it was written */
};
_Static_assert(sizeof(struct rr_pace) == 64, "so is its pace");

#define RR_PACE_NOT_KNOWN 0xffffu

struct rr_page {
	alignas(RR_CACHE_LINE) uint64_t magic;
	uint32_t version;
	uint32_t world;
	uint32_t rank;
	int32_t pid;
	uint64_t start_time; /* of the process, in clock ticks since boot */
	uint8_t token[16];   /* told over the rendezvous: who maps this page proves the same node */
	uint64_t created_ns;
	uint64_t process; /* the same in all pages of a process; see rr_hello_process() */

	alignas(RR_CACHE_LINE) _Atomic uint32_t state; /* enum rr_page_state */
	_Atomic uint32_t bell;                          /* futex word of the sleeping owner */
	_Atomic uint32_t sleeping;                      /* enum rr_sleep */
	_Atomic uint32_t finder; /* of the page of the node's first rank: 1 + the rank that found why the communicator is lost; by any */
	uint64_t comm;           /* names the communicator, on all its ranks alike */
	uint64_t pid_namespace;  /* in which `pid` counts: its inode; 0: not known */

	alignas(RR_CACHE_LINE) _Atomic uint64_t op_done; /* the last finished operation; ops count from 1 */
	_Atomic uint64_t position;                        /* row << 32 | slice of the operation in flight */

	alignas(RR_CACHE_LINE) _Atomic uint64_t entries[RR_ENTRY_COUNT];
	struct rr_open opens[RR_ENTRY_COUNT];
	struct rr_waiting waiting;
	struct rr_elsewhere elsewhere;
	struct rr_pace pace;
	alignas(RR_CACHE_LINE) struct rr_descriptor descriptors[RR_DESCRIPTOR_COUNT];
	rr_error error;
};
_Static_assert(offsetof(struct rr_page, state) == 64, "identity is one line");
_Static_assert(offsetof(struct rr_page, op_done) == 128, "the doorbell is one line");
_Static_assert(offsetof(struct rr_page, entries) == 192, "position is one line");
_Static_assert(offsetof(struct rr_page, opens) == 320, "sixteen entries are two lines");

/* Where things lie in a segment; the same for all ranks of a communicator. */
struct rr_layout {
	uint32_t count; /* ranks of the node */
	uint32_t slot_count;
	uint64_t slot_bytes;
	uint64_t link_bytes; /* slots of one link */
	uint64_t message_bytes; /* of one that carries messages of two ranks */
	uint64_t consumed, probes, mailbox, mailbox_payload, mailbox_sum, rings, slots, message_slots; /* offsets */
	uint64_t bytes;                                             /* of the whole segment */
};

void rr_layout_set(struct rr_layout *layout, uint32_t count, uint64_t slot_bytes, uint32_t slot_count);

static inline struct rr_consumed *rr_page_consumed(struct rr_page *page, const struct rr_layout *layout, uint32_t sender)
{
	return (struct rr_consumed *)((char *)page + layout->consumed) + sender;
}

static inline struct rr_probe *rr_page_probe(struct rr_page *page, const struct rr_layout *layout, uint32_t receiver)
{
	return (struct rr_probe *)((char *)page + layout->probes) + receiver;
}

static inline struct rr_mailbox_line *rr_page_mailbox(struct rr_page *page, const struct rr_layout *layout)
{
	return (struct rr_mailbox_line *)((char *)page + layout->mailbox);
}

static inline uint8_t *rr_page_mailbox_payload(struct rr_page *page, const struct rr_layout *layout, uint32_t which)
{
	return (uint8_t *)page + layout->mailbox_payload + (uint64_t)which * RR_MAILBOX_BYTES;
}

static inline uint8_t *rr_page_mailbox_sum(struct rr_page *page, const struct rr_layout *layout, uint32_t which)
{
	return (uint8_t *)page + layout->mailbox_sum + (uint64_t)which * RR_MAILBOX_BYTES;
}

static inline struct rr_data *rr_page_ring(struct rr_page *page, const struct rr_layout *layout, uint32_t receiver)
{
	return (struct rr_data *)((char *)page + layout->rings) + (uint64_t)receiver * RR_RING_COUNT;
}

static inline uint8_t *rr_page_slots(struct rr_page *page, const struct rr_layout *layout, uint32_t receiver)
{
	return (uint8_t *)page + layout->slots + (uint64_t)receiver * layout->link_bytes;
}

static inline uint8_t *rr_page_message_slots(struct rr_page *page, const struct rr_layout *layout, uint32_t receiver)
{
	return (uint8_t *)page + layout->message_slots + (uint64_t)receiver * layout->message_bytes;
}

/* A wait as it stands in a page; row -1: none. */
static inline uint64_t rr_wait_word(uint32_t kind, int32_t row, int32_t peer)
{
	return (uint64_t)kind << 56 | (uint64_t)((uint32_t)row & 0xffffffu) << 32 | (uint32_t)peer;
}

/* An entry tells op and descriptor by one store. */
static inline uint64_t rr_entry(uint64_t op, uint32_t descriptor)
{
	return op << 8 | descriptor;
}

/*
 * One line for people: "all_reduce of 1048576 float32 elements, sum, algorithm ring". How it is cut is said
 * only where all else is as in `other`.
 */
void rr_descriptor_text(const struct rr_descriptor *descriptor, const struct rr_descriptor *other, char *text,
			size_t size);
/* FNV-1a over the bytes after the hash; never 0. */
uint64_t rr_descriptor_hash(const struct rr_descriptor *descriptor);
uint64_t rr_hash_bytes(const void *bytes, size_t size, uint64_t seed);

#endif
