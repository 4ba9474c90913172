/* SPDX-License-Identifier: Apache-2.0 */
/* Copies within a device by a kernel of ours: for drivers without batches. */
#ifndef SK_CACHE_CUDA_GATHER_H
#define SK_CACHE_CUDA_GATHER_H

#include "cuda/private.h"

/** Bytes from which on a copy is better off alone: a kernel has few threads for
 * each, and the driver a whole engine. */
#define SK_CUDA_GATHER_MOST ((uint64_t)64 << 10)

/** Whether the lane has what it takes, which the first call makes. Any
 * thread. */
bool sk_cuda_can_gather(struct sk_cuda_lane *lane);
/** Asks for the lane's batch, within the device's context and with the lane's
 * lock held. -EIO. */
int sk_cuda_gather_run(struct sk_cuda_lane *lane, struct sk_err *err);
/** Nothing may be under way. NULL is fine. Returns NULL. */
struct sk_cuda_gather *sk_cuda_gather_free(struct sk_cuda_gather *gather);

#endif
