/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Coverage: the proof that a set of images holds every element of every spec.
 *
 * Coverage, not counting: no coordinator and no commit message; images of one
 * (job, run, step) are complete when their boxes fill every tensor. What a
 * rank without an image held is known from the layouts of others or from its
 * registration; where neither says, the set is not complete.
 */
#ifndef SK_CACHE_LAYOUT_COVERAGE_H
#define SK_CACHE_LAYOUT_COVERAGE_H

#include "base/error.h"
#include "layout/layout.h"

struct sk_coverage_image {
	const struct sk_layout *layout;
	bool present;	/* false: registered, but its image is not there;
			 * it tells what must be covered and covers nothing */
};

/** An image by what its rank describes: its layout is known to follow from
 * @like, of the same description, by arithmetic, or is @like. */
struct sk_coverage_like {
	const struct sk_layout *like;
	int32_t rank;
	enum sk_image_kind kind;
	bool present;
};

/**
 * What follows from descriptions alone, at a cost of O(n) and of the items of
 * each description once: *ret_covered, that the present images cover all, for
 * a job of @world ranks; if not, sk_coverage_check() has to tell. Errors:
 * -ENODATA of some rank there is no primary image, with a sentence; -ENOMEM.
 */
int sk_coverage_follows(const struct sk_coverage_like *images, size_t n,
			int32_t world, bool *ret_covered, struct sk_err *err);

/**
 * 0 if the present images cover all, for a job of @world ranks.
 * -ENODATA if not, with a sentence that names the first few missing boxes
 * and the ranks that should have held them ("wq [0:4, 0:8] of rank 3, ..."),
 * or what of a tensor no rank describes ("wq [8:12, 0:8] (rank 4 does not
 * describe it)"; of boxes that were said "(described by no rank)").
 * -EINVAL if two images disagree on the dtype or global shape of a name.
 * A rank of which no primary layout at all is given is missing.
 * Local blobs must be present for each rank whose layout names them.
 * -E2BIG if boxes said one by one overlap so that telling would take out of
 * all proportion. -ENOMEM.
 * Layouts may be sketches. Where the images suffice, and only then, ranks of
 * one description may be as many as one likes: telling costs O(n), and the
 * items of each description once. Else it is O(n log n) in the number of
 * boxes, and sketches are computed for it; -ENODATA where that would take more
 * than half a GiB.
 */
int sk_coverage_check(const struct sk_coverage_image *images, size_t n,
		      int32_t world, struct sk_err *err);

#endif
