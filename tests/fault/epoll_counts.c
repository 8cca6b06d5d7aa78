/* epoll_counts.c - counts epoll_wait() on descriptors that are none: to be preloaded, asked by epoll_failures(). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <sys/epoll.h>

static _Atomic long failures;

long epoll_failures(void)
{
	return failures;
}

int epoll_wait(int fd, struct epoll_event *events, int room, int timeout)
{
	static int (*real)(int, struct epoll_event *, int, int);
	int found;

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "epoll_wait");
	found = real(fd, events, room, timeout);
	if (found < 0 && errno != EINTR)
		failures++;
	return found;
}
