/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA devices: found when the first is asked for, used without disturbing
 * whoever else uses them in this process.
 *
 * What the trainer's thread has is left as it was: its current context is put
 * back after each call, the primary context of a device is the one that the
 * trainer's framework uses as well and is never made, reset or reconfigured by
 * us, its streams are waited for by events and never synchronized, and while
 * one captures, nothing is done.
 *
 * Thread-safety: any thread, unless a function says otherwise. Not after
 * fork(): the driver serves the process that initialized it and no other.
 */
#ifndef SK_CACHE_CUDA_CUDA_H
#define SK_CACHE_CUDA_CUDA_H

#include "base/error.h"
#include "base/os.h"
#include "base/util.h"
#include "bytes/copy.h"

struct sk_cuda;
struct sk_cuda_device;
struct sk_cuda_driver;		/* driver.h */

/** Opens and initializes nothing yet. -ENOMEM. */
int sk_cuda_new(const struct sk_os *os, struct sk_cuda **ret_cuda,
		struct sk_err *err);
/** Lets go of the devices; nothing may be under way on them. NULL is fine.
 * Returns NULL. */
struct sk_cuda *sk_cuda_free(struct sk_cuda *cuda);
SK_DEFINE_CLEANUP(struct sk_cuda *, sk_cuda_free)

/**
 * The device of that ordinal. The first call opens the driver and initializes
 * it, the first for a device retains its primary context. *ret_device is
 * @cuda's.
 * Errors: -ENODEV with a sentence: no driver, no such device, or another
 * process has it for itself; -ENOMEM; -EIO the driver failed.
 */
int sk_cuda_device(struct sk_cuda *cuda, int ordinal,
		   struct sk_cuda_device **ret_device, struct sk_err *err);

/**
 * The first device that takes contexts of one process at a time, as its compute
 * mode says (exclusive-process), by its ordinal; -1: none does, or there is no
 * driver. No context is made.
 */
int sk_cuda_exclusive(struct sk_cuda *cuda);

/**
 * Whether something was asked of the device that may never end, as of a library
 * that hangs. Meanwhile none of our calls waits for all that it has to do: what
 * sk_cuda_release() is given stays, and sk_cuda_is_stuck() says why (-EIO; 0:
 * it is not). Thread-safe.
 */
void sk_cuda_set_stuck(struct sk_cuda_device *device, bool stuck);
int sk_cuda_is_stuck(const struct sk_cuda_device *device, struct sk_err *err);

/** The calling thread, while it uses a device. */
struct sk_cuda_scope {
	const struct sk_cuda_driver *driver;
	unsigned mode;		/* of capturing, which it had before */
};

/**
 * Makes the device's context the calling thread's current one, until
 * sk_cuda_leave(); none of our calls is then part of, or harms, what another
 * stream captures. Errors: as sk_cuda_driver_failed().
 */
int sk_cuda_enter(const struct sk_cuda_device *device,
		  struct sk_cuda_scope *ret_scope, struct sk_err *err);
/** The thread has the context again that it had. */
void sk_cuda_leave(const struct sk_cuda_scope *scope);

/* ---- memory ---- */

/** @bytes of memory of the device, at an address of its. -ENOMEM; -EIO. */
int sk_cuda_alloc(const struct sk_cuda_device *device, uint64_t bytes,
		  uint64_t *ret_ptr, struct sk_err *err);
/** Bytes of the device that nobody has just now; UINT64_MAX: the driver does
 * not tell. Waits for nothing. */
uint64_t sk_cuda_left(const struct sk_cuda_device *device);
/** Waits for all that the device does; 0 is fine. */
void sk_cuda_release(const struct sk_cuda_device *device, uint64_t ptr);

/** Device memory that was allocated at once. */
struct sk_cuda_range {
	uint64_t from, to;	/* addresses */
	uint64_t id;		/* of the allocation; never given again */
};

/**
 * The allocation that @ptr lies in.
 * Errors: -EFAULT it is no memory of @device; -EIO.
 */
int sk_cuda_find(const struct sk_cuda_device *device, uint64_t ptr,
		 struct sk_cuda_range *ret_range, struct sk_err *err);

/** Bytes of host memory that are page-locked by one call, and that one copy
 * moves at most. Other calls wait for it, the trainer's too: an H200 took 40 ms
 * for a GiB, 11 for a quarter of it, 3 for 64 MiB. */
#define SK_CUDA_PIECE ((uint64_t)128 << 20)

/** Page-locked host memory, in pieces. */
struct sk_cuda_lock;

/**
 * Page-locks [map, map + bytes), for all devices, @piece bytes at a time: all
 * of it or nothing. What it returns ends before the memory is unmapped.
 * Errors: -ENOMEM; -EIO the driver does not, with its reason: copies are
 * slower then, and hold the thread that asks for them.
 */
int sk_cuda_lock(const struct sk_cuda_device *device, void *map,
		 uint64_t bytes, uint64_t piece,
		 struct sk_cuda_lock **ret_lock, struct sk_err *err);
/** No copy may be under way in it. NULL is fine. Returns NULL. */
struct sk_cuda_lock *sk_cuda_unlock(struct sk_cuda_lock *lock);

/**
 * The NUMA node of the host that the device is nearest to, as the driver says
 * it (12.2 and later), else as the kernel does of its place on the bus; -1:
 * neither knows one. Any thread.
 */
int sk_cuda_numa_node(const struct sk_os *os,
		      const struct sk_cuda_device *device);

/* ---- lanes ---- */

/** Bytes that one call moves over the link at first: what else wants to pass,
 * the trainer's copies first of all, comes between two of them (turn.c). */
#define SK_CUDA_CHUNK ((uint64_t)16 << 20)

/**
 * A stream of ours: copies of low priority, which neither wait for what the
 * trainer does on its streams nor make it wait, but where that is asked for.
 * What is asked for runs in that order, later. Any thread may ask.
 */
struct sk_cuda_lane;

int sk_cuda_lane_new(struct sk_cuda_device *device,
		     struct sk_cuda_lane **ret_lane, struct sk_err *err);
/** Nothing may be under way on it. NULL is fine. Returns NULL. */
struct sk_cuda_lane *sk_cuda_lane_free(struct sk_cuda_lane *lane);

/**
 * What comes on @lane runs after all that @stream has now: a CUstream as a
 * number, of any device or context; 0 the default stream of the lane's device.
 * Errors: -EBUSY the stream captures: what is ordered after it would become
 * part of the trainer's graph; -EIO.
 */
int sk_cuda_lane_follow(struct sk_cuda_lane *lane, uint64_t stream,
			struct sk_err *err);

/**
 * Copies the bytes [from, to) of @copy, in row-major order, between the
 * device and the host, of a @copy that need not outlive the call. @lock: what
 * the host's side is locked by, or NULL. Rows of a regular distance are one
 * call, and so are planes of those, of SK_CUDA_CHUNK at most; elements that lie
 * apart, as of a transposed tensor, are a few by a kernel of ours, where it is
 * to be had, for which the lane takes 8 MiB of the device; contiguous
 * copies are asked for thousands at a time, where the driver can, at the
 * latest by sk_cuda_mark_set() or sk_cuda_lane_finish(), which then say what
 * came of it.
 * Errors: -EIO.
 */
int sk_cuda_lane_out(struct sk_cuda_lane *lane, const struct sk_copy *copy,
		     uint64_t from, uint64_t to,
		     const struct sk_cuda_lock *lock, struct sk_err *err);
int sk_cuda_lane_in(struct sk_cuda_lane *lane, const struct sk_copy *copy,
		    uint64_t from, uint64_t to,
		    const struct sk_cuda_lock *lock, struct sk_err *err);

/** The same where both sides are memory of the device. */
int sk_cuda_lane_across(struct sk_cuda_lane *lane, const struct sk_copy *copy,
			uint64_t from, uint64_t to, struct sk_err *err);

/** Has what the lane's copies, and checksums, may need of code and memory of the
 * device now, which may wait for all that the device does, and no more where
 * they need it. What fails is done without. */
void sk_cuda_warm(struct sk_cuda_lane *lane);

/** Whether it keeps the link until all is done that it has been asked for. At
 * first it gives way to others after each call, which costs 1 to 4 % of the
 * rate: where nobody waits for the link but who waits for this, it need not. */
void sk_cuda_lane_keep(struct sk_cuda_lane *lane, bool keep);
/** Whether what is asked for from here on leaves kernels to others: no kernel
 * of ours copies what is small, and batches are asked for with the driver's flag
 * for that. Elements that lie apart go by one all the same. */
void sk_cuda_lane_overlap(struct sk_cuda_lane *lane, bool overlap);

/** Its stream, a CUstream as a number, for libraries that launch on one. */
uint64_t sk_cuda_lane_stream(const struct sk_cuda_lane *lane);

/** Waits until all that was asked for is done. Errors: -EIO it, or anything
 * before it, failed. */
int sk_cuda_lane_finish(struct sk_cuda_lane *lane, struct sk_err *err);

/** Waits for all streams of the device, the trainer's too. -EBUSY one captures a
 * graph, which is spoilt; -EIO. */
int sk_cuda_settle(const struct sk_cuda_device *device, struct sk_err *err);

/* ---- marks ---- */

/** A point of a lane, to be waited for. */
struct sk_cuda_mark;

int sk_cuda_mark_new(struct sk_cuda_device *device,
		     struct sk_cuda_mark **ret_mark, struct sk_err *err);
/** NULL is fine. Returns NULL. */
struct sk_cuda_mark *sk_cuda_mark_free(struct sk_cuda_mark *mark);
/** It is now where the lane's last request ends, whatever comes of those that
 * were not asked for yet, which it says. */
int sk_cuda_mark_set(struct sk_cuda_mark *mark, struct sk_cuda_lane *lane,
		     struct sk_err *err);
/** Has @stream wait for it, and nobody else; a stream as sk_cuda_lane_follow()
 * takes them. -EBUSY it captures; -EIO. */
int sk_cuda_mark_hold(const struct sk_cuda_mark *mark, uint64_t stream,
		      struct sk_err *err);
/** Whether it is reached; who asks waits for nobody. -EIO: as
 * sk_cuda_lane_finish(). */
int sk_cuda_mark_reached(const struct sk_cuda_mark *mark, bool *ret_reached,
			 struct sk_err *err);
/** Waits until it is reached; one that was never set is. -EIO: as
 * sk_cuda_lane_finish(). */
int sk_cuda_mark_wait(const struct sk_cuda_mark *mark, struct sk_err *err);

#endif
