/*
 * process.h - what the kernel says of a process of this machine.
 *
 * Threads: any; there is no state.
 */
#ifndef RR_PROCESS_H
#define RR_PROCESS_H

#include "rdmaring.h"

/* start_time: in clock ticks since boot, to tell a process from a later one of the same number; 0: not compared. */
rr_life rr_process_life(int32_t pid, uint64_t start_time);
/* Of this process. 0: it cannot be told. */
uint64_t rr_process_start_time(void);

#endif
