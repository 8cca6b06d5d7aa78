/* page.c - layout of a segment, and descriptors as people read them. */
#include "page.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "reduce.h"
#include "status.h"

#define PAGE_BYTES 4096u
#define FNV_OFFSET 0xcbf29ce484222325ull
#define FNV_PRIME 0x100000001b3ull

static uint64_t align_up(uint64_t value, uint64_t to)
{
	return (value + to - 1) / to * to;
}

void rr_layout_set(struct rr_layout *layout, uint32_t count, uint64_t slot_bytes, uint32_t slot_count)
{
	layout->count = count;
	layout->slot_bytes = slot_bytes;
	layout->slot_count = slot_count;
	layout->link_bytes = slot_bytes * slot_count;
	layout->message_bytes = slot_bytes;
	layout->consumed = align_up(sizeof(struct rr_page), RR_CACHE_LINE);
	layout->probes = layout->consumed + 2ull * count * sizeof(struct rr_consumed);
	layout->mailbox = layout->probes + (uint64_t)count * sizeof(struct rr_probe);
	layout->mailbox_payload = layout->mailbox + 2 * sizeof(struct rr_mailbox_line);
	layout->mailbox_sum = layout->mailbox_payload + 2ull * RR_MAILBOX_BYTES;
	layout->rings = layout->mailbox_sum + 2ull * RR_MAILBOX_BYTES;
	layout->slots = align_up(layout->rings + 2ull * count * RR_RING_COUNT * sizeof(struct rr_data), PAGE_BYTES);
	layout->message_slots = layout->slots + (uint64_t)count * layout->link_bytes;
	layout->bytes = align_up(layout->message_slots + (uint64_t)count * layout->message_bytes, PAGE_BYTES);
}

uint64_t rr_hash_bytes(const void *bytes, size_t size, uint64_t seed)
{
	const uint8_t *byte = bytes;
	uint64_t hash = FNV_OFFSET ^ seed;

	for (size_t i = 0; i < size; i++)
		hash = (hash ^ byte[i]) * FNV_PRIME;
	return hash;
}

uint64_t rr_descriptor_hash(const struct rr_descriptor *descriptor)
{
	size_t skip = sizeof(descriptor->hash);
	uint64_t hash = rr_hash_bytes((const char *)descriptor + skip, sizeof(*descriptor) - skip, 0);

	hash ^= hash >> 32 << 1; /* the mailbox tag carries the low half: let it depend on all bytes */
	return hash ? hash : 1;
}

/* All that a caller has said, apart from how the vector is cut. */
static bool same_call(const struct rr_descriptor *a, const struct rr_descriptor *b)
{
	return a->collective == b->collective && a->count == b->count && a->dtype == b->dtype && a->redop == b->redop &&
	       a->scale == b->scale && a->root == b->root && a->channels == b->channels && a->device == b->device && memcmp(a->algorithm, b->algorithm, sizeof(a->algorithm)) == 0;
}

void rr_descriptor_text(const struct rr_descriptor *descriptor, const struct rr_descriptor *other, char *text,
			size_t size)
{
	char reduction[64] = "", place[24] = "", scale[48] = "", root[32] = "", cut[160] = "", costs[48] = "", channels[32] = "";

	if (descriptor->channels != other->channels)
		snprintf(channels, sizeof(channels), " in %u channel%s", descriptor->channels, descriptor->channels == 1 ? "" : "s");
	if (descriptor->device != other->device)
		snprintf(place, sizeof(place), descriptor->device ? " in GPU memory" : " in host memory");
	if (descriptor->costs != other->costs)
		snprintf(costs, sizeof(costs), ", chosen by the costs %08x", descriptor->costs);
	if (descriptor->collective == RR_BARRIER) {
		snprintf(text, size, "barrier%s", costs);
		return;
	}
	if (descriptor->collective == RR_ALL_REDUCE || descriptor->collective == RR_REDUCE_SCATTER ||
	    descriptor->collective == RR_REDUCE)
		snprintf(reduction, sizeof(reduction), ", %s", rr_redop_name((rr_redop)descriptor->redop));
	if (descriptor->scale != 1.0)
		snprintf(scale, sizeof(scale), ", scale %g", descriptor->scale);
	if (descriptor->root >= 0)
		snprintf(root, sizeof(root), ", root %d", descriptor->root);
	if (same_call(descriptor, other))
		snprintf(cut, sizeof(cut), ", schedule %016llx, chunk table %08x, %u round(s), slices of %llu bytes%s%s",
			 (unsigned long long)descriptor->schedule, (uint32_t)descriptor->chunks, descriptor->round_count,
			 (unsigned long long)descriptor->slice_bytes, descriptor->mailbox ? ", by mailbox" : "",
			 descriptor->check == other->check ? "" : descriptor->check ? ", check crc" : ", no check");
	if (descriptor->collective == RR_ALL_TO_ALL && !descriptor->chunks) {
		snprintf(text, size, "all_to_all of %s elements%s, counts by pair, algorithm %.24s%s",
			 rr_dtype_name((rr_dtype)descriptor->dtype), place, descriptor->algorithm, cut);
		return;
	}
	snprintf(text, size, "%s of %llu %s elements%s%s%s%s, algorithm %.24s%s%s%s", rr_collective_name(descriptor->collective),
		 (unsigned long long)descriptor->count, rr_dtype_name((rr_dtype)descriptor->dtype), place, reduction, scale, root,
		 descriptor->algorithm, channels, cut, costs);
}
