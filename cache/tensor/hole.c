/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiling, holes: where the boxes leave something free.
 */
#include <assert.h>
#include <errno.h>

#include "base/util.h"
#include "tensor/cells.h"
#include "tensor/tiling.h"

static bool spans(int ndim, const struct sk_box *box,
		  const struct sk_box *cell)
{
	for (int d = 0; d < ndim; d++)
		if (box->offset[d] > cell->offset[d] ||
		    sk_box_end(box, d) < sk_box_end(cell, d))
			return false;
	return true;
}

/* 1: there is a cell without a box; 0: there is none; -E2BIG. */
static int find_hole(struct sk_cells *c, size_t first, size_t n,
		     const struct sk_box *cell, struct sk_box *ret_hole)
{
	struct sk_box before, behind;
	struct sk_parts parts;
	struct sk_cell_cut cut;
	int r;

	assert(first + n <= c->n);
	if (!n) {
		*ret_hole = *cell;
		return 1;
	}
	if (!sk_cells_pay(c, n))
		return -E2BIG;
	for (size_t i = first; i < first + n; i++)
		if (spans(c->ndim, &c->boxes[c->order[i]], cell))
			return 0;
	r = sk_cells_choose(c, first, n, cell, &cut);
	if (r < 0)
		return r;
	assert(r);		/* a box without an edge inside spans it */
	sk_cell_halve(cell, &cut, &before, &behind);
	parts = sk_cells_part(c, first, n, &cut);
	r = find_hole(c, first, parts.before + parts.across, &before, ret_hole);
	if (r)
		return r;
	/* The first half has mixed its range. */
	(void)sk_cells_part(c, first, n, &cut);
	return find_hole(c, first + parts.before, n - parts.before, &behind,
			 ret_hole);
}

/* As far as it goes in dimension @d: cuts at edges of boxes elsewhere have
 * parted it. */
static void widen(const struct sk_cells *c, const struct sk_box *whole, int d,
		  struct sk_box *hole)
{
	int64_t from = whole->offset[d], to = sk_box_end(whole, d);
	struct sk_box line = *hole, common;

	line.offset[d] = from;
	line.size[d] = whole->size[d];
	for (size_t i = 0; i < c->n; i++) {
		const struct sk_box *box = &c->boxes[c->order[i]];

		if (!sk_box_intersect(c->ndim, box, &line, &common))
			continue;
		if (box->offset[d] > hole->offset[d])
			to = sk_min_i64(to, box->offset[d]);
		else
			from = sk_max_i64(from, sk_box_end(box, d));
	}
	hole->offset[d] = from;
	hole->size[d] = to - from;
}

int sk_tiling_hole(int ndim, const struct sk_box *whole,
		   const struct sk_box *boxes, size_t n, uint64_t *visits,
		   struct sk_box *ret_hole)
{
	struct sk_cells c = { .ndim = ndim, .boxes = boxes, .n = n,
			      .visits = *visits };
	struct sk_box hole;
	int r = sk_cells_init(&c, whole);

	if (r >= 0)
		r = sk_box_empty(ndim, whole) ? 0 :
		    find_hole(&c, 0, c.n, whole, &hole);
	/* The last dimension first: lines of memory that belong together. */
	for (int d = ndim; r > 0 && d-- > 0;)
		widen(&c, whole, d, &hole);
	sk_cells_free(&c);
	*visits = c.visits;
	if (r > 0)
		*ret_hole = hole;
	return r;
}
