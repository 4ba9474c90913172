/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank with tensors on GPUs, simulated ones or those of the machine. Values
 * are those of the restore scenarios: each tensor has a double in host memory,
 * which is filled and looked at by describing it in place of the device's for
 * a moment. What fails ends the process.
 */
#ifndef SK_TESTS_LIBCLIENT_GPU_RANK_H
#define SK_TESTS_LIBCLIENT_GPU_RANK_H

#include <stdio.h>

#include "libclient/restore/common.h"
#include "sim/trainer.h"

#define GPU_TENSORS 8

/** One tensor of this process's rank: on the device, and its double here; or
 * in host memory alone. */
struct gpu_tensor {
	struct sk_tensor t;
	char *here;
	sk_cu_ptr there;
	size_t bytes;
	int device;		/* -1: host memory */
};

struct gpu_rank {
	struct trainer_cuda cuda;
	struct rank *rank;
	int devices, device;
	sk_cu_stream stream;	/* of device */
	struct gpu_tensor tensors[GPU_TENSORS];
	int n;
};

/** How many devices there are, by a process of its own: before any of this one
 * begins. That is found out once, by a main() before it forks its ranks: these
 * have threads, and what is forked beside them may wait for what one of those
 * held. */
int gpu_devices(void);
/** On device @number, modulo those that there are. */
void gpu_begin(struct gpu_rank *g, struct rank *rank, int number);
/** Makes that device's context the thread's current one. */
void gpu_use_device(struct gpu_rank *g, int device);
/** Describes a tensor of @bytes of memory on @t->device, full of @fill. */
struct gpu_tensor *gpu_add(struct gpu_rank *g, const struct sk_tensor *t,
			   size_t bytes, int fill);
/** The same in host memory. */
struct gpu_tensor *gpu_add_host(struct gpu_rank *g, const struct sk_tensor *t,
				size_t bytes, int fill);
/** Describes it as on its device, or as its double. */
void gpu_describe(struct gpu_rank *g, struct gpu_tensor *x, bool there);
void gpu_describe_all(struct gpu_rank *g, bool there);
/** Describes @n small tensors of 17 to 80 bytes, @each apart from @slab on, an
 * allocation of device 0. Returns the bytes of all. */
uint64_t gpu_describe_many(struct rank *rank, sk_cu_ptr slab, size_t n,
			   size_t each);
/** Writes the values of @step to all tensors and blobs. */
void gpu_fill(struct gpu_rank *g, int64_t step);
/** Elements that are not those of @step; @owner as rank_wrong(). */
uint64_t gpu_wrong(struct gpu_rank *g, int64_t step, int owner);
/** sk_snapshot() after the rank's stream. */
int gpu_snapshot(struct gpu_rank *g, int64_t step, uint32_t flags);
/** The same, fenced, and complete. */
void gpu_complete(struct gpu_rank *g, int64_t step);
/** A count of the simulation's; 0 on real hardware. */
uint64_t gpu_count(const struct gpu_rank *g, const char *what);

/** Bytes of its device slot; 0: it has none. */
uint64_t gpu_device_bytes(struct gpu_rank *g);
/** The agent makes it beside everything else: until it is there, snapshots go
 * straight to the slot. Returns the last step. */
int64_t gpu_until_served(struct gpu_rank *g);

/** On device 0, with a tensor of GPU_BIG bytes, and one of 24,000 in host
 * memory. */
#define GPU_BIG ((size_t)2800000)
void gpu_begin_big(struct gpu_rank *g, struct rank *rank);

/* ---- the agent ---- */

/** The sum of all figures of that name, whatever they are of. */
uint64_t gpu_figure(const struct scene *scene, const char *name);
/** Sends a signal to the agent's children, its workers; how many got it. 0:
 * they are only counted. */
int gpu_workers(const struct scene *scene, int sig);

/** Kills the scene's agent, which has a keeper. */
void gpu_lose_agent(struct scene *scene);
/** Another one takes its place. */
void gpu_replace_agent(struct scene *scene);

#endif
