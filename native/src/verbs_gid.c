/* verbs_gid.c - see verbs_gid.h. */
#include "verbs_gid.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint8_t ipv4_prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

const char *rr_gid_type_name(uint8_t type)
{
	static const char *const names[] = {"InfiniBand", "RoCE v1", "RoCE v2", "unknown"};

	return names[type <= RR_GID_TYPE_UNKNOWN ? type : RR_GID_TYPE_UNKNOWN];
}

const char *rr_gid_kind_name(uint8_t kind)
{
	static const char *const names[] = {"IPv4", "IPv6", "link-local"};

	return kind <= RR_GID_LINK_LOCAL ? names[kind] : "unknown";
}

enum rr_gid_kind rr_gid_kind_of(const uint8_t gid[16])
{
	if (memcmp(gid, ipv4_prefix, sizeof(ipv4_prefix)) == 0)
		return RR_GID_IPV4;
	if (gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80)
		return RR_GID_LINK_LOCAL;
	return RR_GID_IPV6;
}

void rr_gid_text(const uint8_t gid[16], char text[RR_GID_TEXT_BYTES])
{
	if (rr_gid_kind_of(gid) == RR_GID_IPV4)
		inet_ntop(AF_INET, gid + 12, text, RR_GID_TEXT_BYTES);
	else
		inet_ntop(AF_INET6, gid, text, RR_GID_TEXT_BYTES);
}

uint32_t rr_gid_common_bits(const uint8_t a[16], const uint8_t b[16])
{
	uint32_t bits = 0;

	while (bits < 128 && !((a[bits / 8] ^ b[bits / 8]) & (0x80 >> bits % 8)))
		bits++;
	return bits;
}

/* One line of a file below the port's folder in sysfs, without its end. */
static bool sysfs_line(const struct rr_gid_table *table, const char *what, uint32_t index, char *line, size_t size)
{
	const char *root = getenv("RDMARING_SYSFS");
	char path[512];
	FILE *file;
	bool read;

	snprintf(path, sizeof(path), "%s/class/infiniband/%s/ports/%u/gid_attrs/%s/%u", root && root[0] ? root : "/sys",
		 table->device, table->port, what, index);
	file = fopen(path, "r");
	if (!file)
		return false;
	read = fgets(line, (int)size, file) != NULL; /* the kernel refuses to read an empty row */
	fclose(file);
	if (read)
		line[strcspn(line, "\n")] = 0;
	return read && line[0];
}

static uint8_t type_of_words(const char *words)
{
	if (strcmp(words, "RoCE v2") == 0)
		return RR_GID_ROCE_V2;
	if (strcmp(words, "IB/RoCE v1") == 0 || strcmp(words, "RoCE v1") == 0)
		return RR_GID_ROCE_V1;
	return RR_GID_TYPE_UNKNOWN;
}

static void find_type(const struct rr_verbs *verbs, struct rr_ibv_context *context, const struct rr_gid_table *table,
		      struct rr_gid_row *row)
{
	struct rr_ibv_gid_entry entry = {0};
	char words[64];

	row->type = RR_GID_TYPE_UNKNOWN;
	if (sysfs_line(table, "ndevs", row->index, words, sizeof(words)))
		snprintf(row->netdev, sizeof(row->netdev), "%.15s", words);
	if (table->link_layer == RR_IBV_LAYER_INFINIBAND) {
		row->type = RR_GID_IB;
		return;
	}
	if (sysfs_line(table, "types", row->index, words, sizeof(words)))
		row->type = type_of_words(words);
	if (row->type != RR_GID_TYPE_UNKNOWN || !verbs->query_gid_ex)
		return;
	if (verbs->query_gid_ex(context, table->port, row->index, &entry, 0, sizeof(entry)) == 0 &&
	    memcmp(entry.gid.raw, row->gid, sizeof(row->gid)) == 0) {
		row->type = entry.gid_type <= RR_GID_ROCE_V2 ? (uint8_t)entry.gid_type : (uint8_t)RR_GID_TYPE_UNKNOWN;
		if (!row->netdev[0] && (!entry.ndev_ifindex || !if_indextoname(entry.ndev_ifindex, row->netdev)))
			row->netdev[0] = 0;
	}
}

static void judge(const struct rr_gid_table *table, uint32_t gid_index_plus_1, struct rr_gid_row *row)
{
	row->kept = false;
	if (gid_index_plus_1 && row->index != gid_index_plus_1 - 1) {
		snprintf(row->reason, sizeof(row->reason), "not used: the settings name GID index %u", gid_index_plus_1 - 1);
	} else if (table->link_layer == RR_IBV_LAYER_INFINIBAND && !gid_index_plus_1 && row->index != 0) {
		snprintf(row->reason, sizeof(row->reason), "not used: InfiniBand ports are reached by index 0");
	} else if (row->type == RR_GID_TYPE_UNKNOWN) {
		snprintf(row->reason, sizeof(row->reason), "not used: its RoCE version cannot be read");
	} else if (gid_index_plus_1) {
		row->kept = true;
		snprintf(row->reason, sizeof(row->reason), "used: the settings name it");
	} else {
		row->kept = true;
		snprintf(row->reason, sizeof(row->reason), "usable: %s, %s%s", rr_gid_type_name(row->type),
			 rr_gid_kind_name(row->kind),
			 row->type == RR_GID_ROCE_V1 ? "; after RoCE v2"
			 : row->kind == RR_GID_LINK_LOCAL && table->link_layer == RR_IBV_LAYER_ETHERNET ? "; after global ones"
												       : "");
	}
}

void rr_gid_table_read(const struct rr_verbs *verbs, struct rr_ibv_context *context, const char *device, uint8_t port,
		       const struct rr_ibv_port_attr *attributes, uint32_t gid_index_plus_1,
		       struct rr_gid_table *table)
{
	static const union rr_ibv_gid empty;
	uint32_t length = attributes->gid_tbl_len > 0 ? (uint32_t)attributes->gid_tbl_len : 0;

	snprintf(table->device, sizeof(table->device), "%s", device);
	table->port = port;
	table->link_layer = attributes->link_layer;
	table->count = 0;
	for (uint32_t index = 0; index < length && table->count < RR_GID_ROWS_MAX; index++) {
		struct rr_gid_row *row = &table->rows[table->count];
		union rr_ibv_gid gid = {0};
		int result = verbs->query_gid(context, port, (int)index, &gid);

		if (result == 0 && memcmp(&gid, &empty, sizeof(gid)) == 0)
			continue;
		memset(row, 0, sizeof(*row));
		row->index = (uint16_t)index;
		table->count++;
		if (result) {
			row->type = RR_GID_TYPE_UNKNOWN;
			snprintf(row->reason, sizeof(row->reason), "not used: cannot be read (%s)", rr_verbs_error(result));
			continue;
		}
		memcpy(row->gid, gid.raw, sizeof(row->gid));
		row->kind = (uint8_t)rr_gid_kind_of(row->gid);
		find_type(verbs, context, table, row);
		judge(table, gid_index_plus_1, row);
	}
}

/* Smaller is better; the table's order decides among equals. */
static uint32_t preference(const struct rr_gid_row *row)
{
	uint32_t version = row->type == RR_GID_ROCE_V2 || row->type == RR_GID_IB ? 0 : 1;
	uint32_t local = row->kind == RR_GID_LINK_LOCAL ? 1 : 0;

	return version << 17 | local << 16 | (uint32_t)row->kind << 14 | row->index;
}

uint32_t rr_gid_table_kept(const struct rr_gid_table *table, const struct rr_gid_row **rows, uint32_t max)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < table->count; i++) {
		const struct rr_gid_row *row = &table->rows[i];
		uint32_t at;

		if (!row->kept)
			continue;
		for (at = count; at > 0 && preference(rows[at - 1]) > preference(row); at--)
			if (at < max)
				rows[at] = rows[at - 1];
		if (at < max)
			rows[at] = row;
		count += count < max;
	}
	return count;
}

void rr_gid_table_text(const struct rr_gid_table *table, char *text, size_t size)
{
	size_t used = (size_t)snprintf(text, size, "%s port %u, %u GIDs\n", table->device, table->port, table->count);

	for (uint32_t i = 0; i < table->count && used < size; i++) {
		const struct rr_gid_row *row = &table->rows[i];
		char gid[RR_GID_TEXT_BYTES];

		rr_gid_text(row->gid, gid);
		used += (size_t)snprintf(text + used, size - used, "  %3u  %-39s  %-10s  %-10s  %-15s  %s\n", row->index, gid,
					 rr_gid_type_name(row->type), rr_gid_kind_name(row->kind), row->netdev, row->reason);
	}
}
