/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/cells.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/util.h"

int sk_cells_init(struct sk_cells *c, const struct sk_box *whole)
{
	size_t n = c->n;

	assert(!c->order && !c->edges);
	c->n = 0;
	if (n > UINT32_MAX)
		return -E2BIG;
	c->order = malloc((n + 1) * sizeof(*c->order));
	c->edges = malloc((2 * n + 1) * sizeof(*c->edges));
	if (!c->order || !c->edges)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		struct sk_box common;

		if (sk_box_intersect(c->ndim, &c->boxes[i], whole, &common))
			c->order[c->n++] = (uint32_t)i;
	}
	return 0;
}

void sk_cells_free(struct sk_cells *c)
{
	free(c->order);
	free(c->edges);
}

/* ---- where to cut ---- */

static size_t collect_edges(struct sk_cells *c, size_t first, size_t n,
			    const struct sk_box *cell, int d)
{
	int64_t from = cell->offset[d], to = sk_box_end(cell, d);
	size_t k = 0;

	assert(first + n <= c->n);
	assert(d < c->ndim);
	for (size_t i = first; i < first + n; i++) {
		const struct sk_box *box = &c->boxes[c->order[i]];

		if (box->offset[d] > from)
			c->edges[k++] = box->offset[d];
		if (sk_box_end(box, d) < to)
			c->edges[k++] = sk_box_end(box, d);
	}
	return k;
}

static void swap_edges(int64_t *v, size_t a, size_t b)
{
	int64_t x = v[a];

	v[a] = v[b];
	v[b] = x;
}

/* The middle one of edges[0 .. n), by quickselect; false: no visits left. */
static bool middle(struct sk_cells *c, size_t n, int64_t *ret)
{
	size_t from = 0, to = n, mid = n / 2;

	assert(n);
	for (;;) {
		size_t low = from, high = to;
		int64_t pivot;

		if (!sk_cells_pay(c, to - from))
			return false;
		/* Drawn, lest an order of boxes be the worst one. */
		c->random = c->random * 6364136223846793005u + 1;
		pivot = c->edges[from + (c->random >> 33) % (to - from)];
		for (size_t i = from; i < high;) {
			if (c->edges[i] < pivot)
				swap_edges(c->edges, i++, low++);
			else if (c->edges[i] > pivot)
				swap_edges(c->edges, i, --high);
			else
				i++;
		}
		*ret = pivot;
		if (mid >= low && mid < high)
			return true;
		from = mid < low ? from : high;
		to = mid < low ? low : to;
	}
}

static size_t count_across(const struct sk_cells *c, size_t first, size_t n,
			   int d, int64_t at)
{
	size_t across = 0;

	assert(d < c->ndim);
	for (size_t i = first; i < first + n; i++) {
		const struct sk_box *box = &c->boxes[c->order[i]];

		across += box->offset[d] < at && sk_box_end(box, d) > at;
	}
	return across;
}

int sk_cells_choose(struct sk_cells *c, size_t first, size_t n,
		    const struct sk_box *cell, struct sk_cell_cut *ret)
{
	struct sk_cell_cut best = { .across = SIZE_MAX };

	assert(first + n <= c->n);
	for (int d = 0; d < c->ndim && best.across; d++) {
		struct sk_cell_cut cut = { .dim = d };
		size_t edges;

		if (!sk_cells_pay(c, n))
			return -E2BIG;
		edges = collect_edges(c, first, n, cell, d);
		if (!edges)
			continue;
		if (!middle(c, edges, &cut.at))
			return -E2BIG;
		cut.across = count_across(c, first, n, d, cut.at);
		if (cut.across < best.across)
			best = cut;
	}
	*ret = best;
	return best.across != SIZE_MAX;
}

static void swap_boxes(struct sk_cells *c, size_t a, size_t b)
{
	uint32_t x = c->order[a];

	assert(a < c->n && b < c->n);
	c->order[a] = c->order[b];
	c->order[b] = x;
}

struct sk_parts sk_cells_part(struct sk_cells *c, size_t first, size_t n,
			      const struct sk_cell_cut *cut)
{
	size_t low = first, high = first + n;

	assert(first + n <= c->n);
	assert(cut->dim >= 0 && cut->dim < c->ndim);
	for (size_t i = first; i < high;) {
		const struct sk_box *box = &c->boxes[c->order[i]];

		if (sk_box_end(box, cut->dim) <= cut->at)
			swap_boxes(c, i++, low++);
		else if (box->offset[cut->dim] >= cut->at)
			swap_boxes(c, i, --high);
		else
			i++;
	}
	return (struct sk_parts){ low - first, high - low };
}

void sk_cell_halve(const struct sk_box *cell, const struct sk_cell_cut *cut,
		   struct sk_box *ret_before, struct sk_box *ret_behind)
{
	int d = cut->dim;

	assert(cut->at > cell->offset[d]);
	assert(cut->at < sk_box_end(cell, d));
	*ret_before = *ret_behind = *cell;
	ret_before->size[d] = cut->at - cell->offset[d];
	ret_behind->offset[d] = cut->at;
	ret_behind->size[d] = sk_box_end(cell, d) - cut->at;
}
