/* sysfs.c - the files that the kernel would show for these devices, below a folder that stands for /sys. */
#include "sim.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define PATH_BYTES 1024

static int make_folders(char *path)
{
	for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = 0;
		if (mkdir(path, 0755) < 0 && errno != EEXIST)
			return errno;
		*slash = '/';
	}
	return 0;
}

/* 0 or errno */
__attribute__((format(printf, 4, 5))) static int put(const char *root, const char *device, const char *name,
						     const char *format, ...)
{
	char path[PATH_BYTES];
	va_list arguments;
	int error;
	FILE *file;

	snprintf(path, sizeof(path), "%s/class/infiniband/%s/%s", root, device, name);
	error = make_folders(path);
	if (error)
		return error;
	file = fopen(path, "we");
	if (!file)
		return errno;
	va_start(arguments, format);
	vfprintf(file, format, arguments);
	va_end(arguments);
	return fclose(file) ? errno : 0;
}

static int put_gid(const char *root, const struct sim_device *device, unsigned row)
{
	const struct sim_gid *gid = &sim.config.gids[device->index][row];
	const uint8_t *raw = gid->gid.raw;
	const char *type = gid->type == SIM_GID_V2 ? "RoCE v2" : "IB/RoCE v1";
	char name[64], text[64], *at = text;
	int error;

	for (int i = 0; i < 16; i += 2)
		at += sprintf(at, "%s%02x%02x", i ? ":" : "", raw[i], raw[i + 1]);
	snprintf(name, sizeof(name), "ports/1/gids/%u", row);
	error = put(root, device->base.name, name, "%s\n", text);
	if (error || gid->type == SIM_GID_NONE || (int)row == sim.config.corrupt_gid)
		return error; /* the type of such a row can't be read */
	snprintf(name, sizeof(name), "ports/1/gid_attrs/types/%u", row);
	error = put(root, device->base.name, name, "%s\n", type);
	if (error || sim.config.link_layer == IBV_LINK_LAYER_INFINIBAND)
		return error;
	snprintf(name, sizeof(name), "ports/1/gid_attrs/ndevs/%u", row);
	return put(root, device->base.name, name, "eth%u\n", device->index);
}

static double lane_gbps(const struct sim_device *device)
{
	/* The port attribute's code: SDR, DDR, QDR, FDR10, FDR, EDR, HDR, NDR. */
	switch (sim.config.speed[device->index]) {
	case 1: return 2.5;
	case 2: return 5;
	case 4:
	case 8: return 10;
	case 16: return 14;
	case 32: return 25;
	case 64: return 50;
	case 128: return 100;
	default: return 0;
	}
}

static unsigned lanes(const struct sim_device *device)
{
	unsigned code = sim.config.width[device->index];

	return code == 1 ? 1 : code == 2 ? 4 : code == 4 ? 8 : code == 8 ? 12 : 2;
}

static int put_port(const char *root, const struct sim_device *device)
{
	static const char *const states[] = { "NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER" };
	static const char *const counters[] = { "port_rcv_errors", "port_xmit_discards", "symbol_error", "link_downed",
						"port_xmit_data", "port_rcv_data", "port_xmit_wait" };
	bool infiniband = sim.config.link_layer == IBV_LINK_LAYER_INFINIBAND;
	unsigned state = sim.config.port_state[device->index] % 6;
	const char *name = device->base.name;
	int error = put(root, name, "ports/1/link_layer", "%s\n", infiniband ? "InfiniBand" : "Ethernet");

	if (!error)
		error = put(root, name, "ports/1/state", "%u: %s\n", state, states[state]);
	if (!error)
		error = put(root, name, "ports/1/phys_state", state == IBV_PORT_DOWN ? "3: Disabled\n" : "5: LinkUp\n");
	if (!error)
		error = put(root, name, "ports/1/rate", "%g Gb/sec (%uX)\n", lane_gbps(device) * lanes(device),
			    lanes(device));
	if (!error)
		error = put(root, name, "ports/1/lid", "0x%x\n", sim_lid(device));
	if (!error)
		error = put(root, name, "ports/1/pkeys/0", "0xffff\n");
	for (size_t i = 0; !error && i < sizeof(counters) / sizeof(counters[0]); i++) {
		char path[64];

		snprintf(path, sizeof(path), "ports/1/counters/%s", counters[i]);
		error = put(root, name, path, "0\n");
	}
	return error;
}

/* Below root/class/infiniband, for the configuration of this process. 0 or errno. */
SIM_EXPORT int verbs_sim_write_sysfs(const char *root)
{
	const struct sim_device *first = sim_device_list();
	int error = 0;

	for (unsigned i = 0; !error && i < sim.config.devices; i++) {
		const struct sim_device *device = &first[i];
		unsigned guid[4];

		for (int part = 0; part < 4; part++)
			guid[part] = (unsigned)(device->guid >> (48 - 16 * part) & 0xffff);
		error = put(root, device->base.name, "node_guid", "%04x:%04x:%04x:%04x\n", guid[0], guid[1], guid[2],
			    guid[3]);
		if (!error)
			error = put(root, device->base.name, "node_type", "1: CA\n");
		if (!error)
			error = put_port(root, device);
		for (unsigned row = 0; !error && row < sim.config.gid_count[i]; row++)
			error = put_gid(root, device, row);
	}
	return error;
}
