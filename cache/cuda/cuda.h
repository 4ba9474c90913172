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

struct sk_cuda;
struct sk_cuda_device;

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
 * Errors: -ENODEV with a sentence: no driver, or no such device; -ENOMEM;
 * -EIO the driver failed.
 */
int sk_cuda_device(struct sk_cuda *cuda, int ordinal,
		   struct sk_cuda_device **ret_device, struct sk_err *err);

#endif
