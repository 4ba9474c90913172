/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of short elements that lie apart, as of a transposed tensor: by a
 * kernel of ours, and over the link in one piece, by way of memory of the
 * lane's own on the device. The driver's own calls take a row of elements each.
 */
#ifndef SK_CACHE_CUDA_STRIDED_H
#define SK_CACHE_CUDA_STRIDED_H

#include "cuda/walk.h"

/**
 * Whether the bytes [from, to) of the copy, whole elements of it, would be
 * many calls of the driver, and can be few by a kernel. The first time it
 * makes what it takes: so it is asked where the copy is asked for. Any thread.
 */
bool sk_cuda_is_strided(const struct sk_cuda_walk *w, uint64_t from,
			uint64_t to);

/** Asks for them. Any thread. -EIO. */
int sk_cuda_copy_strided(const struct sk_cuda_walk *w, uint64_t from,
			 uint64_t to);

#endif
