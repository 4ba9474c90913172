/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mentions: the items of many images by what they are of, so that all that is
 * said of one thing lies together. Private to coverage.c and agreement.c.
 */
#ifndef SK_CACHE_LAYOUT_MENTIONS_H
#define SK_CACHE_LAYOUT_MENTIONS_H

#include "layout/coverage.h"

/** An item, and the image whose layout has it; both are others'. */
struct sk_mention {
	const struct sk_item *item;
	const struct sk_coverage_image *image;
};

/** All items of all images, those of each thing by rank and kind of image; a
 * sketch's boxes are its base's. *ret is the caller's to free(), and names
 * images that stay its own. Any thread. -ENOMEM, with a sentence: *ret is NULL,
 * *ret_n 0. */
int sk_mentions_new(const struct sk_coverage_image *images, size_t n,
		    struct sk_mention **ret, size_t *ret_n,
		    struct sk_err *err);
/** How many of those, of which there are some, are of the first one's thing:
 * a name's, and of a local blob a rank's too. */
size_t sk_mentions_of_first(const struct sk_mention *m, size_t n);
/** Of one thing, some: -EINVAL, with a sentence, if two disagree on its dtype
 * or global shape. */
int sk_mentions_agree(const struct sk_mention *m, size_t n,
		      struct sk_err *err);

#endif
