/* process.c - settings, cuInit, and what every call checks first: life of the process, planned failures, faults. */
#define _GNU_SOURCE
#include "cs.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLANS_MAX 16

/* Calls `first`..`last` of a function fail. */
struct plan {
	char name[64];
	uint64_t first, last;
	CUresult result;
};

struct cs_settings cs_settings;
pthread_mutex_t cs_lock = PTHREAD_MUTEX_INITIALIZER;

static pthread_once_t configured = PTHREAD_ONCE_INIT;
static _Atomic bool initialised, forked;
static _Atomic int sticky;
static struct plan plans[PLANS_MAX];
static int plan_count;
static struct cs_call *calls; /* under calls_lock */
static pthread_mutex_t calls_lock = PTHREAD_MUTEX_INITIALIZER;

void cs_say(const char *format, ...)
{
	char line[512];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(line, sizeof(line), format, arguments);
	va_end(arguments);
	fprintf(stderr, "cuda_sim: %s\n", line);
}

/* A setting that cannot be read ends the process: a test would otherwise test something else. */
static _Noreturn void refuse(const char *key, const char *value, const char *wanted)
{
	cs_say("RR_CUDA_SIM_%s='%s': %s", key, value, wanted);
	exit(70);
}

const char *cs_setting(const char *key)
{
	char name[64];
	const char *value;

	snprintf(name, sizeof(name), "RR_CUDA_SIM_%s", key);
	value = getenv(name);
	return value && *value ? value : NULL;
}

uint64_t cs_setting_number(const char *key, uint64_t otherwise)
{
	const char *value = cs_setting(key);
	char *end;
	uint64_t number;

	if (!value)
		return otherwise;
	errno = 0;
	number = strtoull(value, &end, 0);
	if (errno || end == value || *end)
		refuse(key, value, "a number is expected");
	return number;
}

/* NAME:N:RESULT, or NAME:N+:RESULT for call N and all later ones; several are joined by commas. */
static void read_plans(void)
{
	const char *value = cs_setting("FAIL");
	char copy[1024], *rest = copy, *item;

	if (!value)
		return;
	if (strlen(value) >= sizeof(copy))
		refuse("FAIL", value, "too long");
	strcpy(copy, value);
	while ((item = strsep(&rest, ","))) {
		struct plan *plan = &plans[plan_count];
		char *number = strchr(item, ':'), *result, *end;

		if (plan_count == PLANS_MAX)
			refuse("FAIL", value, "at most 16 are possible");
		result = number ? strchr(number + 1, ':') : NULL;
		if (!result || number - item >= (long)sizeof(plan->name))
			refuse("FAIL", item, "NAME:N:RESULT or NAME:N+:RESULT is expected");
		memcpy(plan->name, item, number - item);
		plan->first = strtoull(number + 1, &end, 10);
		plan->last = *end == '+' ? UINT64_MAX : plan->first;
		plan->result = cs_result_of(result + 1);
		if (!plan->first || end + (*end == '+') != result || plan->result == CUDA_SUCCESS)
			refuse("FAIL", item, "N counts from 1, RESULT is the name or number of an error");
		plan_count++;
	}
}

/* CUDA_VISIBLE_DEVICES: numbers, the first that does not exist hides the rest. */
static void read_devices(void)
{
	uint64_t count = cs_setting_number("DEVICES", 1);
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	char *end;

	if (count > CS_DEVICES_MAX)
		refuse("DEVICES", cs_setting("DEVICES"), "at most 16 are possible");
	if (!visible) {
		for (uint64_t i = 0; i < count; i++)
			cs_settings.physical[i] = i;
		cs_settings.device_count = count;
		return;
	}
	while (*visible && cs_settings.device_count < CS_DEVICES_MAX) {
		unsigned long number = strtoul(visible, &end, 10);

		if (end == visible || number >= count)
			break;
		cs_settings.physical[cs_settings.device_count++] = number;
		visible = *end == ',' ? end + 1 : end;
	}
}

static void configure(void)
{
	read_devices();
	read_plans();
	cs_settings.driver_version = cs_setting_number("DRIVER_VERSION", 13000);
	cs_settings.seed = cs_setting_number("SEED", 1);
	cs_settings.delay_us = cs_setting_number("DELAY_US", 0);
	cs_settings.one_queue = cs_setting_number("CONNECTIONS", 0) == 1;
	cs_settings.memory_bytes = cs_setting_number("MEMORY_MIB", 4096) << 20;
	cs_settings.peer_access = cs_setting_number("PEER", 1);
	cs_settings.mig = cs_setting_number("MIG", 0);
	cs_settings.node = cs_setting("NODE") ? cs_setting("NODE") : "";
}

static void child_of_fork(void)
{
	forked = true;
}

void cs_fault(CUresult why, const char *format, ...)
{
	int none = CUDA_SUCCESS;
	char text[256];
	va_list arguments;

	if (!atomic_compare_exchange_strong(&sticky, &none, why))
		return;
	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	cs_say("sticky error %d: %s", why, text);
}

CUresult cs_fault_now(void)
{
	return (CUresult)atomic_load(&sticky);
}

/* The `name` of "cs_<name>_v<version>" equals the plan's. */
static bool is_named(const char *function, const char *name)
{
	size_t length = strlen(name);

	return !strncmp(function + 3, name, length) && !strncmp(function + 3 + length, "_v", 2);
}

static CUresult planned(const char *function, uint64_t number)
{
	for (int i = 0; i < plan_count; i++) {
		const struct plan *plan = &plans[i];

		if (!is_named(function, plan->name) || number < plan->first || number > plan->last)
			continue;
		if (cs_is_sticky(plan->result))
			cs_fault(plan->result, "planned for call %lu of %s", (unsigned long)number, plan->name);
		return plan->result;
	}
	return CUDA_SUCCESS;
}

CUresult cs_enter(struct cs_call *call, const char *function, enum cs_need need)
{
	uint64_t number = atomic_fetch_add(&call->count, 1) + 1;
	CUresult result;

	if (number == 1) {
		pthread_mutex_lock(&calls_lock);
		call->function = function;
		call->next = calls;
		calls = call;
		pthread_mutex_unlock(&calls_lock);
	}
	pthread_once(&configured, configure);
	if (need == CS_NEED_NOTHING && !plan_count)
		return CUDA_SUCCESS;
	if (need != CS_NEED_NOTHING && (forked || !initialised))
		return CUDA_ERROR_NOT_INITIALIZED;
	if (cs_in_host_function())
		return CUDA_ERROR_NOT_PERMITTED;
	result = planned(function, number);
	if (result != CUDA_SUCCESS || need != CS_NEED_CONTEXT)
		return result;
	if (cs_fault_now() != CUDA_SUCCESS)
		return cs_fault_now();
	if (!cs_current())
		return CUDA_ERROR_INVALID_CONTEXT;
	return cs_context_lives(cs_current()) ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CS_EXPORT uint64_t cs_calls(const char *name)
{
	uint64_t count = 0;

	pthread_mutex_lock(&calls_lock);
	for (const struct cs_call *call = calls; call; call = call->next)
		if (!strcmp(name, "*") || is_named(call->function, name))
			count += call->count;
	pthread_mutex_unlock(&calls_lock);
	return count;
}

CS_API(cuInit, 2000)(unsigned int flags)
{
	static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
	CUresult result = CUDA_SUCCESS;

	CS_ENTER(CS_NEED_NOTHING);
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (forked)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!cs_settings.device_count)
		return CUDA_ERROR_NO_DEVICE;
	pthread_mutex_lock(&once);
	if (!initialised) {
		result = cs_memory_begin();
		if (result == CUDA_SUCCESS) {
			pthread_atfork(NULL, NULL, child_of_fork);
			initialised = true;
		}
	}
	pthread_mutex_unlock(&once);
	return result;
}

CS_API(cuDriverGetVersion, 2020)(int *version)
{
	CS_ENTER(CS_NEED_NOTHING);
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = cs_settings.driver_version;
	return CUDA_SUCCESS;
}
