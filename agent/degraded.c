/* SPDX-License-Identifier: Apache-2.0 */
#include "degraded.h"

#include <assert.h>
#include <stdio.h>

#include "agent.h"

const struct degraded_info degraded_infos[DEGRADED_COUNT] = {
	[DEGRADED_STORE_FULL] = { "store-full",
		"the store has no room for what is to be flushed; it stays in "
		"memory and is tried again",
		"free space there, or files where df -i has none left, or keep "
		"less: cachectl retain, unpin, evict --disk, or --keep-last, "
		"--keep-bytes and a reload" },
	[DEGRADED_STORE_ERROR] = { "store-error",
		"the store does not take what is to be flushed; it stays in "
		"memory and is tried again",
		"where it may not write (permission denied), give the store to "
		"the agent's user; else look at the disk and the kernel's log; "
		"nothing that failed is called durable" },
	[DEGRADED_STORE_GONE] = { "store-gone",
		"the store's directory cannot be opened, or is not mounted",
		"mount or make it again; the agent goes on with it by itself" },
	[DEGRADED_STORE_HANGS] = { "store-hangs",
		"the store does not answer; snapshots stay in memory",
		"look at the file server or the disk" },
	[DEGRADED_STORE_READ_ONLY] = { "store-read-only",
		"the store's filesystem takes no writes (read-only)",
		"mount it for writing; after an error the kernel may have "
		"changed that itself, see its log; for a unit of systemd "
		"ProtectHome= and ProtectSystem= may have, where "
		"ReadWritePaths= helps" },
	[DEGRADED_STORE_VOLATILE] = { "store-volatile",
		"the store lies in memory; a power loss empties it",
		"give --store a directory on a disk" },
	[DEGRADED_MEMORY] = { "memory-budget",
		"ranks were refused, as the memory budget has no room for "
		"their slots",
		"raise --memory or --user-memory, evict what is not needed, or "
		"use fewer slots" },
	[DEGRADED_PINS] = { "pins-hold-slots",
		"pins leave a job no slot for its next step: they are of steps "
		"that memory alone has, and that are not written",
		"cachectl unpin such a step, or, where the agent has a store, "
		"cachectl flush it, which goes over a job's word that nothing "
		"be written; where the store fails or is full, mend that; or "
		"use more slots" },
	[DEGRADED_NO_URING] = { "no-io-uring",
		"io_uring is not to be had; threads write instead",
		"allow it: sysctl kernel.io_uring_disabled=0, and the seccomp "
		"profile of the container; then restart the agent" },
	[DEGRADED_NO_DIRECT] = { "no-direct-io",
		"the store's filesystem takes no O_DIRECT; flushes pass the "
		"page cache",
		"put the store on a filesystem that takes it, such as ext4 or "
		"XFS" },
	[DEGRADED_SMALL_PAGES] = { "small-pages",
		"slots lie in small pages; faulting in and mapping take longer",
		"echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled "
		"(Linux 6.1 needs no more than that it is not deny), and free "
		"memory; the agent goes on by itself, within an hour" },
	[DEGRADED_MEMLOCK] = { "memlock",
		"the limit of locked memory is below 64 MiB; buffers are not "
		"registered and slots for GPUs not page-locked",
		"LimitMEMLOCK=infinity in the unit, or ulimit -l unlimited" },
	[DEGRADED_GPU_PAGEABLE] = { "gpu-pageable",
		"the driver of a rank does not page-lock its slots; what its "
		"GPUs copy goes through the driver's own buffers, more slowly",
		"ulimit -l unlimited where the trainer starts, and a sandbox "
		"that lets it lock memory; it is tried again within an hour" },
	[DEGRADED_GPU_EXCLUSIVE] = { "gpu-exclusive",
		"a GPU takes one process at a time; there are no device slots "
		"there, and snapshots go straight to memory",
		"nvidia-smi --compute-mode=DEFAULT, and start the job anew; or "
		"the agent without --device-memory" },
	[DEGRADED_KEEPER] = { "keeper-gone",
		"the keeper is gone; what memory holds will not outlive this "
		"agent",
		"shardkeepd --takeover, or a restart, when that suits" },
	[DEGRADED_SOCKET] = { "socket-lost",
		"another agent serves at this one's socket, or it cannot be "
		"made again; who is connected is served",
		"stop one of the two agents" },
	[DEGRADED_METRICS_PORT] = { "metrics-port",
		"metrics cannot be served at the address",
		"free the port, or give --metrics another one; 0 takes any" },
	[DEGRADED_METRICS_FILE] = { "metrics-file",
		"the file of metrics cannot be written",
		"make its directory, and let the agent's user write there" },
};

void degraded_set(struct agent *a, enum degraded_id id, const char *why)
{
	struct degraded_state *s = &a->degraded.v[id];
	const struct degraded_info *info = &degraded_infos[id];

	assert(id < DEGRADED_COUNT && info->name);
	(void)snprintf(s->why, sizeof(s->why), "%s", why ? why : "");
	if (s->on)
		return;
	s->on = true;
	s->since_ns = agent_now(a);
	log_warning(a, "degraded: %s: %s%s%s; %s", info->name, info->what,
		    *s->why ? ": " : "", s->why, info->remedy);
}

void degraded_clear(struct agent *a, enum degraded_id id)
{
	struct degraded_state *s = &a->degraded.v[id];

	assert(id < DEGRADED_COUNT);
	if (!s->on)
		return;
	s->on = false;
	log_info(a, "no longer degraded: %s, after %llu s",
		 degraded_infos[id].name, (unsigned long long)
		 ((agent_now(a) - s->since_ns) / 1000000000));
}

void degraded_is(struct agent *a, enum degraded_id id, bool on,
		 const char *why)
{
	if (on)
		degraded_set(a, id, why);
	else
		degraded_clear(a, id);
}
