/* test_forked.c - what a child of fork() is left of descriptors, mappings and regions; a quarantine that takes long. */
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "forked.h"
#include "memory.h"
#include "status.h"

#define BYTES 65536u
#define REFUSED 7 /* of a child that touched what it may not */

static _Atomic bool held, inside; /* the copy of a quarantine */

/* In place of the C library's: the copy stands still while the test looks. */
ssize_t pwrite(int fd, const void *from, size_t bytes, off_t at)
{
	atomic_store(&inside, true);
	while (atomic_load(&held))
		usleep(100);
	return (ssize_t)syscall(SYS_pwrite64, fd, from, bytes, at);
}

static void refuse(int number)
{
	(void)number;
	_exit(REFUSED);
}

static int status_of(pid_t child)
{
	int status = 0;

	assert(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
	return WEXITSTATUS(status);
}

static bool is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

static void descriptors(void)
{
	int ours = RR_OWN(eventfd(0, EFD_CLOEXEC)), closed = RR_OWN(eventfd(0, EFD_CLOEXEC)), given = RR_OWN(eventfd(0, 0));
	int pair[2], replaced, other;
	uint64_t mark = rr_forked_mark();

	assert(ours >= 0 && closed >= 0 && given >= 0 && pipe(pair) == 0);
	assert(RR_OWN(open("/nowhere", O_RDONLY)) == -1 && errno == ENOENT);
	rr_own_close(closed);
	rr_own_give(given);
	replaced = RR_OWN(open("/dev/zero", O_RDONLY));
	other = open("/dev/null", O_RDONLY);
	assert(dup2(other, replaced) == replaced); /* as if somebody had closed it, and the program opened a file */
	pid_t child = fork();
	if (child == 0) {
		assert(!is_open(ours) && is_open(given) && is_open(replaced) && is_open(pair[0]) && is_open(other));
		assert(rr_forked_mark() != mark);
		int again = RR_OWN(eventfd(0, 0)); /* under the parent's number, and the child's own */
		assert(again == ours && is_open(again));
		rr_own_close(again);
		_exit(0);
	}
	assert(status_of(child) == 0);
	assert(is_open(ours) && is_open(replaced) && rr_forked_mark() == mark);
	rr_own_close(ours);
	assert(!is_open(ours));
	close(given);
	close(replaced);
	close(other);
	close(pair[0]);
	close(pair[1]);
}

static void mappings(void)
{
	int fd = RR_OWN(memfd_create("test", MFD_CLOEXEC)), lost = RR_OWN(memfd_create("test", MFD_CLOEXEC));

	assert(ftruncate(fd, BYTES) == 0 && ftruncate(lost, BYTES) == 0);
	char *copy = rr_own_map(NULL, BYTES, fd, RR_CHILD_COPY);
	char *empty = rr_own_map(NULL, BYTES, fd, RR_CHILD_EMPTY);
	char *fresh = rr_own_map(NULL, BYTES, -1, RR_CHILD_EMPTY);
	char *without = rr_own_map(NULL, BYTES, lost, RR_CHILD_COPY);
	assert(copy != MAP_FAILED && empty != MAP_FAILED && fresh != MAP_FAILED && without != MAP_FAILED);
	memset(copy, 1, BYTES);
	memset(fresh, 2, BYTES);
	close(lost); /* so that it cannot be mapped again */
	pid_t child = fork();
	if (child == 0) {
		assert(copy[0] == 1 && copy[BYTES - 1] == 1 && empty[0] == 0 && fresh[0] == 0);
		memset(copy, 3, BYTES);
		memset(empty, 3, BYTES);
		memset(fresh, 3, BYTES);
		assert(copy[5] == 3);
		signal(SIGSEGV, refuse);
		*(volatile char *)without = 1;
		_exit(1);
	}
	assert(status_of(child) == REFUSED);
	assert(copy[0] == 1 && copy[BYTES - 1] == 1 && empty[0] == 1 && fresh[0] == 2);
	assert(rr_own_map(copy, BYTES, fd, RR_CHILD_COPY) == copy); /* in its own place */
	rr_own_unmap(copy, BYTES);
	rr_own_unmap(empty, BYTES);
	rr_own_unmap(fresh, BYTES);
	rr_own_unmap(without, BYTES);
	rr_own_close(fd);
}

static void *quarantine(void *id)
{
	assert(rr_memory_quarantine((uint32_t)(uintptr_t)id) == RR_OK);
	return NULL;
}

static void *free_it(void *address)
{
	assert(rr_memory_free(address) == RR_OK);
	return NULL;
}

/* As long as a region is copied, others are found, made, freed, and processes forked; its own end waits. */
static void long_quarantine(void)
{
	struct rr_region before, now;
	pthread_t first, second, end;
	void *address, *other;

	assert(rr_memory_alloc(BYTES, &address) == RR_OK);
	memset(address, 4, BYTES);
	assert(rr_memory_find(address, BYTES, &before));
	atomic_store(&held, true);
	atomic_store(&inside, false);
	alarm(20); /* whoever waits for the copy waits for ever */
	assert(pthread_create(&first, NULL, quarantine, (void *)(uintptr_t)before.id) == 0);
	while (!atomic_load(&inside))
		usleep(100);
	assert(rr_memory_find(address, BYTES, &now) && now.id == before.id);
	assert(rr_memory_alloc(BYTES, &other) == RR_OK && rr_memory_free(other) == RR_OK);
	pid_t child = fork();
	if (child == 0) {
		assert(!rr_memory_find(address, BYTES, &now) && !rr_memory_lives(before.id));
		assert(((char *)address)[7] == 4);
		memset(address, 5, BYTES);
		assert(rr_memory_quarantine(before.id) == RR_OK); /* nothing */
		assert(rr_memory_free(address) == RR_OK && rr_memory_free(address) == RR_ERR_ARGUMENT);
		assert(rr_memory_alloc(BYTES, &other) == RR_OK && rr_memory_find(other, BYTES, &now));
		_exit(0);
	}
	assert(status_of(child) == 0);
	assert(pthread_create(&second, NULL, quarantine, (void *)(uintptr_t)before.id) == 0);
	usleep(2000);
	atomic_store(&held, false);
	assert(pthread_join(first, NULL) == 0 && pthread_join(second, NULL) == 0);
	assert(rr_memory_find(address, BYTES, &now) && now.id != before.id && now.fd != before.fd);
	assert(!rr_memory_lives(before.id) && ((char *)address)[BYTES - 1] == 4);

	atomic_store(&held, true);
	atomic_store(&inside, false);
	assert(pthread_create(&first, NULL, quarantine, (void *)(uintptr_t)now.id) == 0);
	while (!atomic_load(&inside))
		usleep(100);
	assert(pthread_create(&end, NULL, free_it, address) == 0);
	usleep(2000);
	assert(rr_memory_find(address, BYTES, &before)); /* not freed under the copy */
	atomic_store(&held, false);
	assert(pthread_join(first, NULL) == 0 && pthread_join(end, NULL) == 0);
	assert(!rr_memory_find(address, 1, &now));
	alarm(0);
}

int main(void)
{
	descriptors();
	mappings();
	long_quarantine();
	puts("ok");
	return 0;
}
