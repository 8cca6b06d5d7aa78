/*
 * setup_shim.c - preloaded into ranks: one of librdmaring's calls by which a node is set up is refused, late, or the rank's last.
 *
 *   FAULT       the call, as "connect"; "mmap" is of this rank's own segment, "mmap of a peer's" of another's
 *   FAULT_RANK  in which rank
 *   FAULT_AT    from which of its calls on, counted from 1; FAULT_LAST: the last one, default FAULT_AT
 *   FAULT_WAY   "refuse ERRNO", "late SECONDS", "stop SECONDS", "die SECONDS" (stopped for so long, then killed)
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(real))dlsym(RTLD_NEXT, #name)
#define FAULTED(name, wanted) ((wanted) && faulted(#name, __builtin_return_address(0)))

static bool by_the_library(void *caller)
{
	Dl_info info;

	return dladdr(caller, &info) && info.dli_fname && strstr(info.dli_fname, "librdmaring");
}

/* Whoever is stopped cannot wake itself. */
static void signal_later(const char *seconds, int number)
{
	char line[96], *arguments[] = {"sh", "-c", line, NULL}, *environment[] = {NULL};
	pid_t child;

	snprintf(line, sizeof(line), "sleep %s; kill -%d %d", seconds, number, (int)getpid());
	if (posix_spawn(&child, "/bin/sh", NULL, NULL, arguments, environment) != 0)
		abort();
}

/* True: the call fails, and errno says how. */
static bool faulted(const char *name, void *caller)
{
	static int count;
	const char *fault = getenv("FAULT"), *rank = getenv("RDMARING_RANK"), *where = getenv("FAULT_RANK");
	const char *at = getenv("FAULT_AT"), *last = getenv("FAULT_LAST"), *way = getenv("FAULT_WAY");

	if (!fault || !rank || !where || !at || !way || strcmp(fault, name) != 0 || strcmp(rank, where) != 0 || !by_the_library(caller))
		return false;
	count++;
	if (count < atoi(at) || count > atoi(last ? last : at))
		return false;
	const char *value = strchr(way, ' ') + 1;
	if (strncmp(way, "refuse", 6) == 0) {
		errno = atoi(value);
		return true;
	}
	if (strncmp(way, "late", 4) == 0) {
		usleep((useconds_t)(atof(value) * 1e6));
		return false;
	}
	signal_later(value, strncmp(way, "die", 3) == 0 ? SIGKILL : SIGCONT);
	raise(SIGSTOP);
	return false;
}

static int own_segment = -1;

int memfd_create(const char *name, unsigned flags)
{
	REAL(memfd_create);
	if (strcmp(name, "rdmaring-segment") != 0)
		return real(name, flags);
	own_segment = FAULTED(memfd_create, true) ? -1 : real(name, flags);
	return own_segment;
}

int posix_fallocate(int fd, off_t offset, off_t bytes)
{
	REAL(posix_fallocate);
	return FAULTED(posix_fallocate, true) ? errno : real(fd, offset, bytes);
}

void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
	REAL(mmap);
	if (flags != MAP_SHARED || fd < 0)
		return real(address, bytes, protection, flags, fd, offset);
	bool fails = faulted(fd == own_segment ? "mmap" : "mmap of a peer's", __builtin_return_address(0));
	return fails ? MAP_FAILED : real(address, bytes, protection, flags, fd, offset);
}

int socket(int domain, int type, int protocol)
{
	REAL(socket);
	return FAULTED(socket, domain == AF_UNIX) ? -1 : real(domain, type, protocol);
}

int bind(int fd, const struct sockaddr *address, socklen_t size)
{
	REAL(bind);
	return FAULTED(bind, address->sa_family == AF_UNIX) ? -1 : real(fd, address, size);
}

int listen(int fd, int backlog)
{
	REAL(listen);
	return FAULTED(listen, true) ? -1 : real(fd, backlog);
}

int connect(int fd, const struct sockaddr *address, socklen_t size)
{
	REAL(connect);
	return FAULTED(connect, address->sa_family == AF_UNIX) ? -1 : real(fd, address, size);
}

int accept4(int fd, struct sockaddr *address, socklen_t *size, int flags)
{
	REAL(accept4);
	return FAULTED(accept4, flags == SOCK_CLOEXEC) ? -1 : real(fd, address, size, flags);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	REAL(sendmsg);
	return FAULTED(sendmsg, message->msg_controllen > 0) ? -1 : real(fd, message, flags);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
	REAL(recvmsg);
	return FAULTED(recvmsg, message->msg_controllen > 0) ? -1 : real(fd, message, flags);
}

int getsockopt(int fd, int level, int name, void *value, socklen_t *size)
{
	REAL(getsockopt);
	return FAULTED(getsockopt, level == SOL_SOCKET && name == SO_PEERCRED) ? -1 : real(fd, level, name, value, size);
}

ssize_t process_vm_readv(pid_t pid, const struct iovec *local, unsigned long local_count, const struct iovec *remote,
			 unsigned long remote_count, unsigned long flags)
{
	REAL(process_vm_readv);
	return FAULTED(process_vm_readv, true) ? -1 : real(pid, local, local_count, remote, remote_count, flags);
}

ssize_t getrandom(void *bytes, size_t size, unsigned flags)
{
	REAL(getrandom);
	return FAULTED(getrandom, true) ? -1 : real(bytes, size, flags);
}

long syscall(long number, ...)
{
	va_list given;
	long values[6];

	REAL(syscall);
	va_start(given, number);
	for (int i = 0; i < 6; i++)
		values[i] = va_arg(given, long);
	va_end(given);
	if (FAULTED(syscall, number == SYS_pidfd_open))
		return -1;
	return real(number, values[0], values[1], values[2], values[3], values[4], values[5]);
}
