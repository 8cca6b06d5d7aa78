/*
 * process.h - what the kernel says of a process of this machine.
 *
 * Threads: any; there is no state.
 */
#ifndef RR_PROCESS_H
#define RR_PROCESS_H

#include "rdmaring.h"

/* Of this process, in clock ticks since boot: it tells a process from a later one of the same number. 0: it cannot be told. */
uint64_t rr_process_start_time(void);

#endif
