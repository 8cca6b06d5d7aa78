/*
 * page_stores.c - counts what a rank stores to its own progress page, by making the page's first 4 KiB read-only: each
 * store faults, is counted, and is let through by a single step of the processor. x86-64.
 *
 * Threads: one stores at a time.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#define WATCHED_BYTES 4096u
#define LINE_BYTES 64u
#define TRAP_FLAG 0x100

static char *watched;
static volatile uint64_t counts[WATCHED_BYTES / LINE_BYTES];

static void on_fault(int signal_number, siginfo_t *info, void *context)
{
	char *at = info->si_addr;

	if (at < watched || at >= watched + WATCHED_BYTES) {
		signal(signal_number, SIG_DFL);
		return;
	}
	counts[(uint64_t)(at - watched) / LINE_BYTES]++;
	mprotect(watched, WATCHED_BYTES, PROT_READ | PROT_WRITE);
	((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] |= TRAP_FLAG;
}

static void on_step(int signal_number, siginfo_t *info, void *context)
{
	(void)signal_number;
	(void)info;
	mprotect(watched, WATCHED_BYTES, PROT_READ);
	((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG;
}

void watch_begin(void *page)
{
	struct sigaction action = {.sa_flags = SA_SIGINFO};

	watched = page;
	memset((void *)counts, 0, sizeof(counts));
	action.sa_sigaction = on_step;
	sigaction(SIGTRAP, &action, NULL);
	action.sa_sigaction = on_fault;
	sigaction(SIGSEGV, &action, NULL);
	mprotect(watched, WATCHED_BYTES, PROT_READ);
}

/* Stores by line of the page since watch_begin(); ends it. */
void watch_end(uint64_t *out)
{
	mprotect(watched, WATCHED_BYTES, PROT_READ | PROT_WRITE);
	memcpy(out, (void *)counts, sizeof(counts));
}
