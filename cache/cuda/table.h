/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many small copies within the device, by one table that stays there. A batch
 * is told each of them each time (gather.h), 0.1 us each on an H200, which for
 * 10,000 is three times what the device takes to make them. A trainer's
 * snapshots copy the same from the same place to the same, time and again: then
 * the device has the table, and is told nothing.
 */
#ifndef SK_CACHE_CUDA_TABLE_H
#define SK_CACHE_CUDA_TABLE_H

#include "cuda/cuda.h"

struct sk_cuda_table;

/** Bytes from which on a copy is better off alone. */
#define SK_CUDA_TABLE_MOST ((uint64_t)4 << 20)
/** Copies from which on a table is worth a launch. */
#define SK_CUDA_TABLE_LEAST 4u

/** A copy within the device, as kernels.cl has it: addresses, and bytes, at
 * least 1. The two sides do not overlap, nor any destinations. */
struct sk_cuda_table_copy {
	uint64_t dst, src, bytes;
};

/**
 * Asks for the copies, each of less than SK_CUDA_TABLE_MOST, after all that the
 * lane was asked for, as sk_cuda_lane_across() does for each; @v is the
 * caller's. *ret_stamp is what the lane knows them by from then on; 0: by
 * nothing. False: it cannot, or they are few, and the caller asks for each;
 * some of them may have been asked for by then, which are none the worse for
 * being made twice. One thread at a time for each lane.
 */
bool sk_cuda_lane_table(struct sk_cuda_lane *lane,
			const struct sk_cuda_table_copy *v, size_t n,
			uint64_t *ret_stamp);
/** Whether the device has that stamp's copies still. */
bool sk_cuda_lane_has_table(struct sk_cuda_lane *lane, uint64_t stamp);
/** Asks for them once more, which takes as long as to ask for one. False: as
 * above, or it has others by now. */
bool sk_cuda_lane_table_again(struct sk_cuda_lane *lane, uint64_t stamp);

/** The lane's, which nothing may read any more. NULL is fine. Returns NULL. */
struct sk_cuda_table *sk_cuda_table_free(struct sk_cuda_table *table);

#endif
