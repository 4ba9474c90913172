/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks on their way to tensors of a GPU, from a device slot there or from
 * memory of the host that this process has page-locked: asked for many at a
 * time, hashed where they have arrived, and reported as done once all of that
 * is known to be right. Over the link one batch is hashed while the next one
 * comes.
 */
#ifndef SK_LIBCLIENT_RESTORE_DEVICE_PASS_H
#define SK_LIBCLIENT_RESTORE_DEVICE_PASS_H

#include "restore/device-batch.h"
#include "restore/device-copy.h"
#include "restore/restoring.h"

/* An image in a slot of ours. */
struct sk_device_locked {
	void *map;
	const struct sk_cuda_lock *lock;	/* NULL: none */
};

/** How much of it goes together. */
struct sk_device_limits {
	size_t chunks;		/* of a batch; SK_CUDA_SPANS_MAX at most */
	uint64_t turn;		/* bytes of one that comes over the link */
	uint64_t run;		/* bytes of neighbours that one copy takes */
	uint64_t scratch;	/* bytes of ours that chunks pass through */
};

/* What is done on one GPU for one image. */
struct sk_device_pass {
	struct sk_restoring *rs;
	struct sk_device_limits limits;
	size_t n_jobs;			/* of all images */
	int gpu;
	struct sk_cuda_lane *lane;
	struct sk_cuda_lane *beside;	/* where is hashed what has come; made
					 * late; NULL: on that lane */
	struct sk_cuda_mark *come;	/* the same */
	bool verify;
	uint64_t scratch;		/* made late, too; 0: there is none */
	uint64_t room, used;		/* bytes of it */
	bool no_scratch;		/* the device has no room for it */
	/* Where it comes from: the one, or the other. */
	struct sk_device_copy copy;
	struct sk_device_locked locked;
	bool failed;			/* nothing that is under way counts */
	unsigned at;			/* the batch that is added to; the other
					 * is under way, or empty */
	struct sk_device_batch batches[2];
	/* Neighbours in one allocation, which are copied at once. */
	uint64_t dst, src, bytes, memory;
};

/** As the state's GPUs have them, or else those that fit devices. */
struct sk_device_limits sk_device_limits_of(const struct sk_state *state);

/** Whether job @i goes to that GPU, and has not gone. */
bool sk_device_pass_is_here(const struct sk_device_pass *d, size_t i);
/** How many of the jobs [from, to) do. */
size_t sk_device_pass_count(const struct sk_device_pass *d, size_t from,
			    size_t to);

/** Has the jobs [from, to), which are all that read one chunk, take it from
 * where it comes from, which is open. Where something fails, d->failed is set;
 * what is not said to be done (struct sk_restore_job's on_device) then is
 * left. */
void sk_device_pass_add(struct sk_device_pass *d, size_t from, size_t to);
/** Whether what arrives can be verified, as far as is known: it needs memory of
 * the device still. */
bool sk_device_pass_can_verify(const struct sk_device_pass *d);
/** Waits for all that was added. Before that is closed. */
void sk_device_pass_finish(struct sk_device_pass *d);
/** Lets go of what it made on the device. */
void sk_device_pass_release(struct sk_device_pass *d);

#endif
