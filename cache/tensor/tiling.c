/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Divide and conquer: a cell is cut in two until its answer is plain.
 */
#include "tensor/tiling.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/util.h"
#include "tensor/cells.h"

#define FEW 8			/* boxes compared each with each */
#define UNDECIDED 2

uint64_t sk_tiling_visits(int ndim, size_t n)
{
	uint64_t log = 1;

	for (size_t k = n; k; k >>= 1)
		log++;
	return 16 * log * n * (uint64_t)(ndim + 2);
}

/* In how many dimensions the box does not span the cell, and in which. */
static int short_dims(int ndim, const struct sk_box *box,
		      const struct sk_box *cell, int *ret_dim)
{
	int n = 0;

	for (int d = 0; d < ndim; d++)
		if (box->offset[d] > cell->offset[d] ||
		    sk_box_end(box, d) < sk_box_end(cell, d)) {
			n++;
			*ret_dim = d;
		}
	return n;
}

/* ---- filled ---- */

/*
 * A slab is a box that spans the cell in all dimensions but one. Slabs of one
 * dimension are intervals, which a sort and a sweep decide.
 */
static int compare_from(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

/* Do the slabs of dimension @d fill the cell? 1, 0 or -E2BIG. */
static int slabs_fill(struct sk_cells *c, size_t first, size_t n,
		      const struct sk_box *cell, int d)
{
	int64_t at = cell->offset[d], *v = c->edges;
	size_t k = 0;
	int dim = 0;

	assert(d < c->ndim);
	for (size_t i = first; i < first + n; i++) {
		const struct sk_box *box = &c->boxes[c->order[i]];

		if (short_dims(c->ndim, box, cell, &dim) != 1 || dim != d)
			continue;
		v[k++] = box->offset[d];
		v[k++] = sk_box_end(box, d);
	}
	/* Sorting them is about so many looks. */
	if (!sk_cells_pay(c, n + k * (size_t)(64 - __builtin_clzll(k | 1))))
		return -E2BIG;
	qsort(v, k / 2, 2 * sizeof(*v), compare_from);
	for (size_t i = 0; i < k && v[i] <= at; i += 2)
		at = sk_max_i64(at, v[i + 1]);
	return at >= sk_box_end(cell, d);
}

static int64_t size_in(const struct sk_box *box, const struct sk_box *cell,
		       int d)
{
	return sk_min_i64(sk_box_end(box, d), sk_box_end(cell, d)) -
	       sk_max_i64(box->offset[d], cell->offset[d]);
}

/* What can be said of a cell without cutting it: 1, 0, UNDECIDED, -E2BIG. */
static int fill_plainly(struct sk_cells *c, size_t first, size_t n,
			const struct sk_box *cell)
{
	int64_t slabs[SK_MAX_DIMS] = { 0 };	/* sum of their sizes */
	size_t n_slabs = 0;
	int r = 0;

	assert(first + n <= c->n);
	if (!sk_cells_pay(c, n))
		return -E2BIG;
	for (size_t i = first; i < first + n; i++) {
		const struct sk_box *box = &c->boxes[c->order[i]];
		int d = 0, dims = short_dims(c->ndim, box, cell, &d);

		if (!dims)
			return 1;
		if (dims > 1)
			continue;
		n_slabs++;
		slabs[d] = sk_min_i64(cell->size[d],
				      slabs[d] + size_in(box, cell, d));
	}
	for (int d = 0; d < c->ndim && !r; d++)
		if (slabs[d] == cell->size[d])
			r = slabs_fill(c, first, n, cell, d);
	/* Where none of their dimensions is full, each leaves a gap, and the
	 * gaps meet. */
	return r || n_slabs == n ? r : UNDECIDED;
}

/* 1, 0 or -E2BIG. */
static int fill_cell(struct sk_cells *c, size_t first, size_t n,
		     const struct sk_box *cell)
{
	struct sk_box before, behind;
	struct sk_parts parts;
	struct sk_cell_cut cut;
	int r;

	assert(first + n <= c->n);
	r = fill_plainly(c, first, n, cell);
	if (r != UNDECIDED)
		return r;
	r = sk_cells_choose(c, first, n, cell, &cut);
	if (r < 0)
		return r;
	assert(r);		/* a box without an edge inside covers it */
	sk_cell_halve(cell, &cut, &before, &behind);
	parts = sk_cells_part(c, first, n, &cut);
	r = fill_cell(c, first, parts.before + parts.across, &before);
	if (r <= 0)
		return r;
	/* The first half has mixed its range. */
	(void)sk_cells_part(c, first, n, &cut);
	return fill_cell(c, first + parts.before, n - parts.before, &behind);
}

/* The dimensions in which the box does not span the whole. */
static unsigned family_of(const struct sk_cells *c, size_t i,
			  const struct sk_box *whole)
{
	const struct sk_box *box = &c->boxes[c->order[i]];
	unsigned mask = 0;

	assert(i < c->n);
	for (int d = 0; d < c->ndim; d++)
		if (box->offset[d] > whole->offset[d] ||
		    sk_box_end(box, d) < sk_box_end(whole, d))
			mask |= 1u << d;
	return mask;
}

/* Elements, or as many as can be counted: boxes that were made up to be hard
 * need not fit 63 bits. */
static int64_t volume(int ndim, const struct sk_box *box)
{
	int64_t n = 1;

	for (int d = 0; d < ndim; d++)
		if (__builtin_mul_overflow(n, box->size[d], &n))
			return INT64_MAX;
	return n;
}

/* Moves the family of the first of order[first ..] to the front; says how
 * many they are, and whether they are large enough to fill the whole. */
static size_t gather_family(struct sk_cells *c, size_t first,
			    const struct sk_box *whole, bool *ret_enough)
{
	int64_t lack = volume(c->ndim, whole);
	unsigned family = family_of(c, first, whole);
	struct sk_box common;
	size_t n = first;

	assert(first < c->n);
	for (size_t i = first; i < c->n; i++) {
		uint32_t index = c->order[i];

		if (family_of(c, i, whole) != family)
			continue;
		c->order[i] = c->order[n];
		c->order[n++] = index;
		if (lack > 0 && sk_box_intersect(c->ndim, &c->boxes[index],
						 whole, &common))
			lack -= volume(c->ndim, &common);
	}
	*ret_enough = lack <= 0;
	return n - first;
}

/*
 * Where several shardings of one tensor lie over each other, one of them may
 * fill it, and the others only make that hard to see. So boxes that are cut
 * along the same dimensions are tried alone first. 1, 0 or -E2BIG.
 */
static int fill_by_family(struct sk_cells *c, const struct sk_box *whole)
{
	int r = 0;

	for (size_t first = 0, n; first < c->n && !r; first += n) {
		bool enough;

		if (!sk_cells_pay(c, c->n - first))
			return -E2BIG;
		n = gather_family(c, first, whole, &enough);
		if (enough && n < c->n)
			r = fill_cell(c, first, n, whole);
	}
	return r;
}

int sk_tiling_fills(int ndim, const struct sk_box *whole,
		    const struct sk_box *boxes, size_t n, uint64_t *visits,
		    bool *ret_filled)
{
	struct sk_cells c = { .ndim = ndim, .boxes = boxes, .n = n,
			  .visits = *visits };
	int r = sk_cells_init(&c, whole);

	if (r >= 0)
		r = sk_box_empty(ndim, whole) ? 1 :
		    fill_by_family(&c, whole);
	if (r == 0)
		r = fill_cell(&c, 0, c.n, whole);
	sk_cells_free(&c);
	*visits = c.visits;
	if (r < 0)
		return r;
	*ret_filled = r;
	return 0;
}

/* ---- overlap ---- */

static int found(size_t a, size_t b, size_t ret_pair[2])
{
	ret_pair[0] = a < b ? a : b;
	ret_pair[1] = a < b ? b : a;
	return 1;
}

static int compare_few(const struct sk_cells *c, size_t first, size_t n,
		       size_t ret_pair[2])
{
	struct sk_box both;

	assert(n <= FEW && first + n <= c->n);
	for (size_t i = first; i < first + n; i++)
		for (size_t k = first; k < i; k++)
			if (sk_box_intersect(c->ndim,
					     &c->boxes[c->order[i]],
					     &c->boxes[c->order[k]], &both))
				return found(c->order[i], c->order[k],
					     ret_pair);
	return 0;
}

/* A box that fills the cell, besides which others are in it. */
static int find_cover(const struct sk_cells *c, size_t first, size_t n,
		      const struct sk_box *cell, size_t ret_pair[2])
{
	int d = 0;

	assert(n > 1 && first + n <= c->n);
	for (size_t i = first; i < first + n; i++)
		if (!short_dims(c->ndim, &c->boxes[c->order[i]], cell, &d))
			return found(c->order[i],
				     c->order[i == first ? first + 1 : first],
				     ret_pair);
	return 0;
}

/* 1, 0 or -E2BIG. */
static int overlap_cell(struct sk_cells *c, size_t first, size_t n,
			const struct sk_box *cell, size_t ret_pair[2])
{
	struct sk_box before, behind;
	struct sk_parts parts;
	struct sk_cell_cut cut;
	int r;

	assert(first + n <= c->n);
	if (!sk_cells_pay(c, n))
		return -E2BIG;
	if (n <= FEW)
		return compare_few(c, first, n, ret_pair);
	if (find_cover(c, first, n, cell, ret_pair))
		return 1;
	r = sk_cells_choose(c, first, n, cell, &cut);
	if (r < 0)
		return r;
	assert(r);		/* as in fill_cell() */
	sk_cell_halve(cell, &cut, &before, &behind);
	parts = sk_cells_part(c, first, n, &cut);
	r = overlap_cell(c, first, parts.before + parts.across, &before,
			 ret_pair);
	if (r)
		return r;
	/* The first half has mixed its range. */
	(void)sk_cells_part(c, first, n, &cut);
	return overlap_cell(c, first + parts.before, n - parts.before,
			    &behind, ret_pair);
}

int sk_tiling_overlap(int ndim, const struct sk_box *whole,
		      const struct sk_box *boxes, size_t n, uint64_t *visits,
		      size_t ret_pair[2])
{
	struct sk_cells c = { .ndim = ndim, .boxes = boxes, .n = n,
			  .visits = *visits };
	int r = sk_cells_init(&c, whole);

	if (r >= 0)
		r = overlap_cell(&c, 0, c.n, whole, ret_pair);
	sk_cells_free(&c);
	*visits = c.visits;
	return r;
}
