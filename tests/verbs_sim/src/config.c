/* config.c - VERBS_SIM and its companions in the environment, read once. A word it does not know ends the process. */
#include "sim.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPEC_BYTES 2048

static _Noreturn void refuse(const char *what, const char *value)
{
	fprintf(stderr, "verbs_sim: VERBS_SIM: %s: '%s' (see tests/verbs_sim/README.md)\n", what, value);
	exit(70);
}

static uint64_t number(const char *key, const char *value)
{
	char *end;
	uint64_t result;

	errno = 0;
	result = strtoull(value, &end, 0);
	if (errno || end == value || *end) {
		fprintf(stderr, "verbs_sim: %s takes a number\n", key);
		refuse("not a number", value);
	}
	return result;
}

static uint64_t from_one(const char *key, const char *value)
{
	uint64_t result = number(key, value);

	if (!result)
		refuse("counted from 1", key);
	return result;
}

int sim_errno_of(const char *name)
{
	static const struct { const char *name; int value; } known[] = {
		{ "EPERM", EPERM }, { "ENOENT", ENOENT }, { "EINTR", EINTR }, { "EIO", EIO }, { "ENXIO", ENXIO },
		{ "EAGAIN", EAGAIN }, { "ENOMEM", ENOMEM }, { "EACCES", EACCES }, { "EFAULT", EFAULT },
		{ "EBUSY", EBUSY }, { "ENODEV", ENODEV }, { "EINVAL", EINVAL }, { "EMFILE", EMFILE },
		{ "ENOSPC", ENOSPC }, { "ENOSYS", ENOSYS }, { "EPROTONOSUPPORT", EPROTONOSUPPORT },
		{ "EOPNOTSUPP", EOPNOTSUPP }, { "ENETUNREACH", ENETUNREACH }, { "EHOSTUNREACH", EHOSTUNREACH },
		{ "ETIMEDOUT", ETIMEDOUT },
	};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (!strcmp(name, known[i].name))
			return known[i].value;
	return 0;
}

static enum ibv_wc_status wc_status_of(const char *name)
{
	static const char *const names[] = {
		[IBV_WC_SUCCESS] = "SUCCESS", [IBV_WC_LOC_LEN_ERR] = "LOC_LEN_ERR",
		[IBV_WC_LOC_QP_OP_ERR] = "LOC_QP_OP_ERR", [IBV_WC_LOC_EEC_OP_ERR] = "LOC_EEC_OP_ERR",
		[IBV_WC_LOC_PROT_ERR] = "LOC_PROT_ERR", [IBV_WC_WR_FLUSH_ERR] = "WR_FLUSH_ERR",
		[IBV_WC_MW_BIND_ERR] = "MW_BIND_ERR", [IBV_WC_BAD_RESP_ERR] = "BAD_RESP_ERR",
		[IBV_WC_LOC_ACCESS_ERR] = "LOC_ACCESS_ERR", [IBV_WC_REM_INV_REQ_ERR] = "REM_INV_REQ_ERR",
		[IBV_WC_REM_ACCESS_ERR] = "REM_ACCESS_ERR", [IBV_WC_REM_OP_ERR] = "REM_OP_ERR",
		[IBV_WC_RETRY_EXC_ERR] = "RETRY_EXC_ERR", [IBV_WC_RNR_RETRY_EXC_ERR] = "RNR_RETRY_EXC_ERR",
		[IBV_WC_LOC_RDD_VIOL_ERR] = "LOC_RDD_VIOL_ERR", [IBV_WC_REM_INV_RD_REQ_ERR] = "REM_INV_RD_REQ_ERR",
		[IBV_WC_REM_ABORT_ERR] = "REM_ABORT_ERR", [IBV_WC_INV_EECN_ERR] = "INV_EECN_ERR",
		[IBV_WC_INV_EEC_STATE_ERR] = "INV_EEC_STATE_ERR", [IBV_WC_FATAL_ERR] = "FATAL_ERR",
		[IBV_WC_RESP_TIMEOUT_ERR] = "RESP_TIMEOUT_ERR", [IBV_WC_GENERAL_ERR] = "GENERAL_ERR",
	};

	for (size_t i = 1; i < sizeof(names) / sizeof(names[0]); i++)
		if (!strcmp(name, names[i]))
			return (enum ibv_wc_status)i;
	refuse("not the name of an unsuccessful completion status", name);
}

/* VERB:N:ERRNO, or VERB:N+:ERRNO for call N and all later ones */
static void read_fault(struct sim_config *config, char *value)
{
	struct sim_fault *fault = &config->faults[config->fault_count++];
	char *verb = strtok_r(value, ":", &value), *nth = strtok_r(NULL, ":", &value);
	char *error = strtok_r(NULL, ":", &value);

	if (config->fault_count == SIM_FAULTS_MAX)
		refuse("too many faults, at", verb ? verb : "");
	if (!verb || !nth || !error || strlen(verb) >= sizeof(fault->verb) || strncmp(verb, "ibv_", 4))
		refuse("fail takes ibv_verb:call:ERRNO", verb ? verb : "");
	strcpy(fault->verb, verb);
	fault->onwards = nth[strlen(nth) - 1] == '+';
	if (fault->onwards)
		nth[strlen(nth) - 1] = 0;
	fault->first = from_one("fail", nth);
	fault->error = sim_errno_of(error);
	if (!fault->error)
		refuse("not a known errno", error);
}

/* VERB+VERB...: each call of these fails with EOPNOTSUPP */
static void read_unsupported(struct sim_config *config, char *value)
{
	char *verb;

	while ((verb = strtok_r(value, "+", &value))) {
		char text[64];

		snprintf(text, sizeof(text), "%s:1+:EOPNOTSUPP", verb);
		read_fault(config, text);
	}
}

/* N:STATUS or N:STATUS:VENDOR */
static void read_wc_fault(struct sim_wc_fault *fault, char *value)
{
	char *nth = strtok_r(value, ":", &value), *status = strtok_r(NULL, ":", &value);
	char *vendor = strtok_r(NULL, ":", &value);

	if (!nth || !status)
		refuse("a completion fault is number:STATUS or number:STATUS:vendor_err", nth ? nth : "");
	fault->nth = from_one("wc_error", nth);
	fault->status = wc_status_of(status);
	fault->vendor_err = vendor ? (uint32_t)number("wc_error", vendor) : 0x81;
}

static void read_address(struct sim_gid *row, const char *text)
{
	struct in_addr v4;

	memset(&row->gid, 0, sizeof(row->gid));
	if (inet_pton(AF_INET, text, &v4) == 1) {
		row->gid.raw[10] = row->gid.raw[11] = 0xff;
		memcpy(row->gid.raw + 12, &v4, 4);
	} else if (inet_pton(AF_INET6, text, row->gid.raw) != 1) {
		refuse("not an IPv4 or IPv6 address", text);
	}
}

/* %r is the rank + 1, %h the host's number: one string serves all ranks of a job. */
static void expand(const struct sim_config *config, const char *text, char *out, size_t bytes)
{
	size_t used = 0;

	for (; *text && used + 12 < bytes; text++) {
		if (text[0] == '%' && (text[1] == 'r' || text[1] == 'h')) {
			unsigned value = text[1] == 'r' ? config->rank + 1 : config->host;
			used += (size_t)snprintf(out + used, bytes - used, "%u", value);
			text++;
		} else {
			out[used++] = *text;
		}
	}
	out[used] = 0;
}

/* ROW;ROW...: v1:ADDRESS, v2:ADDRESS or - for an empty row */
static void read_gids(struct sim_config *config, unsigned device, char *value)
{
	char *row;

	if (device >= SIM_DEVICES_MAX)
		refuse("there is no such device", value);
	config->gid_count[device] = 0;
	while ((row = strtok_r(value, ";", &value))) {
		struct sim_gid *gid = &config->gids[device][config->gid_count[device]++];
		char text[128];

		if (config->gid_count[device] == SIM_GIDS_MAX)
			refuse("too many rows of GIDs", row);
		expand(config, row, text, sizeof(text));
		if (!strcmp(text, "-"))
			gid->type = SIM_GID_NONE;
		else if (!strncmp(text, "v1:", 3) || !strncmp(text, "v2:", 3))
			gid->type = text[1] == '1' ? SIM_GID_V1 : SIM_GID_V2;
		else
			refuse("a row of GIDs is v1:ADDRESS, v2:ADDRESS or -", text);
		if (gid->type != SIM_GID_NONE)
			read_address(gid, text + 3);
	}
}

static bool read_trigger(struct sim_config *config, const char *key, const char *value)
{
	for (int action = 0; action < SIM_ACTION_COUNT; action++) {
		size_t length = strlen(sim_action_names[action]);

		if (strncmp(key, sim_action_names[action], length))
			continue;
		if (!strcmp(key + length, "_after_ms"))
			config->triggers[action].after_ms = number(key, value);
		else if (!strcmp(key + length, "_after") || !strcmp(key + length, "_after_sends"))
			config->triggers[action].after_sends = from_one(key, value);
		else
			continue;
		return true;
	}
	return false;
}

static enum ibv_mtu mtu_of(const char *value)
{
	for (int mtu = IBV_MTU_256; mtu <= IBV_MTU_4096; mtu++)
		if (number("mtu", value) == 128ull << mtu)
			return (enum ibv_mtu)mtu;
	refuse("mtu is 256, 512, 1024, 2048 or 4096", value);
}

/* N;N...: of the first, second device; the last one given holds for the others too. */
static void read_each(unsigned *each, const char *key, char *value)
{
	unsigned device = 0, last = 0;
	char *part;

	while (device < SIM_DEVICES_MAX && (part = strtok_r(value, ";", &value)))
		each[device++] = last = (unsigned)number(key, part);
	while (device < SIM_DEVICES_MAX)
		each[device++] = last;
}

static bool read_number(struct sim_config *config, const char *key, const char *value)
{
	struct { const char *key; unsigned *where; } numbers[] = {
		{ "devices", &config->devices }, { "delay_us", &config->delay_us },
		{ "reorder_us", &config->reorder_us }, { "max_inline", &config->max_inline },
		{ "max_sge", &config->max_sge }, { "max_qp_wr", &config->max_qp_wr },
		{ "max_cqe", &config->max_cqe }, { "max_rd_atomic", &config->max_rd_atomic },
		{ "dmabuf", &config->dmabuf }, { "peermem", &config->peermem },
		{ "memlock_kb", &config->memlock_kb }, { "timeout_percent", &config->timeout_percent },
		{ "host", &config->host }, { "lid", &config->lid },
	};

	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		if (!strcmp(key, numbers[i].key)) {
			*numbers[i].where = (unsigned)number(key, value);
			return true;
		}
	}
	return false;
}

static void read_word(struct sim_config *config, char *word)
{
	char *value = strchr(word, '=');

	if (!value)
		refuse("a word is key=value", word);
	*value++ = 0;
	if (read_number(config, word, value) || read_trigger(config, word, value))
		return;
	if (!strcmp(word, "seed"))
		config->seed = number(word, value);
	else if (!strcmp(word, "reorder"))
		config->reorder_us = number(word, value) ? 300 : 0;
	else if (!strcmp(word, "corrupt_gid"))
		config->corrupt_gid = (int)number(word, value);
	else if (!strcmp(word, "fault_device"))
		config->fault_device = (int)number(word, value);
	else if (!strcmp(word, "speed"))
		read_each(config->speed, word, value);
	else if (!strcmp(word, "width"))
		read_each(config->width, word, value);
	else if (!strcmp(word, "port_state"))
		read_each(config->port_state, word, value);
	else if (!strcmp(word, "mtu"))
		config->mtu = mtu_of(value);
	else if (!strcmp(word, "prefix") && strlen(value) < sizeof(config->prefix))
		strcpy(config->prefix, value);
	else if (!strcmp(word, "link_layer") && !strcmp(value, "ethernet"))
		config->link_layer = IBV_LINK_LAYER_ETHERNET;
	else if (!strcmp(word, "link_layer") && !strcmp(value, "infiniband"))
		config->link_layer = IBV_LINK_LAYER_INFINIBAND;
	else if (!strcmp(word, "gids"))
		read_gids(config, 0, value);
	else if (!strncmp(word, "gids.", 5))
		read_gids(config, (unsigned)number(word, word + 5), value);
	else if (!strcmp(word, "fail"))
		read_fault(config, value);
	else if (!strcmp(word, "unsupported"))
		read_unsupported(config, value);
	else if (!strcmp(word, "wc_error"))
		read_wc_fault(&config->send_fault, value);
	else if (!strcmp(word, "recv_wc_error"))
		read_wc_fault(&config->recv_fault, value);
	else
		refuse("an unknown word or value", word);
}

static void read_spec(struct sim_config *config, const char *text)
{
	char copy[SPEC_BYTES], *rest = copy, *word;

	if (!text)
		return;
	if (strlen(text) >= sizeof(copy))
		refuse("longer than 2047 bytes", text);
	strcpy(copy, text);
	while ((word = strtok_r(rest, ", \n", &rest)))
		read_word(config, word);
}

/* As a machine with an address of each family shows them: link-local and IPv4, RoCE v1 and v2 of each. */
static void default_gids(struct sim_config *config, unsigned device)
{
	bool infiniband = config->link_layer == IBV_LINK_LAYER_INFINIBAND;

	if (config->gid_count[device])
		return;
	config->gid_count[device] = infiniband ? 1 : 4;
	for (unsigned row = 0; row < config->gid_count[device]; row++) {
		char text[64];

		if (row < 2)
			snprintf(text, sizeof(text), "fe80::%x:%x", config->host & 0xffff, device + 1);
		else
			snprintf(text, sizeof(text), "10.%u.%u.%u", device, config->host >> 8 & 255, config->host & 255);
		config->gids[device][row].type = row % 2 ? SIM_GID_V2 : SIM_GID_V1;
		read_address(&config->gids[device][row], text);
	}
}

/* Ranks of one host share its NIC, and so its addresses: the host is what RDMARING_HOST_ID says it is. */
static unsigned default_host(void)
{
	const char *id = getenv("RDMARING_HOST_ID");
	uint32_t hash = 2166136261u;

	if (!id || !*id)
		return 1;
	for (; *id; id++)
		hash = (hash ^ (uint8_t)*id) * 16777619u;
	return (hash ^ hash >> 16) & 0xffff;
}

void sim_config_read(struct sim_config *config)
{
	const char *rank = getenv("RDMARING_RANK");
	char name[40];

	*config = (struct sim_config){
		.seed = 1, .devices = 1, .prefix = "sim", .link_layer = IBV_LINK_LAYER_ETHERNET, .mtu = IBV_MTU_4096,
		.max_inline = 220, .max_sge = SIM_SGE_MAX, .max_qp_wr = 8192, .max_cqe = 1u << 20, .max_rd_atomic = 16,
		.timeout_percent = 10, .corrupt_gid = -1, .fault_device = -1, .host = default_host(),
	};
	for (int device = 0; device < SIM_DEVICES_MAX; device++) {
		config->speed[device] = 32;
		config->width[device] = 2;
		config->port_state[device] = IBV_PORT_ACTIVE;
	}
	for (int action = 0; action < SIM_ACTION_COUNT; action++)
		config->triggers[action].after_ms = config->triggers[action].after_sends = SIM_NEVER;
	if (!rank)
		rank = getenv("RANK");
	config->rank = rank ? (unsigned)number("the rank", rank) : 0;
	read_spec(config, getenv("VERBS_SIM"));
	snprintf(name, sizeof(name), "VERBS_SIM_RANK_%u", config->rank);
	read_spec(config, getenv(name));
	if (config->devices > SIM_DEVICES_MAX || config->max_sge > SIM_SGE_MAX || !config->max_sge)
		refuse("devices are at most 8, max_sge is 1 to 16", "");
	for (unsigned device = 0; device < SIM_DEVICES_MAX; device++)
		default_gids(config, device);
}
