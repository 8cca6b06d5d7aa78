/*
 * verbs_gid.h - which of a port's GIDs is used, by rule, and why not the others.
 *
 * A RoCE port has a GID for each address of its network device and each RoCE version; the index differs from host
 * to host, and index 0 is link-local as a rule. The rule: RoCE v2 before v1, global before link-local,
 * IPv4 before IPv6 (the peer's family decides in the end: verbs_device.h). On InfiniBand: index 0.
 */
#ifndef RR_VERBS_GID_H
#define RR_VERBS_GID_H

#include <stdbool.h>

#include "verbs_api.h"

#define RR_GID_ROWS_MAX 256u

enum rr_gid_type { RR_GID_IB = 0, RR_GID_ROCE_V1 = 1, RR_GID_ROCE_V2 = 2, RR_GID_TYPE_UNKNOWN = 3 };
enum rr_gid_kind { RR_GID_IPV4 = 0, RR_GID_IPV6 = 1, RR_GID_LINK_LOCAL = 2 };

struct rr_gid_row {
	uint8_t gid[16];
	uint16_t index;
	uint8_t type; /* enum rr_gid_type */
	uint8_t kind; /* enum rr_gid_kind */
	bool kept;
	char netdev[16];
	char reason[96]; /* why it is kept, or is not */
};

struct rr_gid_table {
	char device[64];
	uint8_t port;
	uint8_t link_layer;
	uint32_t count;
	struct rr_gid_row rows[RR_GID_ROWS_MAX];
};

/*
 * Reads the table of a port. Empty rows are left out; a row that cannot be read is not kept, with the reason.
 * Types and network devices come from RDMARING_SYSFS (default /sys), else from the library.
 * gid_index_plus_1: 0, or the only one to keep.
 */
void rr_gid_table_read(const struct rr_verbs *verbs, struct rr_ibv_context *context, const char *device, uint8_t port,
		       const struct rr_ibv_port_attr *attributes, uint32_t gid_index_plus_1,
		       struct rr_gid_table *table);
/* Kept rows, best first: pointers into the table. Returns how many. */
uint32_t rr_gid_table_kept(const struct rr_gid_table *table, const struct rr_gid_row **rows, uint32_t max);
/* The table for people, a line a row. */
void rr_gid_table_text(const struct rr_gid_table *table, char *text, size_t size);

const char *rr_gid_type_name(uint8_t type);
const char *rr_gid_kind_name(uint8_t kind);
enum rr_gid_kind rr_gid_kind_of(const uint8_t gid[16]);
/* As addresses are written: 192.0.2.1, or IPv6. */
#define RR_GID_TEXT_BYTES 48
void rr_gid_text(const uint8_t gid[16], char text[RR_GID_TEXT_BYTES]);
/* Leading bits that are equal. */
uint32_t rr_gid_common_bits(const uint8_t a[16], const uint8_t b[16]);

#endif
