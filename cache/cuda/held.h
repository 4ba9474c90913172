/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of a device that one process holds for others, where a driver gives
 * no descriptors for memory (share.h): as under Windows, and where GPUs are
 * shared out among guests. The process hands out a token (base/token.h), which
 * says by which of the driver's older handles (cuIpc) others open it, and is
 * taken for a descriptor by sk_cuda_share_map().
 *
 * It lives as long as anybody has the token, as memory with a descriptor does;
 * but it ends with its holder, and with its holder only what nobody uses ends
 * well: who uses it asks sk_cuda_share_lives() afterwards.
 */
#ifndef SK_CACHE_CUDA_HELD_H
#define SK_CACHE_CUDA_HELD_H

#include "cuda/cuda.h"

struct sk_cuda_held;

/** Whether devices' memory is handed out so: the device gives no descriptors,
 * or $SHARDKEEP_CUDA_DESCRIPTORS is "0". */
bool sk_cuda_is_held(const struct sk_cuda_device *device);

/**
 * As sk_cuda_share_new(); *ret_fd stands for memory of this process, which is
 * put into *@list, empty at first: NULL. The device outlives that. What a
 * process holds it cannot open itself.
 * Errors: -ENOMEM; -ENODEV it cannot share memory so either; -EIO.
 */
int sk_cuda_held_new(const struct sk_cuda_device *device, uint64_t bytes,
		     struct sk_cuda_held **list, int *ret_fd,
		     uint64_t *ret_bytes, struct sk_err *err);
/** Frees that of which nobody has *ret_fd, or what it stands for, any more. */
void sk_cuda_held_sweep(struct sk_cuda_held **list);
/** The same, until it is empty; @until_ns of the clock at the latest. */
void sk_cuda_held_wait(struct sk_cuda_held **list, uint64_t until_ns);
/** Frees all: what others have stands for nothing from then on. */
void sk_cuda_held_end(struct sk_cuda_held **list);

/**
 * For share.c, within the device's context: opens what @token stands for; the
 * token stays the caller's, who keeps one until it is closed again.
 * Errors: -ENOTSOCK @token is none; -EBADF it stands for no memory of this
 * device, or of a process that is gone or of this one; -ENODEV.
 */
int sk_cuda_held_open(const struct sk_cuda_device *device, int token,
		      uint64_t bytes, uint64_t *ret_ptr, struct sk_err *err);
void sk_cuda_held_close(const struct sk_cuda_device *device, uint64_t ptr);

#endif
