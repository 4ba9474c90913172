/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An image's data, compared with its checksums as it passes by.
 *
 * Thread-safety: one walk by one thread at a time.
 */
#ifndef SK_CACHE_LAYOUT_SUMS_H
#define SK_CACHE_LAYOUT_SUMS_H

#include "layout/layout.h"

struct sk_sums_walk;

/** Begins where the data does, behind the header; both are borrowed, @sums are
 * layout->n_sums. NULL: no memory. */
struct sk_sums_walk *sk_sums_new(const struct sk_layout *layout,
				 const uint64_t *sums);
/** NULL is fine. Returns NULL. */
struct sk_sums_walk *sk_sums_free(struct sk_sums_walk *walk);
/** The next @n bytes of the image. -EBADMSG: a chunk has another checksum;
 * the sentence names the tensor. */
int sk_sums_add(struct sk_sums_walk *walk, const void *bytes, size_t n,
		struct sk_err *err);
/** The entry of which that was, and 1; 0: none was wrong yet. */
uint32_t sk_sums_wrong(const struct sk_sums_walk *walk);

#endif
