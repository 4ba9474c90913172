/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Agreement: images name the same things alike, whatever of them is there.
 *
 * What coverage asks as well, of all images (layout/coverage.h), alone: for
 * who takes what is left of a set that is not whole.
 */
#ifndef SK_CACHE_LAYOUT_AGREEMENT_H
#define SK_CACHE_LAYOUT_AGREEMENT_H

#include "layout/coverage.h"

/** -EINVAL, with a sentence, if two disagree on the dtype or global shape of a
 * name. Images stay the caller's; layouts may be sketches, whose specs are
 * their own. Costs the items of each description once. Any thread. -ENOMEM. */
int sk_coverage_agree(const struct sk_coverage_image *images, size_t n,
		      struct sk_err *err);

#endif
