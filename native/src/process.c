/* process.c - see process.h. */
#include "process.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "status.h"

#define STATE_FIELD 3  /* of /proc/PID/stat, as proc(5) counts them */
#define START_FIELD 22

/* Fields after the ")" that ends the command's name, which may hold anything. */
static bool read_stat(const char *path, char *state, uint64_t *start_time)
{
	char text[1024];
	FILE *file = fopen(path, "r");

	if (!file)
		return false;
	char *got = fgets(text, sizeof(text), file);
	fclose(file);
	char *field = got ? strrchr(text, ')') : NULL;
	if (!field || field[1] != ' ')
		return false;
	field++;
	*state = field[1];
	for (int at = STATE_FIELD; field && at < START_FIELD; at++)
		field = strchr(field + 1, ' ');
	*start_time = field ? strtoull(field + 1, NULL, 10) : 0;
	return true;
}

/* Control groups of version 2; those of version 1 leave the process in state D, which others are in, too. */
static bool is_frozen(int32_t pid)
{
	char path[400], line[320];
	bool frozen = false;

	snprintf(path, sizeof(path), "/proc/%d/cgroup", pid);
	FILE *file = fopen(path, "r");
	if (!file)
		return false;
	path[0] = 0;
	while (fgets(line, sizeof(line), file))
		if (strncmp(line, "0::", 3) == 0)
			snprintf(path, sizeof(path), "/sys/fs/cgroup%.*s/cgroup.events", (int)strcspn(line + 3, "\n"), line + 3);
	fclose(file);
	file = path[0] ? fopen(path, "r") : NULL;
	while (file && fgets(line, sizeof(line), file))
		frozen = frozen || strncmp(line, "frozen 1", 8) == 0;
	if (file)
		fclose(file);
	return frozen;
}

int32_t rr_process_life(int32_t pid, uint64_t start_time)
{
	char path[40], state = 0;
	uint64_t started = 0;

	if (pid <= 0)
		return RR_LIFE_UNKNOWN;
	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	if (!read_stat(path, &state, &started))
		return errno == ENOENT ? RR_LIFE_ENDED : RR_LIFE_UNKNOWN;
	if ((start_time && started != start_time) || state == 'Z' || state == 'X')
		return RR_LIFE_ENDED;
	if (state == 'T' || state == 't')
		return RR_LIFE_STOPPED;
	return is_frozen(pid) ? RR_LIFE_FROZEN : RR_LIFE_RUNS;
}

uint64_t rr_process_start_time(void)
{
	uint64_t started = 0;
	char state;

	return read_stat("/proc/self/stat", &state, &started) ? started : 0;
}

uint64_t rr_process_pid_namespace(void)
{
	struct stat found;

	return stat("/proc/self/ns/pid", &found) == 0 ? found.st_ino : 0;
}

rr_status rr_process_out_of_files(const char *purpose)
{
	struct rlimit limit = {0};

	getrlimit(RLIMIT_NOFILE, &limit);
	return rr_fail(RR_ERR_SYSTEM, "too many open files: this process may have %llu (RLIMIT_NOFILE), and needs one more for %s",
		       (unsigned long long)limit.rlim_cur, purpose);
}
