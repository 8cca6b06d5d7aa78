/* verbs_device.c - ports of this machine; see verbs_device.h. */
#include "verbs_device.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "status.h"

const char *rr_port_state_name(int state)
{
	static const char *const names[] = {"no change", "down", "initializing", "armed", "active", "active, deferred"};

	return state >= 0 && state <= RR_IBV_PORT_ACTIVE_DEFER ? names[state] : "unknown";
}

const char *rr_link_layer_name(int layer)
{
	return layer == RR_IBV_LAYER_ETHERNET ? "Ethernet" : layer == RR_IBV_LAYER_INFINIBAND ? "InfiniBand" : "unspecified";
}

uint32_t rr_port_rate_mbit(uint8_t width, uint8_t speed)
{
	static const struct {
		uint8_t code;
		uint32_t mbit; /* per lane, of data */
	} speeds[] = {{1, 2500}, {2, 5000}, {4, 10000}, {8, 10000}, {16, 14000}, {32, 25000}, {64, 50000}, {128, 100000}};
	uint32_t lanes = width == 1 ? 1 : width == 2 ? 4 : width == 4 ? 8 : width == 8 ? 12 : width == 16 ? 2 : 0;

	for (size_t i = 0; i < sizeof(speeds) / sizeof(speeds[0]); i++)
		if (speeds[i].code == speed)
			return lanes * speeds[i].mbit;
	return 0;
}

uint32_t rr_mtu_bytes(int code)
{
	return code >= RR_IBV_MTU_256 && code <= RR_IBV_MTU_4096 ? 128u << code : 0;
}

int rr_mtu_code(uint32_t bytes)
{
	int code = RR_IBV_MTU_4096;

	while (code > RR_IBV_MTU_256 && rr_mtu_bytes(code) > bytes)
		code--;
	return code;
}

static bool named(const rr_verbs_options *options, const char *device)
{
	const char *at = options ? options->devices : "";
	size_t length = strlen(device);

	if (!at[0])
		return true;
	for (; at; at = strchr(at, ',')) {
		at += *at == ',';
		if (strncmp(at, device, length) == 0 && (at[length] == 0 || at[length] == ','))
			return true;
	}
	return false;
}

static int by_name(const void *a, const void *b)
{
	return strcmp((*(struct rr_ibv_device *const *)a)->name, (*(struct rr_ibv_device *const *)b)->name);
}

static void each_port(struct rr_port *port, void (*each)(void *user, const struct rr_port *port), void *user)
{
	char problem[256];
	int result;

	port->number = 1;
	port->context = port->verbs->open_device(port->device);
	if (!port->context) {
		int why = errno;
		snprintf(problem, sizeof(problem), "cannot be opened: %s%s%.60s%s", strerror(why),
			 why == EACCES || why == EPERM ? " (see the permissions of /dev/infiniband/" : " (see /dev/infiniband/",
			 port->device->dev_name, ")");
		port->problem = problem;
		each(user, port);
		return;
	}
	result = port->verbs->query_device(port->context, &port->attributes);
	if (result) {
		snprintf(problem, sizeof(problem), "cannot be asked for its ports: %s", rr_verbs_error(result));
		port->problem = problem;
		each(user, port);
	}
	for (uint32_t n = 1; !result && n <= port->attributes.phys_port_cnt; n++) {
		memset(&port->port, 0, sizeof(port->port)); /* the exported call fills an older, shorter record */
		port->number = (uint8_t)n;
		int asked = port->verbs->query_port(port->context, port->number, &port->port);
		snprintf(problem, sizeof(problem), "port %u cannot be asked: %s", n, rr_verbs_error(asked));
		port->problem = asked ? problem : NULL;
		each(user, port);
	}
	port->verbs->close_device(port->context);
}

rr_status rr_ports_each(const rr_verbs_options *options, void (*each)(void *user, const struct rr_port *port), void *user)
{
	struct rr_port port = {0};
	int count = 0;
	rr_status status = rr_verbs_load(&port.verbs);

	if (status < 0)
		return status;
	struct rr_ibv_device **list = port.verbs->get_device_list(&count);
	if (!list)
		return rr_fail(RR_ERR_UNSUPPORTED, "libibverbs lists no devices: %s (is the kernel's ib_uverbs there?)",
			       strerror(errno));
	qsort(list, (size_t)count, sizeof(list[0]), by_name);
	for (int i = 0; i < count; i++) {
		if (!named(options, list[i]->name))
			continue;
		port.device = list[i];
		port.context = NULL;
		port.problem = NULL;
		memset(&port.port, 0, sizeof(port.port));
		each_port(&port, each, user);
	}
	port.verbs->free_device_list(list);
	return RR_OK;
}

/* ---- rails ---- */

struct finding {
	const rr_verbs_options *options;
	struct rr_rail *rails;
	uint32_t count;
	uint32_t seen;
	char *reason;
	size_t size;
	struct rr_gid_table *table;
};

static void refuse(struct finding *finding, const struct rr_port *port, const char *why)
{
	size_t used = strlen(finding->reason);

	snprintf(finding->reason + used, finding->size - used, "%s%s port %u: %s", used ? "; " : "", port->device->name,
		 port->number, why);
}

static void take_gids(struct rr_rail *rail, const struct rr_gid_table *table)
{
	const struct rr_gid_row *rows[RR_RAIL_GIDS_MAX];

	rail->gid_count = (uint8_t)rr_gid_table_kept(table, rows, RR_RAIL_GIDS_MAX);
	for (uint32_t i = 0; i < rail->gid_count; i++) {
		memcpy(rail->gids[i].gid, rows[i]->gid, sizeof(rail->gids[i].gid));
		rail->gids[i].index = rows[i]->index;
		rail->gids[i].type = rows[i]->type;
		rail->gids[i].kind = rows[i]->kind;
	}
}

static void consider(void *user, const struct rr_port *port)
{
	struct finding *finding = user;
	struct rr_rail rail = {.port = port->number, .link_layer = port->port.link_layer};
	char why[160];

	finding->seen++;
	if (port->problem) {
		refuse(finding, port, port->problem);
	} else if (port->port.state != RR_IBV_PORT_ACTIVE) {
		snprintf(why, sizeof(why), "is %s", rr_port_state_name(port->port.state));
		refuse(finding, port, why);
	} else if (port->device->transport_type != RR_IBV_TRANSPORT_IB) {
		refuse(finding, port, "is neither InfiniBand nor RoCE (iWARP needs the connection manager, which is not used here)");
	} else if (strlen(port->device->name) >= sizeof(rail.device)) {
		refuse(finding, port, "has a name of 32 characters or more");
	} else if (finding->count == RR_RAILS_MAX) {
		snprintf(why, sizeof(why), "there are more than %u active ports", RR_RAILS_MAX);
		refuse(finding, port, why);
	} else {
		memcpy(rail.device, port->device->name, strlen(port->device->name));
		rail.state = (uint8_t)port->port.state;
		rail.lid = port->port.lid;
		rail.mtu_bytes = rr_mtu_bytes(port->port.active_mtu);
		rail.rate_mbit = rr_port_rate_mbit(port->port.active_width, port->port.active_speed);
		rr_gid_table_read(port->verbs, port->context, rail.device, rail.port, &port->port,
				  finding->options ? finding->options->gid_index_plus_1 : 0, finding->table);
		take_gids(&rail, finding->table);
		if (!rail.gid_count)
			refuse(finding, port, "is active, but has no usable GID");
		else
			finding->rails[finding->count++] = rail;
	}
}

rr_status rr_rails_find(const rr_verbs_options *options, struct rr_rail *rails, uint32_t *count, char *reason,
			size_t size)
{
	struct finding finding = {.options = options, .rails = rails, .reason = reason, .size = size};
	rr_status status;

	*count = 0;
	reason[0] = 0;
	finding.table = malloc(sizeof(*finding.table));
	if (!finding.table)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for a GID table");
	status = rr_ports_each(options, consider, &finding);
	free(finding.table);
	if (status < 0)
		snprintf(reason, size, "%s", rr_error_here()->message);
	else if (!finding.seen && options && options->devices[0])
		snprintf(reason, size, "no RDMA device of this machine is among those of the settings: %s", options->devices);
	else if (!finding.seen)
		snprintf(reason, size, "this machine has no RDMA device");
	*count = finding.count;
	return RR_OK;
}
