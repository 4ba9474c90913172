/* SPDX-License-Identifier: Apache-2.0 */
/* Small copies by a kernel of ours. */
#ifndef SK_CACHE_CUDA_GATHER_H
#define SK_CACHE_CUDA_GATHER_H

#include "cuda/private.h"

/** Bytes from which on a copy within the device is better off alone: what a
 * call of the driver costs counts for little there. */
#define SK_CUDA_GATHER_MOST ((uint64_t)4 << 20)
/** The same over the link, where a copy engine, which the trainer's kernels do
 * not see, is as fast. */
#define SK_CUDA_GATHER_MOST_HOST ((uint64_t)128 << 10)
/** To the device, where the driver takes batches: of copies of this length they
 * come to 46 GB/s on an H200, and of 8 KiB to 3; a kernel, which reads the
 * host's memory, to 37 of thousands of those, and to less where it has few. */
#define SK_CUDA_GATHER_MOST_IN ((uint64_t)64 << 10)

/** Fewer are as soon asked for one by one, and of those a driver says so where
 * there is no such memory any more; a kernel breaks the context. */
#define SK_CUDA_GATHER_LEAST 4u

/** Whether the lane has what it takes, which the first call makes. Any
 * thread. */
bool sk_cuda_can_gather(struct sk_cuda_lane *lane);
/** The same for page-locked memory of the host, which a device may not reach;
 * but no code is loaded for it: that may wait for the driver's compiler. */
bool sk_cuda_can_gather_host(struct sk_cuda_lane *lane);

/** Bytes from which on a copy does not. */
static inline uint64_t sk_cuda_gather_most(const struct sk_cuda_lane *lane,
					   enum sk_cuda_way way)
{
	if (way == SK_CUDA_ACROSS)
		return SK_CUDA_GATHER_MOST;
	return way == SK_CUDA_IN && sk_cuda_has_host_batches(lane) ?
	       SK_CUDA_GATHER_MOST_IN : SK_CUDA_GATHER_MOST_HOST;
}

/** Whether a copy of the lane's batch goes so. With the lane's lock held. */
static inline bool sk_cuda_gathers(const struct sk_cuda_lane *lane,
				   enum sk_cuda_way way, uint64_t bytes)
{
	return lane->gather && !sk_cuda_overlaps(lane) &&
	       bytes < sk_cuda_gather_most(lane, way) &&
	       (way == SK_CUDA_ACROSS || lane->device->host_pointers);
}

/** Asks for what is small of the lane's batch, and leaves the rest in it; within
 * the device's context and with the lane's lock held. -EIO. */
int sk_cuda_gather_run(struct sk_cuda_lane *lane, struct sk_err *err);
/** Nothing may be under way. NULL is fine. Returns NULL. */
struct sk_cuda_gather *sk_cuda_gather_free(struct sk_cuda_gather *gather);

#endif
