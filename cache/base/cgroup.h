/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory cgroups, of version 1 and 2: which one a process is in, and what it
 * may take there.
 *
 * A page is charged to the group of whoever touches it first. What a process
 * cannot see of the groups (a namespace, another mount) is not found on the
 * way up; the group that is mounted as the root then stands for it.
 */
#ifndef SK_CACHE_BASE_CGROUP_H
#define SK_CACHE_BASE_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/os.h"

#define SK_CGROUP_ROOM 4096u

struct sk_cgroup {
	unsigned version;		/* 1 or 2; 0: there are none */
	char path[SK_CGROUP_ROOM];	/* below the root, "/" or "/a/b" */
};

/** The memory cgroup of process @pid, or of this one ("self"). Where the
 * system has none, 0 and version 0. Errors: those of reading /proc/PID/cgroup;
 * -EFBIG. */
int sk_cgroup_of(const struct sk_os *os, const char *pid,
		 struct sk_cgroup *ret_group);

/** Bytes that the group may take: its limit, or one that it lies in, whichever
 * is least. UINT64_MAX: there is no limit. */
uint64_t sk_cgroup_limit(const struct sk_os *os,
			 const struct sk_cgroup *group);

/** Whether what process @pid touches first is charged to another group than
 * what we do. Also where nobody can tell. */
bool sk_cgroup_differs(const struct sk_os *os, pid_t pid);

/** Bytes of memory that this process can have at all: the machine's, or the
 * limit of its group if that is less. */
uint64_t sk_memory_total(const struct sk_os *os);

#endif
