/* verbs_describe.c - devices, ports and GID tables as JSON, for people who look for what is wrong. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "status.h"
#include "verbs_device.h"

/* Text that may not fit: then only its length counts. */
struct writer {
	char *text;
	size_t size, used;
	const rr_verbs_options *options;
	struct rr_gid_table *table;
	char device[64]; /* the one whose object is open */
	bool first_port, first_device;
};

static void put(struct writer *writer, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void put(struct writer *writer, const char *format, ...)
{
	size_t left = writer->used < writer->size ? writer->size - writer->used : 0;
	va_list arguments;

	va_start(arguments, format);
	int length = vsnprintf(left ? writer->text + writer->used : NULL, left, format, arguments);
	va_end(arguments);
	writer->used += length > 0 ? (size_t)length : 0;
}

static void put_string(struct writer *writer, const char *text)
{
	put(writer, "\"");
	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			put(writer, "\\%c", *text);
		else if ((unsigned char)*text < 0x20)
			put(writer, "\\u%04x", (unsigned char)*text);
		else
			put(writer, "%c", *text);
	}
	put(writer, "\"");
}

static void put_gids(struct writer *writer, const struct rr_gid_table *table)
{
	put(writer, ", \"gids\": [");
	for (uint32_t i = 0; i < table->count; i++) {
		const struct rr_gid_row *row = &table->rows[i];
		char gid[RR_GID_TEXT_BYTES];

		rr_gid_text(row->gid, gid);
		put(writer, "%s{\"index\": %u, \"gid\": \"%s\", \"type\": \"%s\", \"kind\": \"%s\", \"kept\": %s, \"netdev\": ",
		    i ? ", " : "", row->index, gid, rr_gid_type_name(row->type), rr_gid_kind_name(row->kind),
		    row->kept ? "true" : "false");
		put_string(writer, row->netdev);
		put(writer, ", \"reason\": ");
		put_string(writer, row->reason);
		put(writer, "}");
	}
	put(writer, "]");
}

static void put_port(void *user, const struct rr_port *port)
{
	struct writer *writer = user;
	const struct rr_ibv_port_attr *attributes = &port->port;

	if (writer->first_device || strcmp(writer->device, port->device->name) != 0) {
		put(writer, "%s{\"name\": ", writer->first_device ? "" : "]}, ");
		put_string(writer, port->device->name);
		put(writer, ", \"transport\": \"%s\", \"firmware\": ",
		    port->device->transport_type == RR_IBV_TRANSPORT_IB      ? "InfiniBand or RoCE"
		    : port->device->transport_type == RR_IBV_TRANSPORT_IWARP ? "iWARP"
									       : "other");
		put_string(writer, port->context ? port->attributes.fw_ver : "");
		put(writer, ", \"guid\": \"%016llx\", \"ports\": [",
		    port->context ? (unsigned long long)__builtin_bswap64(port->attributes.node_guid) : 0);
		snprintf(writer->device, sizeof(writer->device), "%s", port->device->name);
		writer->first_device = false;
		writer->first_port = true;
	}
	put(writer, "%s{\"port\": %u, \"problem\": ", writer->first_port ? "" : ", ", port->number);
	writer->first_port = false;
	if (port->problem) {
		put_string(writer, port->problem);
		put(writer, "}");
		return;
	}
	put(writer, "null, \"state\": \"%s\", \"link_layer\": \"%s\", \"lid\": %u, \"mtu_bytes\": %u, \"mtu_bytes_max\": %u, \"rate_mbit\": %u",
	    rr_port_state_name(attributes->state), rr_link_layer_name(attributes->link_layer), attributes->lid,
	    rr_mtu_bytes(attributes->active_mtu), rr_mtu_bytes(attributes->max_mtu),
	    rr_port_rate_mbit(attributes->active_width, attributes->active_speed));
	rr_gid_table_read(port->verbs, port->context, port->device->name, port->number, attributes,
			  writer->options->gid_index_plus_1, writer->table);
	put_gids(writer, writer->table);
	put(writer, "}");
}

rr_status rr_verbs_describe(const rr_verbs_options *options, char *text, size_t size)
{
	static const rr_verbs_options defaults;
	struct writer writer = {.text = text, .size = size, .options = options ? options : &defaults, .first_device = true};
	const struct rr_verbs *verbs = NULL;
	rr_status status = rr_verbs_load(&verbs);

	writer.table = malloc(sizeof(*writer.table));
	if (!writer.table)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for a GID table");
	put(&writer, "{\"library\": ");
	put_string(&writer, status == RR_OK ? verbs->path : "");
	put(&writer, ", \"devices\": [");
	if (status == RR_OK)
		status = rr_ports_each(writer.options, put_port, &writer);
	put(&writer, "%s], \"problem\": ", writer.first_device ? "" : "]}");
	if (status < 0)
		put_string(&writer, rr_error_here()->message);
	else
		put(&writer, "null");
	put(&writer, "}");
	free(writer.table);
	if (writer.used < size)
		return RR_OK;
	if (size)
		text[0] = 0;
	return rr_fail(RR_ERR_ARGUMENT, "the description of RDMA devices needs %zu bytes, there are %zu", writer.used + 1, size);
}
