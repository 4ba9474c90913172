/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of a device that several processes share.
 *
 * It has no address of its own: a descriptor stands for it, which is handed on
 * as any other is, and each process that is to copy maps it. It lives as long
 * as anybody has a descriptor or a mapping of it, whoever made it, and whoever
 * was killed. Who only keeps descriptors needs neither driver nor context.
 *
 * Devices go by their UUID between processes: ordinals are each one's own.
 */
#ifndef SK_CACHE_CUDA_SHARE_H
#define SK_CACHE_CUDA_SHARE_H

#include "cuda/cuda.h"

/** A device, or a part of one that is used as such, on this machine. */
struct sk_cuda_uuid {
	uint8_t bytes[16];
};

/** -ENODEV this driver does not tell, -EIO. */
int sk_cuda_uuid(const struct sk_cuda_device *device,
		 struct sk_cuda_uuid *ret_uuid, struct sk_err *err);

/**
 * Whether it is an instance of a GPU that is split (MIG): a device of its own
 * to whoever has it, with memory and a UUID of its own.
 */
bool sk_cuda_is_instance(const struct sk_cuda_device *device);

/**
 * Whether this process sees the device of that UUID; no context is made. Of
 * instances a process sees one, the first, or that which $CUDA_VISIBLE_DEVICES
 * named when the driver was initialized.
 * Errors: as sk_cuda_device_by_uuid().
 */
int sk_cuda_sees(struct sk_cuda *cuda, const struct sk_cuda_uuid *uuid,
		 struct sk_err *err);

/** Whether the device of that UUID, which this process sees, takes contexts of
 * one process at a time; no context is made. */
bool sk_cuda_is_exclusive(struct sk_cuda *cuda,
			  const struct sk_cuda_uuid *uuid);

/**
 * The device of that UUID. As sk_cuda_device(). -ENODEV too where this process
 * sees none of that UUID.
 */
int sk_cuda_device_by_uuid(struct sk_cuda *cuda,
			   const struct sk_cuda_uuid *uuid,
			   struct sk_cuda_device **ret_device,
			   struct sk_err *err);

/**
 * Makes memory of the device: at least @bytes, rounded up as the device has it,
 * *ret_bytes in all; what it holds is not told. The caller owns *ret_fd, which
 * is closed on exec.
 * Errors: -ENOMEM the device has no room; -ENODEV it cannot share memory; -EIO.
 */
int sk_cuda_share_new(const struct sk_cuda_device *device, uint64_t bytes,
		      int *ret_fd, uint64_t *ret_bytes, struct sk_err *err);

/** Shared memory as this process has it mapped. */
struct sk_cuda_share;

/**
 * Maps all @bytes of the memory that @fd stands for, for copies of the device;
 * the caller keeps @fd, and may close it. It may be of memory that another
 * process holds (held.h), which is always writable. @writable false: a copy
 * that writes to it breaks the context, so nothing of a trainer's is ever mapped
 * so.
 * Errors: -EBADF it stands for no memory of this device; -ENODEV; -ENOMEM;
 * -EIO.
 */
int sk_cuda_share_map(const struct sk_cuda_device *device, int fd,
		      uint64_t bytes, bool writable,
		      struct sk_cuda_share **ret_share, struct sk_err *err);
/** Nothing may be under way in it. NULL is fine. Returns NULL. */
struct sk_cuda_share *sk_cuda_share_unmap(struct sk_cuda_share *share);
/** Whether it was there until now, with what was copied there and out of it so
 * far: of memory that another process held (held.h) that has ended, nobody can
 * tell what was. */
bool sk_cuda_share_lives(const struct sk_cuda_share *share);
/** Its address, for copies of the device. */
uint64_t sk_cuda_share_ptr(const struct sk_cuda_share *share);

SK_DEFINE_CLEANUP(struct sk_cuda_share *, sk_cuda_share_unmap)

#endif
