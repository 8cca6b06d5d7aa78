/*
 * child_calls.c - preloaded: writes down what a forked child calls that would reach its parent's connections, or that
 * closes a number twice. Only after arm(), and only in children; `CHILD_CALLS` names the file.
 *
 * Threads: any.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static int armed, in_child;

static void child(void)
{
	in_child = armed;
}

static __attribute__((constructor)) void begin(void)
{
	pthread_atfork(NULL, NULL, child);
}

void arm(void)
{
	armed = 1;
}

/* The child begins something of its own. */
void disarm(void)
{
	in_child = 0;
}

static void note(const char *name, int fd)
{
	char line[80];
	int saved = errno, file = open(getenv("CHILD_CALLS"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	int size = snprintf(line, sizeof(line), "%d %s(%d)\n", getpid(), name, fd);

	if (file < 0 || write(file, line, (size_t)size) != size)
		abort();
	in_child = 0; /* of close() below */
	close(file);
	in_child = 1;
	errno = saved;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define NOTED(type, name, parameters, ...) \
	type name parameters \
	{ \
		if (in_child) \
			note(#name, fd); \
		return REAL(name)(__VA_ARGS__); \
	}

NOTED(int, shutdown, (int fd, int how), fd, how)
NOTED(int, epoll_ctl, (int fd, int op, int other, struct epoll_event *event), fd, op, other, event)
NOTED(int, epoll_wait, (int fd, struct epoll_event *events, int count, int ms), fd, events, count, ms)
NOTED(ssize_t, recv, (int fd, void *into, size_t bytes, int flags), fd, into, bytes, flags)
NOTED(ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), fd, message, flags)
NOTED(ssize_t, send, (int fd, const void *from, size_t bytes, int flags), fd, from, bytes, flags)
NOTED(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), fd, message, flags)

int close(int fd)
{
	int result = REAL(close)(fd);

	if (result != 0 && in_child)
		note("close of a number that is none", fd);
	return result;
}
