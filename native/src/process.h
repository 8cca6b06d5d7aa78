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

/* Of this process: the inode of its pid namespace. 0: it cannot be told. */
uint64_t rr_process_pid_namespace(void);

/* Fails with RR_ERR_SYSTEM: the kernel gave no descriptor for `purpose`, as the process may have no more. */
rr_status rr_process_out_of_files(const char *purpose);

#endif
