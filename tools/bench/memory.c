/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory beyond the slots: what the agent and the library use on top of the
 * slots themselves. Anonymous memory less the trainer's tensors, page tables,
 * and shared memory that is not a slot (headers, lists).
 */
#include <stdio.h>
#include <string.h>

#include "state.h"

static uint64_t read_kib(const char *path, const char *key)
{
	char line[256];
	unsigned long long kib = 0;
	FILE *f = fopen(path, "re");

	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, key, strlen(key)) &&
		    sscanf(line + strlen(key), ": %llu", &kib) == 1)
			break;
	if (f)
		fclose(f);
	return (uint64_t)kib * 1024;
}

static uint64_t own(const char *pid)
{
	char path[64];
	uint64_t bytes;

	(void)snprintf(path, sizeof(path), "/proc/%s/status", pid);
	bytes = read_kib(path, "RssAnon") + read_kib(path, "VmPTE");
	return bytes;
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
		*ret_shmem = (double)read_kib(path, "RssShmem");
	return own(pid);
}
