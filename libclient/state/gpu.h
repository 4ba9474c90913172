/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPUs that a state's tensors lie on: their pointers checked, a lane of
 * ours on each, slots page-locked for them.
 *
 * With state->lock held, unless a function says otherwise.
 */
#ifndef SK_LIBCLIENT_STATE_GPU_H
#define SK_LIBCLIENT_STATE_GPU_H

#include <pthread.h>
#include <stdint.h>

#include "base/error.h"
#include "base/pool.h"
#include "cuda/cuda.h"

struct sk_local;		/* local.h */
struct sk_state;		/* state.h */

/** Devices of one state. */
#define SK_GPUS_MAX 16

/** An allocation of device memory has no such id. */
#define SK_GPU_NO_ID UINT64_MAX

struct sk_gpu {
	int ordinal;
	struct sk_cuda_device *device;
	struct sk_cuda_lane *lane;
	struct sk_cuda_mark *copied;	/* where the last snapshot's copies
					 * end */
};

/** An allocation that tensors lie in, and what the driver said of it. */
struct sk_gpu_alloc {
	uint64_t at;			/* what it was asked about */
	struct sk_cuda_range range;
	int gpu;			/* the state's */
};

/** All of those, each once. */
struct sk_gpu_known {
	struct sk_gpu_alloc *v;
	uint32_t n, room;
	uint32_t used;			/* a bit for each device of them */
	bool whole;			/* of what is described now */
};

struct sk_device_limits;	/* restore/device-pass.h */

/** Those that are there stay as they are: whoever knows a number needs no
 * lock. */
struct sk_gpus {
	struct sk_gpu v[SK_GPUS_MAX];
	int n;			/* atomic */
	pthread_mutex_t locking;	/* of slots' locks */
	uint64_t locked_bytes;	/* of them; atomic */
	struct sk_pool *pool;	/* one thread, which waits for devices */
	unsigned copying;	/* snapshots that it has; atomic */
	struct sk_gpu_known known;
	const struct sk_device_limits *limits;	/* of what restores do there at
						 * once; NULL: as devices like
						 * it. For tests */
};

/** The number of a device among the state's, which has it from now on.
 * Errors: as sk_gpu_describe(). */
int sk_gpu_use(struct sk_state *state, int ordinal, struct sk_err *err);

/**
 * Finds the device of a local that lies on one, and what its pointers point
 * at; the first opens the driver. A local that holds nothing needs neither.
 * Errors: -ENODEV no driver, or no such device; -EFAULT it is no memory of
 * that device; -E2BIG too many devices; -ENOMEM, -EAGAIN; -EIO.
 */
int sk_gpu_describe(struct sk_state *state, struct sk_local *local,
		    struct sk_err *err);
/** Whether it still lies where it was described. -EFAULT: freed since, or
 * allocated anew. */
int sk_gpu_check(const struct sk_state *state, const struct sk_local *local,
		 struct sk_err *err);
/** That of all locals; *ret_used has a bit for each device that they lie on.
 * Takes as long as there are allocations that they lie in, but the first time
 * after something was described. */
int sk_gpus_check(struct sk_state *state, uint32_t *ret_used,
		  struct sk_err *err);
/** Something was described anew, or is described no longer. */
void sk_gpus_forget_known(struct sk_state *state);

/** The NUMA node that slots for the state's device tensors should lie on: that
 * of the first device that has one; -1: it has no GPU, or nobody knows. */
int sk_gpus_numa_node(const struct sk_state *state);

/** What is asked of the lanes in @used, a bit each, from here on comes after
 * all that @stream has now. Needs no lock. -EBUSY it captures; -EIO. */
int sk_gpus_follow(const struct sk_state *state, uint32_t used,
		   uint64_t stream, struct sk_err *err);

/** Loads what the devices run of ours, so that no copy waits for it. Any
 * thread, no lock. */
void sk_gpus_warm(const struct sk_state *state);
/** Page-locks a mapped slot, unless there is no GPU or that was tried already;
 * copies work without, more slowly. Any thread, no lock. */
void sk_gpus_lock_slot(struct sk_state *state, uint32_t slot);
/** The same for what could not be locked, once that is due. Where nobody waits:
 * to lock takes longer than to copy. */
void sk_gpus_lock_again(struct sk_state *state, uint32_t slot);
/** Whether the first would try. Any thread, no lock. */
bool sk_gpus_will_lock(struct sk_state *state, uint32_t slot);
/** The lock of the slot's image of that kind that is @fd's, and of @bytes:
 * *ret_map is where it is mapped. NULL: it is of no slot of ours, or not
 * locked, or slots are being locked now. It stays until slots are unmapped. */
const struct sk_cuda_lock *sk_gpus_find_locked(struct sk_state *state, int fd,
					       int kind, uint64_t bytes,
					       void **ret_map);
/** Whether the driver would not lock some of the slots, the last time that it
 * was asked. Any thread, no lock. */
bool sk_gpus_are_refused_locks(const struct sk_state *state);
/** Before it is unmapped; nobody locks it meanwhile. */
void sk_gpus_unlock_slot(struct sk_state *state, uint32_t slot);
/** Before all else. */
void sk_gpus_init(struct sk_state *state);

/** Lets go of all. No snapshot may be under way. */
void sk_gpus_free(struct sk_state *state);

#endif
