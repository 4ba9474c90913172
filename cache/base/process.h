/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tells a process from all others of this machine's life, also where its
 * number was given again: proc_pid_stat(5), starttime.
 */
#ifndef SK_CACHE_BASE_PROCESS_H
#define SK_CACHE_BASE_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/os.h"

/** All zeros: not known which. Without padding, it may be kept. */
struct sk_process {
	uint64_t born;		/* ticks since the machine began */
	int32_t pid;		/* as this process counts them */
	uint32_t space;		/* the namespace in which it does */
};

/** The one that has this number now; where /proc does not tell, or @pid is not
 * above 0, all zeros. */
void sk_process_of(const struct sk_os *os, pid_t pid,
		   struct sk_process *ret);
/** Whose child it is; 0: not to be had, or of none that /proc has. */
pid_t sk_process_parent(const struct sk_os *os, pid_t pid);
/** It has ended, for certain: of one that is not known, or of another
 * namespace, that is never said. */
bool sk_process_gone(const struct sk_os *os, const struct sk_process *p);

#endif
