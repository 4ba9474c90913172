/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Boxes: N-d intervals of a tensor's global index space.
 *
 * Pure functions; the number of dimensions is always said by the caller. In 0
 * dimensions a box is the one scalar, volume 1.
 */
#ifndef SK_CACHE_TENSOR_BOX_H
#define SK_CACHE_TENSOR_BOX_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "shardkeep-types.h"

/** Elements in the box. The caller has checked that it fits 63 bits. */
int64_t sk_box_volume(int ndim, const struct sk_box *box);
bool sk_box_empty(int ndim, const struct sk_box *box);
bool sk_box_equal(int ndim, const struct sk_box *a, const struct sk_box *b);
/** True and *ret_box set if they share an element. */
bool sk_box_intersect(int ndim, const struct sk_box *a,
		      const struct sk_box *b, struct sk_box *ret_box);
/** 0, or -EINVAL with a sentence if it does not lie within @shape. */
int sk_box_check(int ndim, const int64_t *shape, const struct sk_box *box,
		 struct sk_err *err);
/** The whole tensor. */
struct sk_box sk_box_whole(int ndim, const int64_t *shape);

/** "[0:4, 8:16]" for people, cut at @size; returns @buf. */
char *sk_box_format(int ndim, const struct sk_box *box, char *buf,
		    size_t size);

/**
 * Element count of @shape with overflow checked (at most 2^62).
 * Errors: -EINVAL a negative size or too many dimensions, -EOVERFLOW.
 */
int sk_shape_count(int ndim, const int64_t *shape, int64_t *ret_count,
		   struct sk_err *err);

#endif
