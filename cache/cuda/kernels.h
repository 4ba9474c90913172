/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Our own code on a GPU (kernels.cl). The library carries it as PTX, and the
 * driver makes the GPU's own code of it when a state is warmed up, or when it is
 * first wanted. A driver that
 * cannot, for lack of its compiler or of the functions, is asked once for each
 * device; everything goes on without.
 *
 * Within this room; hash.h has what others call.
 */
#ifndef SK_CACHE_CUDA_KERNELS_H
#define SK_CACHE_CUDA_KERNELS_H

#include "cuda/private.h"

/** The PTX, ended by a NUL. */
extern const char sk_cuda_kernels_text[];

/** In the order of their names in kernels.c. */
enum sk_cuda_kernel {
	SK_CUDA_KERNEL_PARTS,
	SK_CUDA_KERNEL_LANES,
	SK_CUDA_KERNEL_MERGE,
	SK_CUDA_KERNEL_COPIES,
	SK_CUDA_KERNEL_BOX,
	SK_CUDA_KERNELS
};

/** Of a device that has none yet; nothing is loaded. -ENOMEM. */
int sk_cuda_kernels_new(struct sk_cuda_device *device, struct sk_err *err);
/** Before its context is let go of; nothing of them may run. */
void sk_cuda_kernels_free(struct sk_cuda_device *device);

/**
 * Has them loaded, within its context or not. Any thread. -ENODEV: not with
 * this driver; -ENOMEM: the device had no room; with the reason, the same each
 * time, for whoever copies asks for each tensor.
 */
int sk_cuda_kernels_load(const struct sk_cuda_device *device,
			 struct sk_err *err);
/** The same, but where the device had no room it is asked once more. */
int sk_cuda_kernels_load_now(const struct sk_cuda_device *device,
			     struct sk_err *err);
/** Whether they have been. Any thread; waits for nobody who loads them. */
bool sk_cuda_kernels_are_loaded(const struct sk_cuda_device *device);

/**
 * Launches one that was loaded, @blocks of @threads, as kernels.cl says its
 * parameters: @params has the address of each. -EIO.
 */
int sk_cuda_kernels_launch(const struct sk_cuda_lane *lane,
			   enum sk_cuda_kernel kernel, unsigned blocks,
			   unsigned threads, void **params,
			   struct sk_err *err);
/** The same for who is within the device's context. */
int sk_cuda_kernels_launch_within(const struct sk_cuda_lane *lane,
				  enum sk_cuda_kernel kernel, unsigned blocks,
				  unsigned threads, void **params,
				  struct sk_err *err);

#endif
