/* wait.c - see wait.h. */
#define _GNU_SOURCE
#include "wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "order.h"

#define PAUSES_OWN_CPU 256u  /* about 3 us: longer than a hand-over between two cores */
#define PAUSES_SHARED_CPU 0u /* whoever spins here keeps the peer from running */
#define SPINS_VAIN 8u	     /* in a row: the peers don't run while we spin */
#define SPARED_SPINS 16u     /* then one wait of so many spins again */
#define YIELDS 1000u         /* about 1 ms with a neighbour: a training step's jitter stays awake */
#define YIELDS_A_CLOCK 32u   /* where they are short */
#define YIELDS_A_CLOCK_GROWS 4u
#define CROWDED_NS (4 * RR_NS_PER_MS) /* a yield that takes so long has let others have their whole turns: they don't wait for us */
#define YIELD_NS_MIN 2000u   /* a shorter one has let nobody run: 0.5 to 1.5 us against 3 and more */
#define VAIN_YIELDS 64u      /* then sleep: see yield_on() */
#define EVENTS_MAX 16
#define LOOK_NS (2 * RR_NS_PER_MS)
#define NAP_NS 20000         /* beside a device at work: shorter than the timer's slack is no nap */
#define SLEEP_NS (10 * RR_NS_PER_MS) /* a waker is certain; this bounds how late a death is seen */

uint32_t rr_wait_pauses(int32_t ranks_here)
{
	cpu_set_t set;
	int cpus = 1;

	if (sched_getaffinity(0, sizeof(set), &set) == 0)
		cpus = CPU_COUNT(&set);
	/* A rank pinned to one CPU shares it as likely as not: count the machine's then. */
	if (cpus == 1)
		cpus = (int)sysconf(_SC_NPROCESSORS_ONLN);
	return ranks_here <= cpus ? PAUSES_OWN_CPU : PAUSES_SHARED_CPU;
}

uint32_t rr_spin_pauses(struct rr_spin *spin)
{
	if (spin->vain < SPINS_VAIN)
		return spin->pauses;
	return ++spin->spared % SPARED_SPINS == 0 ? spin->pauses : 0;
}

void rr_spin_ended(struct rr_spin *spin, bool within)
{
	if (within)
		spin->vain = 0;
	else if (spin->vain < SPINS_VAIN)
		spin->vain++;
}

/* What we waited for has come, or we leave: what the spin was worth, and how the next wait begins. */
static void ended(struct rr_wait *wait)
{
	if (wait->idle == 0)
		return;
	if (wait->pauses)
		rr_spin_ended(wait->spin, wait->idle <= wait->pauses);
	wait->pauses = rr_spin_pauses(wait->spin);
	wait->idle = 0;
}

void rr_wait_start(struct rr_wait *wait, struct rr_spin *spin, uint32_t yields, int sleeper)
{
	wait->spin = spin;
	wait->idle = 0;
	wait->vain = 0;
	wait->vain_max = yields || spin->pauses >= PAUSES_OWN_CPU ? UINT32_MAX : VAIN_YIELDS;
	wait->pauses = rr_spin_pauses(spin);
	wait->yields = yields ? yields : YIELDS;
	wait->sleeper = sleeper;
	wait->awake = false;
	wait->sleepy = false;
	wait->looked_ns = 0;
	wait->unclocked = 0;
	wait->yields_a_clock = 1;
	wait->clock_ns = 0;
	wait->crowded = false;
}

void rr_wait_moved(struct rr_wait *wait, struct rr_page *page)
{
	ended(wait);
	wait->vain = 0;
	if (wait->sleepy)
		rr_wait_stop(wait, page);
}

void rr_wait_stop(struct rr_wait *wait, struct rr_page *page)
{
	ended(wait);
	if (wait->sleepy)
		rr_note32(&page->sleeping, RR_SLEEPS_NOT);
	wait->sleepy = false;
}

/*
 * Ranks that share a processor hand it over by yielding. But Linux passes it on within a group of tasks only, and
 * every session is one (autogroup), every container another: between groups only sleep hands over. False: it seems so.
 */
static bool yield_on(struct rr_wait *wait)
{
	if (wait->vain_max == UINT32_MAX) {
		sched_yield();
		return true;
	}
	uint64_t begin = rr_now_ns();
	sched_yield();
	wait->vain = rr_now_ns() - begin < YIELD_NS_MIN ? wait->vain + 1 : 0;
	return wait->vain < wait->vain_max;
}

static bool is_time(struct rr_wait *wait, uint64_t now)
{
	if (wait->looked_ns == 0)
		wait->looked_ns = now;
	if (now - wait->looked_ns < LOOK_NS)
		return false;
	wait->looked_ns = now;
	return true;
}

static bool time_to_look(struct rr_wait *wait)
{
	return is_time(wait, rr_now_ns());
}

/*
 * The clock is read seldom while yields are short. With others in the queue one may take tens of milliseconds: then it is
 * read after each, or a loaded machine would let seconds pass between two looks.
 */
static bool time_to_look_yielding(struct rr_wait *wait)
{
	uint64_t now, before = wait->clock_ns;

	if (++wait->unclocked < wait->yields_a_clock)
		return false;
	now = rr_now_ns();
	if (before) {
		wait->crowded = now - before > (uint64_t)wait->unclocked * CROWDED_NS;
		if (wait->crowded) /* who is woken runs before those that have been running, who yields after all of them */
			wait->idle = wait->pauses + wait->yields;
	}
	wait->yields_a_clock = before && now - before > LOOK_NS ? 1 : wait->yields_a_clock * YIELDS_A_CLOCK_GROWS;
	wait->yields_a_clock = wait->yields_a_clock < YIELDS_A_CLOCK ? wait->yields_a_clock : YIELDS_A_CLOCK;
	wait->unclocked = 0;
	wait->clock_ns = now;
	return is_time(wait, now);
}

/* Connections between nodes are the watch's; whoever put them into the epoll gave them 0. */
static bool about_edges(const struct epoll_event *events, int count)
{
	for (int i = 0; i < count; i++)
		if (events[i].data.u64 == 0)
			return true;
	return false;
}

/* Edge-triggered: what came since the last pass began is told at once, what is known is not told again. */
static bool sleep_on_epoll(struct rr_wait *wait)
{
	struct epoll_event events[EVENTS_MAX];
	int count = epoll_wait(wait->sleeper, events, EVENTS_MAX, (int)(SLEEP_NS / RR_NS_PER_MS));

	return time_to_look(wait) || (count > 0 && about_edges(events, count));
}

bool rr_wait_step(struct rr_wait *wait, struct rr_page *page)
{
	struct timespec limit = {.tv_nsec = (long)SLEEP_NS}, nap = {.tv_nsec = NAP_NS};

	wait->idle++;
	if (wait->idle <= wait->pauses) {
		rr_pause();
		return false;
	}
	if (wait->idle <= wait->pauses + wait->yields) {
		if (!yield_on(wait))
			wait->idle = wait->pauses + wait->yields;
		return time_to_look_yielding(wait);
	}
	if (wait->awake) {
		nanosleep(&nap, NULL);
		return time_to_look(wait);
	}
	if (!wait->sleepy) {
		/* Say so, then look once more; pairs with rr_shm_wake(). */
		wait->bell = rr_observe32(&page->bell);
		rr_note32(&page->sleeping, wait->sleeper < 0 ? RR_SLEEPS_ON_FUTEX : RR_SLEEPS_ON_EPOLL);
		rr_store_before_load();
		wait->sleepy = true;
		return false;
	}
	if (wait->sleeper >= 0)
		return sleep_on_epoll(wait);
	/* If the bell rang since the last pass began, its value differs and the kernel returns at once. */
	syscall(SYS_futex, &page->bell, FUTEX_WAIT, wait->bell, &limit, NULL, 0);
	wait->bell = rr_observe32(&page->bell);
	return time_to_look(wait);
}
