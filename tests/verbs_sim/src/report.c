/* report.c - what is left at the end of the process, and what happened, as one line of JSON. */
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pid_t loaded_by;

static uint64_t count_contexts(void)
{
	uint64_t count = 0;

	for (const struct sim_context *context = sim.contexts; context; context = context->next)
		count++;
	return count;
}

static uint64_t count_qps(void)
{
	uint64_t count = 0;

	for (const struct sim_qp *qp = sim.qps; qp; qp = qp->next)
		count++;
	return count;
}

static uint64_t count_mrs(void)
{
	uint64_t count = 0;

	for (const struct sim_mr *mr = sim.mrs; mr; mr = mr->next)
		count++;
	return count;
}

static void write_report(FILE *out)
{
	const struct sim_counts *counts = &sim.counts;
	const char *const *violations;
	size_t violation_count = sim_violation_list(&violations);

	fprintf(out, "{\"pid\": %d, \"rank\": %u, \"host\": %u, \"seed\": %" PRIu64, (int)getpid(), sim.config.rank,
		sim.config.host, sim.config.seed);
	fprintf(out,
		", \"live\": {\"device_lists\": %" PRIu64 ", \"contexts\": %" PRIu64 ", \"pds\": %" PRIu64
		", \"mrs\": %" PRIu64 ", \"channels\": %" PRIu64 ", \"cqs\": %" PRIu64 ", \"qps\": %" PRIu64 "}",
		sim.device_lists, count_contexts(), sim.pds, count_mrs(), sim.channels, sim.cqs, count_qps());
	fprintf(out,
		", \"counts\": {\"sends\": %" PRIu64 ", \"recvs\": %" PRIu64 ", \"send_completions\": %" PRIu64
		", \"recv_completions\": %" PRIu64 ", \"flushed\": %" PRIu64 ", \"rnr_naks\": %" PRIu64
		", \"retries\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"dropped\": %" PRIu64
		", \"gpu_read\": %" PRIu64 ", \"gpu_written\": %" PRIu64 "}",
		counts->sends, counts->recvs, counts->send_completions, counts->recv_completions, counts->flushed,
		counts->rnr_naks, counts->retries, counts->bytes, counts->dropped, counts->gpu_read, counts->gpu_written);
	fprintf(out, ", \"faults\": {");
	for (unsigned i = 0; i < sim.config.fault_count; i++)
		fprintf(out, "%s\"%s:%" PRIu64 "\": %" PRIu64, i ? ", " : "", sim.config.faults[i].verb,
			sim.config.faults[i].first, sim.config.faults[i].calls);
	fprintf(out, "}, \"violations\": [");
	for (size_t i = 0; i < violation_count; i++)
		fprintf(out, "%s\"%s\"", i ? ", " : "", violations[i]);
	fprintf(out, "]}\n");
}

__attribute__((constructor)) static void note_process(void)
{
	loaded_by = getpid();
}

/* One line appended for each process; a forked child that did not load the library says nothing. */
__attribute__((destructor)) static void report_at_exit(void)
{
	const char *path = getenv("VERBS_SIM_REPORT");
	char *text = NULL;
	size_t bytes = 0;
	FILE *memory;
	int fd;

	if (!path || !*path || getpid() != loaded_by)
		return;
	memory = open_memstream(&text, &bytes);
	fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	if (!memory || fd < 0) {
		fprintf(stderr, "verbs_sim: VERBS_SIM_REPORT %s: %s\n", path, strerror(errno));
		return;
	}
	pthread_mutex_lock(&sim_lock);
	write_report(memory);
	pthread_mutex_unlock(&sim_lock);
	fclose(memory);
	if (write(fd, text, bytes) != (ssize_t)bytes)
		fprintf(stderr, "verbs_sim: VERBS_SIM_REPORT %s: %s\n", path, strerror(errno));
	close(fd);
	free(text);
}
