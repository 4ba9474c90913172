/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiling: whether boxes fill a space, where they do not, and whether two of
 * them overlap.
 *
 * All is answered exactly, for boxes of any shape in any order. The cost is
 * counted in visits: one look at one box in one dimension. n boxes that can
 * be parted by straight cuts, as grids and intervals of flat memory can, take
 * O(n log n) visits. Boxes that hide behind one another in many dimensions
 * can take far more, which is why a caller says how many it will pay for.
 *
 * Thread-safety: pure functions over immutable arguments.
 */
#ifndef SK_CACHE_TENSOR_TILING_H
#define SK_CACHE_TENSOR_TILING_H

#include <stdint.h>

#include "tensor/box.h"

/** Visits that suffice for @n boxes that are not meant to be hard, several
 * times over. */
uint64_t sk_tiling_visits(int ndim, size_t n);

/**
 * *ret_filled: each element of @whole lies in at least one of @boxes, which
 * may overlap, repeat, be empty and reach beyond @whole.
 * *visits: what may be spent; what was spent is taken off.
 * Errors: -E2BIG the visits did not suffice, -ENOMEM.
 */
int sk_tiling_fills(int ndim, const struct sk_box *whole,
		    const struct sk_box *boxes, size_t n, uint64_t *visits,
		    bool *ret_filled);

/**
 * 1 if there are elements of @whole that lie in none of @boxes: *ret_hole is a
 * box of such, which cannot be wider in any dimension, of several holes any
 * one. 0 if there are none. Takes more visits than sk_tiling_fills() does.
 * *visits and errors as above.
 */
int sk_tiling_hole(int ndim, const struct sk_box *whole,
		   const struct sk_box *boxes, size_t n, uint64_t *visits,
		   struct sk_box *ret_hole);

/**
 * 1 if two of @boxes share an element of @whole, whose indices are
 * ret_pair[0] < ret_pair[1]; 0 if no two do. *visits and errors as above.
 */
int sk_tiling_overlap(int ndim, const struct sk_box *whole,
		      const struct sk_box *boxes, size_t n, uint64_t *visits,
		      size_t ret_pair[2]);

#endif
