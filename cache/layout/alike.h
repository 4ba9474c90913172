/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Alike: coverage told by what ranks describe, without looking at boxes.
 * Private to coverage.c.
 *
 * Where all ranks of a mesh describe the same tensors on it, placements alone
 * say who holds which box, and all of them deal replicas alike: if each has
 * its primary image, nothing is missing. So a world costs what its ranks and
 * its different descriptions are, not ranks times tensors.
 */
#ifndef SK_CACHE_LAYOUT_ALIKE_H
#define SK_CACHE_LAYOUT_ALIKE_H

#include "layout/coverage.h"

/**
 * *ret_covered: it follows that the images cover all. False says nothing:
 * boxes were said one by one, a primary image is not there, or ranks of one
 * mesh differ. *looks: grows by ranks and items that were looked at. -ENOMEM.
 */
int sk_coverage_alike(const struct sk_coverage_like *images, size_t n,
		      int32_t world, bool *ret_covered, uint64_t *looks);

#endif
