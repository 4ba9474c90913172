/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extents of a rank's images that stand in a device slot, one behind the other,
 * in that order. Where each of them begins there follows from those before it.
 */
#ifndef SK_CACHE_MEMORY_EXTENT_H
#define SK_CACHE_MEMORY_EXTENT_H

#include <stdint.h>

#include "base/error.h"

/** The bytes [from, to) of the image of that kind (enum sk_image_kind). */
struct sk_extent {
	uint64_t from, to;
	uint32_t kind;
	uint32_t reserved;	/* 0 */
};

/** Where the extent after @p begins, which begins at @at itself. */
uint64_t sk_extent_next(const struct sk_extent *p, uint64_t at);

/**
 * Extents that somebody else says: in ascending order, the primary's first, not
 * empty, apart from each other, each within the data of its image, which is
 * [from[kind], to[kind]). *ret_bytes: what a device slot of them has.
 * -EINVAL with a sentence.
 */
int sk_extents_check(const struct sk_extent *extents, uint32_t n,
		    const uint64_t from[2], const uint64_t to[2],
		    uint64_t *ret_bytes, struct sk_err *err);

#endif
