/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cells: a space cut in two, and again, at the edges of the boxes in it.
 * Private to tiling.c.
 *
 * The boxes of a cell are a range of one array of indices. A cut sorts the
 * range into those before, across and behind it, so that both halves are
 * ranges again, sharing those across; nothing is allocated on the way down.
 */
#ifndef SK_CACHE_TENSOR_CELLS_H
#define SK_CACHE_TENSOR_CELLS_H

#include <stdint.h>

#include "tensor/box.h"

struct sk_cells {
	int ndim;
	const struct sk_box *boxes;
	uint32_t *order;	/* indices of boxes that are in the space */
	size_t n;		/* of them */
	int64_t *edges;		/* room for 2 n */
	uint64_t visits;	/* left */
	uint64_t random;
};

struct sk_cell_cut {
	int dim;
	int64_t at;
	size_t across;		/* boxes */
};

struct sk_parts {
	size_t before, across;	/* boxes */
};

static inline int64_t sk_box_end(const struct sk_box *box, int d)
{
	return box->offset[d] + box->size[d];
}

/** Takes @visits off; false: so many are not left. */
static inline bool sk_cells_pay(struct sk_cells *cells, size_t visits)
{
	bool enough = visits <= cells->visits;

	cells->visits = enough ? cells->visits - visits : 0;
	return enough;
}

/** Those of cells->n boxes that reach into @whole. Errors: -ENOMEM, -E2BIG
 * more than 2^32. To be freed in any case. */
int sk_cells_init(struct sk_cells *cells, const struct sk_box *whole);
void sk_cells_free(struct sk_cells *cells);

/**
 * Where to cut @cell, which boxes order[first .. first + n) reach into: at the
 * middle one of the edges inside, in the dimension where the fewest boxes lie
 * across. So a cut halves the edges of one dimension, and cells are no deeper
 * than the sum of the dimensions' logarithms.
 * 1; 0: no box has an edge inside; -E2BIG: no visits are left.
 */
int sk_cells_choose(struct sk_cells *cells, size_t first, size_t n,
		    const struct sk_box *cell, struct sk_cell_cut *ret);

/** Sorts the range: before the cut, across it, behind it. */
struct sk_parts sk_cells_part(struct sk_cells *cells, size_t first, size_t n,
			      const struct sk_cell_cut *cut);

void sk_cell_halve(const struct sk_box *cell, const struct sk_cell_cut *cut,
		   struct sk_box *ret_before, struct sk_box *ret_behind);

#endif
