/* device.c - devices, their one port, its GID table, and the sysfs that belongs to them. */
#include "sim.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#undef ibv_query_port /* the header's macro; the exported function fills the old, shorter structure */

pthread_mutex_t sim_lock = PTHREAD_MUTEX_INITIALIZER;
struct sim_state sim = { .wake_fd = -1 };

static struct sim_device devices[SIM_DEVICES_MAX];
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* A device that several processes of a host open is one device: its GUID, keys and QP numbers are shared. */
static void read_environment(void)
{
	sim_config_read(&sim.config);
	sim.random = sim.config.seed * 2654435761u + (uint64_t)getpid();
	for (unsigned i = 0; i < sim.config.devices; i++) {
		struct sim_device *device = &devices[i];

		device->index = i;
		device->guid = 0x0200c90300000000ull | (uint64_t)sim.config.host << 8 | i;
		device->base.node_type = IBV_NODE_CA;
		device->base.transport_type = IBV_TRANSPORT_IB;
		snprintf(device->base.name, sizeof(device->base.name), "%s%u", sim.config.prefix, i);
		snprintf(device->base.dev_name, sizeof(device->base.dev_name), "uverbs%u", i);
		snprintf(device->base.dev_path, sizeof(device->base.dev_path), "/sys/class/infiniband_verbs/uverbs%u", i);
		snprintf(device->base.ibdev_path, sizeof(device->base.ibdev_path), "/sys/class/infiniband/%s%u",
			 sim.config.prefix, i);
	}
}

struct sim_device *sim_device_list(void)
{
	pthread_once(&once, read_environment);
	return devices;
}

struct sim_context *sim_context_of(struct ibv_context *context)
{
	return (struct sim_context *)((char *)context - offsetof(struct sim_context, verbs.context));
}

unsigned sim_lid(const struct sim_device *device)
{
	if (sim.config.link_layer != IBV_LINK_LAYER_INFINIBAND)
		return 0;
	return (sim.config.lid ? sim.config.lid : sim.config.host * SIM_DEVICES_MAX % 0xbf00 + 1) + device->index;
}

const struct sim_gid *sim_gid_row(const struct sim_device *device, unsigned index)
{
	if (index >= sim.config.gid_count[device->index] || (int)index == sim.config.corrupt_gid)
		return NULL;
	return &sim.config.gids[device->index][index];
}

bool sim_wire_cut(const struct sim_qp *qp)
{
	const struct sim_context *context = sim_context_of(qp->base.context);

	return context->link_dropped || context->port_state != IBV_PORT_ACTIVE;
}

SIM_EXPORT struct ibv_device **ibv_get_device_list(int *count)
{
	struct sim_device *first = sim_device_list();
	struct ibv_device **list;
	int error = sim_fault("ibv_get_device_list");

	if (error) {
		errno = error;
		return NULL;
	}
	list = calloc(sim.config.devices + 1, sizeof(*list));
	if (!list)
		return NULL;
	for (unsigned i = 0; i < sim.config.devices; i++)
		list[i] = &first[i].base;
	if (count)
		*count = (int)sim.config.devices;
	pthread_mutex_lock(&sim_lock);
	sim.device_lists++;
	pthread_mutex_unlock(&sim_lock);
	return list;
}

SIM_EXPORT void ibv_free_device_list(struct ibv_device **list)
{
	pthread_mutex_lock(&sim_lock);
	sim.device_lists--;
	pthread_mutex_unlock(&sim_lock);
	free(list);
}

SIM_EXPORT const char *ibv_get_device_name(struct ibv_device *device)
{
	return device->name;
}

SIM_EXPORT __be64 ibv_get_device_guid(struct ibv_device *device)
{
	return htobe64(((struct sim_device *)device)->guid);
}

SIM_EXPORT int ibv_fork_init(void)
{
	return sim_fault("ibv_fork_init");
}

static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr, size_t bytes)
{
	struct sim_context *own = sim_context_of(context);
	struct ibv_port_attr full = { 0 };
	int error = sim_fault("ibv_query_port");

	if (error || port != SIM_PORT)
		return error ? error : EINVAL;
	pthread_mutex_lock(&sim_lock);
	full.state = own->port_state;
	full.phys_state = own->port_state == IBV_PORT_DOWN ? 3 : 5; /* disabled, link up */
	pthread_mutex_unlock(&sim_lock);
	full.max_mtu = IBV_MTU_4096;
	full.active_mtu = sim.config.mtu;
	full.gid_tbl_len = (int)sim.config.gid_count[own->device->index];
	full.max_msg_sz = 1u << 30;
	full.pkey_tbl_len = 1;
	full.lid = (uint16_t)sim_lid(own->device);
	full.sm_lid = full.lid ? 1 : 0;
	full.active_speed = (uint8_t)sim.config.speed[own->device->index];
	full.active_width = (uint8_t)sim.config.width[own->device->index];
	full.link_layer = sim.config.link_layer;
	memcpy(attr, &full, bytes < sizeof(full) ? bytes : sizeof(full));
	return 0;
}

SIM_EXPORT int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr)
{
	return query_port(context, port, (struct ibv_port_attr *)attr, offsetof(struct ibv_port_attr, port_cap_flags2));
}

SIM_EXPORT int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	struct sim_context *own = sim_context_of(context);
	int error = sim_fault("ibv_query_device");

	if (error)
		return error;
	memset(attr, 0, sizeof(*attr));
	strcpy(attr->fw_ver, "0.0.sim");
	attr->node_guid = attr->sys_image_guid = htobe64(own->device->guid);
	attr->max_mr_size = UINT64_MAX;
	attr->page_size_cap = 4096;
	attr->vendor_part_id = 1;
	attr->max_qp = 4096;
	attr->max_qp_wr = (int)sim.config.max_qp_wr;
	attr->device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_PORT_ACTIVE_EVENT;
	attr->max_sge = attr->max_sge_rd = (int)sim.config.max_sge;
	attr->max_cq = 4096;
	attr->max_cqe = (int)sim.config.max_cqe;
	attr->max_mr = 1 << 16;
	attr->max_pd = 1024;
	attr->max_qp_rd_atom = attr->max_qp_init_rd_atom = (int)sim.config.max_rd_atomic;
	attr->max_res_rd_atom = attr->max_qp_rd_atom * attr->max_qp;
	attr->max_pkeys = 1;
	attr->phys_port_cnt = 1;
	return 0;
}

SIM_EXPORT int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
	const struct sim_gid *row = sim_gid_row(sim_context_of(context)->device, (unsigned)index);
	int error = sim_fault("ibv_query_gid");

	if (error || port != SIM_PORT || !row) {
		errno = error ? error : row ? EINVAL : EIO;
		return -1;
	}
	*gid = row->gid;
	return 0;
}

/* 0 or errno: ENODATA for an empty row, as the kernel says it. */
SIM_EXPORT int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *entry,
				 uint32_t flags, size_t entry_bytes)
{
	const struct sim_device *device = sim_context_of(context)->device;
	const struct sim_gid *row = sim_gid_row(device, index);
	struct ibv_gid_entry full = { .gid_index = index, .port_num = port };
	int error = sim_fault("ibv_query_gid_ex");

	if (error || port != SIM_PORT || flags || index >= sim.config.gid_count[device->index])
		return error ? error : EINVAL;
	if (!row || row->type == SIM_GID_NONE)
		return row ? ENODATA : EIO;
	full.gid = row->gid;
	full.gid_type = sim.config.link_layer == IBV_LINK_LAYER_INFINIBAND ? IBV_GID_TYPE_IB :
			row->type == SIM_GID_V1 ? IBV_GID_TYPE_ROCE_V1 : IBV_GID_TYPE_ROCE_V2;
	memcpy(entry, &full, entry_bytes < sizeof(full) ? entry_bytes : sizeof(full));
	return 0;
}

SIM_EXPORT int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey)
{
	int error = sim_fault("ibv_query_pkey");

	(void)context;
	if (error || port != SIM_PORT || index) {
		errno = error ? error : EINVAL;
		return -1;
	}
	*pkey = htobe16(0xffff);
	return 0;
}

static void fill_context(struct sim_context *own, struct sim_device *device)
{
	struct ibv_context *context = &own->verbs.context;

	own->device = device;
	own->port_state = (enum ibv_port_state)sim.config.port_state[device->index];
	own->verbs.sz = sizeof(own->verbs);
	own->verbs.query_port = query_port;
	context->device = &device->base;
	context->ops.poll_cq = sim_poll_cq;
	context->ops.req_notify_cq = sim_req_notify_cq;
	context->ops.post_send = sim_post_send;
	context->ops.post_recv = sim_post_recv;
	context->cmd_fd = -1;
	context->async_fd = own->async.read_fd;
	context->num_comp_vectors = 1;
	context->abi_compat = __VERBS_ABI_IS_EXTENDED;
	pthread_mutex_init(&context->mutex, NULL);
}

SIM_EXPORT struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	int error = sim_fault("ibv_open_device");
	struct sim_context *own;

	if (error) {
		errno = error;
		return NULL;
	}
	own = calloc(1, sizeof(*own));
	if (!own)
		return NULL;
	pthread_mutex_lock(&sim_lock);
	error = sim_events_open(&own->async);
	if (error)
		goto free_own;
	fill_context(own, (struct sim_device *)device);
	error = sim_reserve_qpns(own);
	if (error)
		goto close_events;
	if (!sim.contexts) {
		error = sim_wire_start();
		if (error)
			goto release_qpns;
	}
	own->next = sim.contexts;
	sim.contexts = own;
	pthread_mutex_unlock(&sim_lock);
	return &own->verbs.context;

release_qpns:
	sim_close_fd(&own->qpn_fd);
close_events:
	sim_events_close(&own->async);
free_own:
	pthread_mutex_unlock(&sim_lock);
	free(own);
	errno = error;
	return NULL;
}

SIM_EXPORT int ibv_close_device(struct ibv_context *context)
{
	struct sim_context *own = sim_context_of(context), **link = &sim.contexts;
	int error = sim_fault("ibv_close_device");

	if (error)
		return error;
	pthread_mutex_lock(&sim_lock);
	for (struct sim_qp *qp = sim.qps; qp; qp = qp->next) {
		if (qp->base.context == context) {
			sim_violation("ibv_close_device while a QP of the device lives");
			pthread_mutex_unlock(&sim_lock);
			return EBUSY;
		}
	}
	while (*link != own)
		link = &(*link)->next;
	*link = own->next;
	sim_events_close(&own->async);
	sim_close_fd(&own->qpn_fd);
	if (!sim.contexts)
		sim_wire_stop();
	pthread_mutex_unlock(&sim_lock);
	free(own);
	return 0;
}
