/*
 * shim.cpp - runs kernels on the CPU: threads one after another, addresses translated and checked, accesses noted.
 */
#include "shim.h"

#include <bitset>
#include <map>

namespace shim {

thread_local position thread_index, block_index, block_size, grid_size;

static const struct shim_kernel *all_kernels;

registered::registered(const char *name, size_t parameter_bytes, void (*body)(const void *))
	: kernel{name, parameter_bytes, body, all_kernels}
{
	all_kernels = &kernel;
}

/* Thrown by an access that faults. */
struct ended {
	enum shim_outcome outcome;
	struct shim_fault fault;
};

/* The bytes that were touched. A kernel goes through its vectors in strides, and in the end has read all of them. */
class footprint {
public:
	/* Of one page, as an aligned access is. */
	void add(uint64_t address, size_t bytes)
	{
		uint64_t page = address / page_bytes;
		auto &known = recent[page % recent_count];

		if (!known.bits || known.page != page)
			known = {page, &pages[page]};
		for (size_t i = 0; i < bytes; i++)
			known.bits->set(address % page_bytes + i);
	}

	void tell(const struct shim_memory *memory, bool writes) const
	{
		uint64_t begin = 0, end = 0;

		for (const auto &[page, bits] : pages) {
			for (uint64_t i = 0; i < page_bytes; i++) {
				uint64_t address = page * page_bytes + i;

				if (!bits[i])
					continue;
				if (address != end) {
					if (end > begin)
						memory->note(memory->user, begin, end - begin, writes);
					begin = address;
				}
				end = address + 1;
			}
		}
		if (end > begin)
			memory->note(memory->user, begin, end - begin, writes);
	}

private:
	static constexpr uint64_t page_bytes = 4096, recent_count = 64;
	typedef std::bitset<page_bytes> touched;

	std::map<uint64_t, touched> pages; /* by number */
	struct {
		uint64_t page;
		touched *bits;
	} recent[recent_count] = {};
};

/* One launch. */
struct launch {
	/* Views lately used, by the 2 MiB that the address lies in: as many as a pass has vectors, and more. */
	static constexpr size_t view_count = 64;

	const struct shim_memory *memory;
	struct shim_view views[view_count] = {};
	footprint reads, writes;
};

static thread_local launch *running;

void *reach(uint64_t address, size_t bytes, bool writes)
{
	struct shim_view *view = &running->views[(address >> 21) % launch::view_count];
	struct shim_fault fault = {address, bytes, writes, block_index.x, thread_index.x};

	if (address % bytes)
		throw ended{SHIM_MISALIGNED_ADDRESS, fault};
	if (address < view->begin || address >= view->end) {
		if (!running->memory->view(running->memory->user, address, view)) {
			*view = {};
			throw ended{SHIM_ILLEGAL_ADDRESS, fault};
		}
	}
	if (bytes > view->end - address)
		throw ended{SHIM_ILLEGAL_ADDRESS, fault};
	if (running->memory->note)
		(writes ? running->writes : running->reads).add(address, bytes);
	return view->host + (address - view->begin);
}

static void run_block(const struct shim_kernel *kernel, const void *parameters)
{
	for (thread_index.z = 0; thread_index.z < block_size.z; thread_index.z++)
		for (thread_index.y = 0; thread_index.y < block_size.y; thread_index.y++)
			for (thread_index.x = 0; thread_index.x < block_size.x; thread_index.x++)
				kernel->body(parameters);
}

static void run_grid(const struct shim_kernel *kernel, const void *parameters)
{
	for (block_index.z = 0; block_index.z < grid_size.z; block_index.z++)
		for (block_index.y = 0; block_index.y < grid_size.y; block_index.y++)
			for (block_index.x = 0; block_index.x < grid_size.x; block_index.x++)
				run_block(kernel, parameters);
}

} /* namespace shim */

#define SHIM_EXPORT extern "C" __attribute__((visibility("default")))

SHIM_EXPORT const struct shim_kernel *shim_find(const char *name)
{
	const struct shim_kernel *kernel = shim::all_kernels;

	while (kernel && strcmp(kernel->name, name) != 0)
		kernel = kernel->next;
	return kernel;
}

SHIM_EXPORT enum shim_outcome shim_run(const struct shim_kernel *kernel, const unsigned int grid[3],
				       const unsigned int block[3], const void *parameters,
				       const struct shim_memory *memory, struct shim_fault *fault)
{
	shim::launch launch;
	enum shim_outcome outcome = SHIM_DONE;

	launch.memory = memory;
	shim::running = &launch;
	shim::grid_size = {grid[0], grid[1], grid[2]};
	shim::block_size = {block[0], block[1], block[2]};
	try {
		shim::run_grid(kernel, parameters);
	} catch (const shim::ended &ended) {
		outcome = ended.outcome;
		*fault = ended.fault;
	}
	shim::running = nullptr;
	if (memory->note) {
		launch.reads.tell(memory, false);
		launch.writes.tell(memory, true);
	}
	return outcome;
}

SHIM_EXPORT bool shim_view_listed(void *user, uint64_t address, struct shim_view *view)
{
	for (const auto *each = static_cast<const struct shim_view *>(user); each->end; each++) {
		if (each->begin <= address && address < each->end) {
			*view = *each;
			return true;
		}
	}
	return false;
}
