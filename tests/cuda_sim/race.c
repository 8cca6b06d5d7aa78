/*
 * race.c - the race log: what each operation touched and what it came after, for a checker that looks for two
 * accesses to the same bytes of which one writes and neither comes before the other.
 *
 * RR_CUDA_SIM_RACE_LOG names a folder. Each process writes <pid>.jsonl there, a JSON object a line, as things end:
 *
 *   {"process": PID, "node": TEXT, "one_queue": BOOL}                                      first line
 *   {"op": KIND, "stream": S, "number": N, "host": [THREAD, STEP], "begin": NS, "end": NS,
 *    "reads": [RANGE...], "writes": [RANGE...], "edges": [EDGE...]}                        an operation that ran
 *   {"call": NAME, "host": [THREAD, STEP], "edges": [EDGE]}                                the host waited
 *   {"call": NAME, "host": [THREAD, STEP], "range": RANGE}                                 the host took or gave memory
 *   {"mark": NAME, "host": [THREAD, STEP]}                                                 cs_race_mark
 *   {"call": NAME, "host": [THREAD, STEP], "adapter": N, "writes": BOOL, "range": RANGE, "behind": P}
 *                                                access N of an adapter, from 1; after post P: a read, of the
 *                                                request; a write, the last one then, which granted the memory or came later
 *   {"call": NAME, "host": [THREAD, STEP], "post": P}                                      a request was posted
 *   {"call": NAME, "host": [CARRIER, STEP], "edges": [EDGE...], "touches": RANGE, "writes": BOOL}
 *                                                what the host did to pinned memory, told by cs_carried; edges of flags, or a range
 *
 * RANGE is [MEMORY, OFFSET, BYTES]. MEMORY is alike in all processes of the machine for device memory ("d" and the
 * inode of its block), and for host memory that was registered in a mapping which processes share ("s" and its inode);
 * other pinned host memory is "h" and the process, with the address as offset.
 * EDGE is one of these, in the order in which they happened:
 *   ["after", S, N]           operation N of stream S of this process, and so all earlier ones, came before
 *   ["records", EVENT, RECORD]  the operation is record number RECORD of the event
 *   ["awaits", EVENT, RECORD]   it came after that record
 *   ["sets", RANGE, VALUE, NS]  a stream memory operation was about to store VALUE there
 *   ["polls", RANGE, VALUE, NS, WANTED, HOW] a stream memory operation waited until it saw VALUE there: WANTED by HOW,
 *                             which is "geq", "eq", "and" or "nor"
 *   ["fills", VALUE, WIDTH]   what the fill stores: elements of WIDTH bytes
 *   ["writes", N]             kernels see the adapter's writes up to N: a flush, or a completion where none is needed
 *   ["reads", N]              its reads up to N are over: a completion
 * The words of memory operations stand among reads and writes too. What the driver puts on a stream by itself (the
 * order of the legacy stream, of a graph's branches) is an operation "await" of THREAD 0.
 * EVENT is "e" and an inode for an event of several processes, "l<pid>.<number>" for others.
 *
 * What orders: operations of a stream by number (also where one queue serves all: that order is no promise); the
 * steps of a host thread by STEP; a call before the operation with the same THREAD and a later STEP, since that is
 * when it was put on the stream; and the edges. NS is CLOCK_MONOTONIC, one clock for all processes. Which store a
 * "polls" came after is race_flags.py's matter: as far as it can, not the one that it happened to see.
 * "range" with cuMemAlloc and cuMemFree counts as a write
 * by the host, so that memory which is used again is not taken for the old one.
 * Marks of equal NAME are a barrier between the processes that wrote them: a test writes one after each of its own.
 */
#define _GNU_SOURCE
#include "cs.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define EDGE_BYTES_MAX 256
#define POSTS_KEPT 65536u

struct range {
	CUdeviceptr begin, end;
};

struct ranges {
	struct range *items;
	size_t count, room;
};

/* Of the operation that this thread runs. */
static _Thread_local struct {
	struct ranges reads, writes;
	uint64_t begin_ns;
	char *edges; /* as text, with commas between */
	size_t edge_bytes, edge_room;
} running;

static FILE *file;
static pthread_once_t opened = PTHREAD_ONCE_INIT;
static pthread_mutex_t file_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint32_t threads;
static _Thread_local uint32_t own_thread, own_step;

static void open_file(void)
{
	const char *folder = cs_setting("RACE_LOG");
	char path[4096];

	if (!folder)
		return;
	mkdir(folder, 0700);
	snprintf(path, sizeof(path), "%s/%d.jsonl", folder, getpid());
	file = fopen(path, "we");
	if (!file) {
		cs_say("RR_CUDA_SIM_RACE_LOG: %s: %m", path);
		exit(70);
	}
	setvbuf(file, NULL, _IOFBF, 1 << 16);
	fprintf(file, "{\"process\": %d, \"node\": \"%s\", \"one_queue\": %s}\n", getpid(), cs_settings.node,
		cs_settings.one_queue ? "true" : "false");
	fflush(file);
}

bool cs_race_on(void)
{
	pthread_once(&opened, open_file);
	return file;
}

void cs_race_step(uint32_t *thread, uint32_t *step)
{
	if (!own_thread)
		own_thread = atomic_fetch_add(&threads, 1) + 1;
	*thread = own_thread;
	*step = ++own_step;
}

static void edge(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void edge(const char *format, ...)
{
	va_list arguments;

	if (running.edge_room - running.edge_bytes < EDGE_BYTES_MAX) {
		running.edge_room = running.edge_room * 2 + 4 * EDGE_BYTES_MAX;
		running.edges = realloc(running.edges, running.edge_room);
		if (!running.edges)
			abort();
	}
	if (running.edge_bytes)
		running.edge_bytes += sprintf(running.edges + running.edge_bytes, ", ");
	va_start(arguments, format);
	running.edge_bytes += vsprintf(running.edges + running.edge_bytes, format, arguments);
	va_end(arguments);
}

/* Ranges mostly grow upwards, one after another. */
static void add(struct ranges *ranges, CUdeviceptr begin, CUdeviceptr end)
{
	for (size_t i = ranges->count; i-- > 0;) {
		struct range *range = &ranges->items[i];

		if (begin > range->end || end < range->begin)
			continue;
		range->begin = begin < range->begin ? begin : range->begin;
		range->end = end > range->end ? end : range->end;
		return;
	}
	if (ranges->count == ranges->room) {
		ranges->room = ranges->room * 2 + 16;
		ranges->items = realloc(ranges->items, ranges->room * sizeof(*ranges->items));
		if (!ranges->items)
			abort();
	}
	ranges->items[ranges->count++] = (struct range){ begin, end };
}

CS_EXPORT void cs_note(CUdeviceptr address, size_t bytes, bool writes)
{
	if (cs_running && bytes && cs_race_on())
		add(writes ? &running.writes : &running.reads, address, address + bytes);
}

/* RANGE, as text. Takes cs_lock. */
static const char *range_text(CUdeviceptr address, size_t bytes, char text[96])
{
	struct cs_allocation *allocation;
	struct cs_host_range *pinned;

	pthread_mutex_lock(&cs_lock);
	allocation = cs_allocation_find(address, 1);
	pinned = allocation ? NULL : cs_host_find(address, 1);
	if (allocation)
		snprintf(text, 96, "[\"d%lu\", %llu, %zu]", (unsigned long)allocation->block->inode,
			 address - allocation->block->begin, bytes);
	else if (pinned && pinned->inode)
		snprintf(text, 96, "[\"s%lu\", %llu, %zu]", (unsigned long)pinned->inode,
			 address - pinned->begin + pinned->offset, bytes);
	else
		snprintf(text, 96, "[\"h%d\", %llu, %zu]", getpid(), address, bytes);
	pthread_mutex_unlock(&cs_lock);
	return text;
}

static void print_ranges(const char *name, const struct ranges *ranges)
{
	char text[96];

	fprintf(file, ", \"%s\": [", name);
	for (size_t i = 0; i < ranges->count; i++)
		fprintf(file, "%s%s", i ? ", " : "",
			range_text(ranges->items[i].begin, ranges->items[i].end - ranges->items[i].begin, text));
	fprintf(file, "]");
}

void cs_race_begin(const struct cs_op *op)
{
	(void)op;
	if (!cs_race_on())
		return;
	running.reads.count = running.writes.count = 0;
	running.edge_bytes = 0;
	running.begin_ns = cs_now_ns();
}

void cs_race_end(const struct cs_op *op)
{
	uint64_t end_ns = cs_now_ns();

	if (!cs_race_on())
		return;
	pthread_mutex_lock(&file_lock);
	fprintf(file, "{\"op\": \"%s\", \"stream\": %u, \"number\": %lu, \"host\": [%u, %u], \"begin\": %lu, \"end\": %lu",
		op->kind->name, op->stream->number, (unsigned long)op->number, op->thread, op->step,
		(unsigned long)running.begin_ns, (unsigned long)end_ns);
	print_ranges("reads", &running.reads);
	print_ranges("writes", &running.writes);
	fprintf(file, ", \"edges\": [%s]}\n", running.edge_bytes ? running.edges : "");
	fflush(file);
	pthread_mutex_unlock(&file_lock);
}

void cs_race_after(uint32_t stream, uint64_t number)
{
	if (cs_race_on())
		edge("[\"after\", %u, %lu]", stream, (unsigned long)number);
}

void cs_race_event(const char *what, const char *event, uint32_t record)
{
	if (cs_race_on())
		edge("[\"%s\", \"%s\", %u]", what, event, record);
}

void cs_race_set(CUdeviceptr address, uint32_t bytes, uint64_t value)
{
	char text[96];

	if (cs_race_on())
		edge("[\"sets\", %s, %lu, %lu]", range_text(address, bytes, text), (unsigned long)value,
		     (unsigned long)cs_now_ns());
}

void cs_race_poll(CUdeviceptr address, uint32_t bytes, uint64_t seen, uint64_t wanted, unsigned int how)
{
	static const char *const names[] = { "geq", "eq", "and", "nor" };
	char text[96];

	if (cs_race_on())
		edge("[\"polls\", %s, %lu, %lu, %lu, \"%s\"]", range_text(address, bytes, text), (unsigned long)seen,
		     (unsigned long)cs_now_ns(), (unsigned long)wanted, names[how & 3]);
}

void cs_race_fill(uint32_t value, uint32_t width)
{
	if (cs_race_on())
		edge("[\"fills\", %u, %u]", value, width);
}

/* A line about the calling host thread. */
static void host_line(const char *key, const char *name, const char *rest)
{
	uint32_t thread, step;

	cs_race_step(&thread, &step);
	pthread_mutex_lock(&file_lock);
	fprintf(file, "{\"%s\": \"%s\", \"host\": [%u, %u]%s}\n", key, name, thread, step, rest);
	fflush(file);
	pthread_mutex_unlock(&file_lock);
}

void cs_race_host_stream(const char *call, uint32_t stream, uint64_t number)
{
	char rest[64];

	if (!cs_race_on() || !number)
		return;
	snprintf(rest, sizeof(rest), ", \"edges\": [[\"after\", %u, %lu]]", stream, (unsigned long)number);
	host_line("call", call, rest);
}

void cs_race_host_event(const char *call, const char *event, uint32_t record)
{
	char rest[128];

	if (!cs_race_on())
		return;
	snprintf(rest, sizeof(rest), ", \"edges\": [[\"awaits\", \"%s\", %u]]", event, record);
	host_line("call", call, rest);
}

void cs_race_host_memory(const char *call, CUdeviceptr address, size_t bytes)
{
	char rest[128], text[96];

	if (!cs_race_on())
		return;
	snprintf(rest, sizeof(rest), ", \"range\": %s", range_text(address, bytes, text));
	host_line("call", call, rest);
}

/* ---- adapters ---- */

static struct {
	uint64_t accesses; /* numbers them, from 1 */
	uint64_t reads, writes, visible; /* the last of each kind, and the last write that kernels see */
	uint64_t posts, behind;
	uint64_t polled; /* the last write before the application polled a completion */
	uint64_t polled_before[POSTS_KEPT]; /* the same, when a request was posted */
} adapter; /* under file_lock */

void cs_race_adapter(bool writes, CUdeviceptr address, size_t bytes, bool seen)
{
	char rest[256], text[96];

	if (!cs_race_on())
		return;
	range_text(address, bytes, text);
	pthread_mutex_lock(&file_lock);
	adapter.accesses++;
	*(writes ? &adapter.writes : &adapter.reads) = adapter.accesses;
	if (writes && seen)
		adapter.visible = adapter.writes;
	/* A read flushes all writes before it; in every run those whose end was known when it was asked for. */
	if (!writes && adapter.visible < adapter.polled_before[adapter.behind % POSTS_KEPT])
		adapter.visible = adapter.polled_before[adapter.behind % POSTS_KEPT];
	snprintf(rest, sizeof(rest), ", \"adapter\": %lu, \"writes\": %s, \"range\": %s, \"behind\": %lu",
		 (unsigned long)adapter.accesses, writes ? "true" : "false", text,
		 (unsigned long)(writes ? adapter.posts : adapter.behind));
	pthread_mutex_unlock(&file_lock);
	host_line("call", writes ? "rdma_write" : "rdma_read", rest);
}

/* What comes before whatever the calling thread does from now on. */
static void after_adapter(const char *call, bool flushes)
{
	char rest[128];

	if (!cs_race_on())
		return;
	pthread_mutex_lock(&file_lock);
	if (flushes)
		adapter.visible = adapter.writes;
	snprintf(rest, sizeof(rest), ", \"edges\": [[\"writes\", %lu], [\"reads\", %lu]]", (unsigned long)adapter.visible,
		 (unsigned long)(flushes ? 0 : adapter.reads));
	pthread_mutex_unlock(&file_lock);
	host_line("call", call, rest);
}

void cs_race_rdma(const char *call)
{
	after_adapter(call, true);
}

CS_EXPORT void cs_rdma_seen(void)
{
	if (!cs_race_on())
		return;
	pthread_mutex_lock(&file_lock);
	adapter.polled = adapter.writes;
	pthread_mutex_unlock(&file_lock);
	after_adapter("rdma_completion", false);
}

CS_EXPORT uint64_t cs_rdma_posted(void)
{
	char rest[64];
	uint64_t post;

	if (!cs_race_on())
		return 0;
	pthread_mutex_lock(&file_lock);
	post = ++adapter.posts;
	adapter.polled_before[post % POSTS_KEPT] = adapter.polled;
	pthread_mutex_unlock(&file_lock);
	snprintf(rest, sizeof(rest), ", \"post\": %lu", (unsigned long)post);
	host_line("call", "rdma_post", rest);
	return post;
}

CS_EXPORT void cs_rdma_reads_behind(uint64_t post)
{
	if (!cs_race_on())
		return;
	pthread_mutex_lock(&file_lock);
	adapter.behind = post;
	pthread_mutex_unlock(&file_lock);
}

/*
 * rr_carried_watch of the library: the driver of a communicator, which one thread after another may be. In the log it is
 * one of its own.
 */
#define CARRIER 1000000u

CS_EXPORT void cs_carried(int32_t access, const void *address, uint64_t bytes)
{
	static const char *const names[] = { "carrier_takes", "carrier_sets", "carrier_reads", "carrier_writes" };
	static uint32_t steps; /* under file_lock */
	char range[96];
	unsigned long now_ns = (unsigned long)cs_now_ns();

	if (!cs_race_on())
		return;
	range_text((CUdeviceptr)(uintptr_t)address, bytes, range);
	pthread_mutex_lock(&file_lock);
	fprintf(file, "{\"call\": \"%s\", \"host\": [%u, %u], ", names[access & 3], CARRIER, ++steps);
	if (access == 0)
		fprintf(file, "\"edges\": [[\"polls\", %s, 1, %lu, 1, \"eq\"], [\"sets\", %s, 0, %lu]]}\n", range, now_ns, range, now_ns);
	else if (access == 1)
		fprintf(file, "\"edges\": [[\"sets\", %s, 1, %lu]]}\n", range, now_ns);
	else
		fprintf(file, "\"touches\": %s, \"writes\": %s}\n", range, access == 3 ? "true" : "false");
	fflush(file);
	pthread_mutex_unlock(&file_lock);
}

CS_EXPORT void cs_race_mark(const char *name)
{
	if (cs_race_on())
		host_line("mark", name, "");
}
