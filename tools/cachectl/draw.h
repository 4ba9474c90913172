/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A picture of a tensor: which rank holds which part. Pure: it draws into a
 * report and knows nothing of agents.
 */
#ifndef SK_CACHECTL_DRAW_H
#define SK_CACHECTL_DRAW_H

#include <stddef.h>

#include "report.h"
#include "tensor/box.h"

struct draw_part {
	struct sk_box box;
	int32_t rank;
};

/**
 * Draws who holds what of a tensor, to scale, at most 80 columns wide, over
 * the first two dimensions that are cut; one picture for each piece of further
 * ones. @parts are sorted by rank; empty boxes are left out.
 */
void draw_tensor(struct report *r, const char *name, int ndim,
		 const int64_t *shape, const struct draw_part *parts,
		 size_t n);

#endif
