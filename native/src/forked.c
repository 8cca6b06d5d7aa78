/* forked.c - see forked.h. */
#define _GNU_SOURCE
#include "forked.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuda_page.h"
#include "gdr.h"
#include "memory.h"
#include "order.h"
#include "pin.h"
#include "shm.h"
#include "verbs_domain.h"

/* By its number. A transport of others may have closed it, and the number be a file's of the program. */
struct own_fd {
	bool ours;
	dev_t device;
	ino_t inode;
};

struct own_map {
	void *address;
	uint64_t bytes;
	int fd;
	enum rr_in_child in_child;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static struct own_fd *fds;
static size_t fd_room;
static struct own_map *maps;
static size_t map_count, map_room;
static _Atomic uint64_t mark = 1;

uint64_t rr_forked_mark(void)
{
	return rr_own64(&mark);
}

/* ---- fork ---- */

static void before_fork(void)
{
	rr_memory_before_fork();
	pthread_mutex_lock(&lock);
}

static void in_parent(void)
{
	pthread_mutex_unlock(&lock);
	rr_memory_after_fork(false);
}

/* Whatever happens, the pages are not the parent's any more. */
static void part_from(const struct own_map *map)
{
	bool copies = map->in_child == RR_CHILD_COPY;
	int flags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE | (copies ? 0 : MAP_ANONYMOUS);

	if (mmap(map->address, map->bytes, PROT_READ | PROT_WRITE, flags, copies ? map->fd : -1, 0) == MAP_FAILED &&
	    mprotect(map->address, map->bytes, PROT_NONE) != 0)
		munmap(map->address, map->bytes);
}

static bool is_same_file(int fd, const struct own_fd *known)
{
	struct stat now;

	return fstat(fd, &now) == 0 && now.st_dev == known->device && now.st_ino == known->inode;
}

/* Of a process that may have had other threads: system calls alone, and what needs no other thread's lock. */
static void in_child(void)
{
	for (size_t i = 0; i < map_count; i++)
		part_from(&maps[i]);
	map_count = 0;
	for (size_t fd = 0; fd < fd_room; fd++) {
		if (fds[fd].ours && is_same_file((int)fd, &fds[fd]))
			close((int)fd);
		fds[fd].ours = false;
	}
	atomic_fetch_add_explicit(&mark, 1, memory_order_relaxed);
	pthread_mutex_unlock(&lock);
	rr_memory_after_fork(true);
	/* Lists of what the parent has, under locks that a thread of it may have held. */
	rr_pin_forget();
	rr_gdr_forget();
	rr_domain_forget();
	rr_cuda_page_forget();
	rr_shm_bytes_add(-(int64_t)rr_shm_bytes_used());
}

static void watch_forks(void)
{
	pthread_atfork(before_fork, in_parent, in_child);
}

/* ---- descriptors ---- */

void rr_own_begin(void)
{
	pthread_once(&fork_once, watch_forks);
	pthread_mutex_lock(&lock);
}

static bool note(int fd)
{
	struct stat found;

	if (fstat(fd, &found) != 0)
		return false;
	if ((size_t)fd >= fd_room) {
		size_t room = ((size_t)fd + 64) * 2;
		struct own_fd *larger = realloc(fds, room * sizeof(*fds));
		if (!larger)
			return false;
		memset(larger + fd_room, 0, (room - fd_room) * sizeof(*fds));
		fds = larger;
		fd_room = room;
	}
	fds[fd] = (struct own_fd){.ours = true, .device = found.st_dev, .inode = found.st_ino};
	return true;
}

int rr_own_made(int fd)
{
	int failed = errno;

	if (fd >= 0 && !note(fd)) {
		close(fd);
		fd = -1;
		failed = ENOMEM;
	}
	pthread_mutex_unlock(&lock);
	errno = failed;
	return fd;
}

bool rr_own_take(int fd)
{
	if (fd < 0)
		return true;
	rr_own_begin();
	bool noted = note(fd);
	pthread_mutex_unlock(&lock);
	return noted;
}

/* Under the lock. */
static void give(int fd)
{
	if (fd >= 0 && (size_t)fd < fd_room)
		fds[fd].ours = false;
}

void rr_own_give(int fd)
{
	pthread_mutex_lock(&lock);
	give(fd);
	pthread_mutex_unlock(&lock);
}

void rr_own_close(int fd)
{
	pthread_mutex_lock(&lock);
	give(fd);
	close(fd);
	pthread_mutex_unlock(&lock);
}

/* ---- mappings ---- */

/* The one that begins there, or a new one; NULL: no memory. Under the lock. */
static struct own_map *map_at(const void *address)
{
	for (size_t i = 0; address && i < map_count; i++)
		if (maps[i].address == address)
			return &maps[i];
	if (map_count == map_room) {
		size_t room = map_room ? 2 * map_room : 64;
		struct own_map *larger = realloc(maps, room * sizeof(*maps));
		if (!larger)
			return NULL;
		maps = larger;
		map_room = room;
	}
	return &maps[map_count];
}

void *rr_own_map(void *at, uint64_t bytes, int fd, enum rr_in_child in_child)
{
	int flags = MAP_SHARED | (at ? MAP_FIXED : 0) | (fd < 0 ? MAP_ANONYMOUS : 0);
	void *address = MAP_FAILED;

	rr_own_begin();
	struct own_map *map = map_at(at);
	errno = ENOMEM;
	if (map)
		address = mmap(at, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
	if (address != MAP_FAILED) {
		map_count += map == &maps[map_count];
		*map = (struct own_map){.address = address, .bytes = bytes, .fd = fd, .in_child = in_child};
	}
	pthread_mutex_unlock(&lock);
	return address;
}

void rr_own_unmap(void *address, uint64_t bytes)
{
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < map_count; i++) {
		if (maps[i].address != address)
			continue;
		maps[i] = maps[--map_count];
		break;
	}
	munmap(address, bytes);
	pthread_mutex_unlock(&lock);
}
