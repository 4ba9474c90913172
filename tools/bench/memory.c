/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory beyond the slots: what the agent and the library use on top of the
 * slots themselves. Anonymous memory less the trainer's tensors, page tables,
 * and shared memory that is not a slot (headers, lists).
 */
#include <stdio.h>

#include "state.h"

static uint64_t own(const char *pid)
{
	char path[64];

	(void)snprintf(path, sizeof(path), "/proc/%s/status", pid);
	return 1024 * (first_number(path, "RssAnon:") +
		       first_number(path, "VmPTE:"));
}

void measure_memory(struct bench *b, int rank, uint64_t tensors)
{
	uint64_t bytes = own("self");

	b->shared->extra[rank] = bytes > tensors ? bytes - tensors : 0;
	b->shared->slot_bytes[rank] = 2 * (tensors + (1 << 20));
}

uint64_t agent_extra(struct bench *b, double *ret_shmem)
{
	char pid[16], path[64];

	(void)snprintf(pid, sizeof(pid), "%d", (int)b->agent);
	(void)snprintf(path, sizeof(path), "/proc/%s/status", pid);
	if (ret_shmem)
		*ret_shmem = 1024.0 * (double)first_number(path, "RssShmem:");
	return own(pid);
}
