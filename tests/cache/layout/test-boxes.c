/* SPDX-License-Identifier: Apache-2.0 */
/* Boxes that owners say one by one, many of them. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "layout/coverage.h"

#define RANKS 64

struct job {
	struct sk_coverage_image im[RANKS];
	int n;
};

static struct sk_item said(const char *name, int ndim, const int64_t *shape,
			   struct sk_box *boxes, int n)
{
	struct sk_item item = { .explicit_boxes = true, .n_boxes = n,
				.boxes = boxes, .spec = {
		.name = name, .dtype = SK_U8, .ndim = ndim } };

	memcpy(item.spec.shape, shape, (size_t)ndim * sizeof(*shape));
	return item;
}

static void add_rank(struct job *j, int world, const struct sk_item *item)
{
	struct sk_layout *l = NULL;
	struct sk_err err = { "" };

	cr_assert_eq(sk_layout_new("job", j->n, world, SK_IMAGE_PRIMARY, item,
				   1, &l, &err), 0, "%s", err.text);
	j->im[j->n++] = (struct sk_coverage_image){ l, true };
}

static void free_job(struct job *j)
{
	while (j->n)
		sk_layout_free((struct sk_layout *)j->im[--j->n].layout);
}

static void expect(const struct job *j, int r, const char *text)
{
	struct sk_err err = { "" };

	cr_assert_eq(sk_coverage_check(j->im, (size_t)j->n, j->n, &err), r,
		     "%s", err.text);
	cr_assert_str_eq(err.text, text);
}

/* A flat parameter of rows x 10, cut without regard to rows: of each rank the
 * end of a row, rows, and the beginning of one. */
static int flat_boxes(int64_t from, int64_t to, struct sk_box boxes[3])
{
	int n = 0;

	memset(boxes, 0, 3 * sizeof(*boxes));
	while (from < to) {
		int64_t row = from / 10, at = from % 10;
		int64_t rows = at ? 0 : (to - from) / 10;
		int64_t size = rows ? 10 : sk_min_i64(10 - at, to - from);

		boxes[n++] = (struct sk_box){ { row, at },
					      { rows ? rows : 1, size } };
		from += rows ? 10 * rows : size;
	}
	return n;
}

Test(boxes, flat_parts_of_many_ranks_cover)
{
	const int64_t shape[] = { 37 * RANKS / 10 + 1, 10 };
	int64_t total = shape[0] * shape[1];
	struct job j = { .n = 0 };

	for (int r = 0; r < RANKS; r++) {
		int64_t to = r == RANKS - 1 ? total : 37 * (r + 1);
		struct sk_box boxes[3];
		struct sk_item item = said("w", 2, shape, boxes,
					   flat_boxes(37 * r, to, boxes));

		add_rank(&j, RANKS, &item);
	}
	expect(&j, 0, "");
	j.im[5].present = false;
	expect(&j, -ENODATA, "missing: w [18:19, 5:10] of rank 5, "
	       "w [19:22, 0:10] of rank 5, w [22:23, 0:2] of rank 5");
	free_job(&j);
}

/* A box that begins where another one does is not that other one. */
Test(boxes, a_missing_box_is_named_though_another_begins_there)
{
	struct sk_box boxes[2] = { { { 0 }, { 3 } }, { { 0 }, { 4 } } };
	struct job j = { .n = 0 };

	for (int r = 0; r < 2; r++) {
		struct sk_item item = said("w", 1, (int64_t[]){ 4 },
					   &boxes[r], 1);

		add_rank(&j, 2, &item);
	}
	expect(&j, 0, "");
	j.im[1].present = false;
	expect(&j, -ENODATA, "missing: w [3:4] of rank 1");
	free_job(&j);
}

#define SIDE 80

/* Every other box of a grid over dimensions @d and @d + 1. */
static int grid_boxes(int d, int odd, struct sk_box *boxes)
{
	int n = 0;

	for (int i = 0; i < SIDE * SIDE; i++) {
		if ((i / SIDE + i % SIDE) % 2 != odd)
			continue;
		boxes[n] = (struct sk_box){ { 0 }, { SIDE, SIDE, SIDE,
						     SIDE } };
		boxes[n].offset[d] = i / SIDE;
		boxes[n].offset[d + 1] = i % SIDE;
		boxes[n].size[d] = boxes[n].size[d + 1] = 1;
		n++;
	}
	return n;
}

/* Leaves the first or the last part of each box, cut anywhere. */
static void cut_boxes(struct sk_box *boxes, int n, bool first)
{
	for (int i = 0; i < n; i++) {
		int64_t at = 1 + i * 37 % (SIDE - 1);

		boxes[i].offset[0] = first ? 0 : at;
		boxes[i].size[0] = first ? at : SIDE - at;
	}
}

/* A grid with gaps over the first two dimensions, and one over the last two
 * that is whole, or @cut: half of its boxes are two. */
static void add_grids(struct job *j, bool cut)
{
	static struct sk_box boxes[SIDE * SIDE];
	const int64_t shape[] = { SIDE, SIDE, SIDE, SIDE };
	int world = 3 + cut;

	for (int r = 0; r < world; r++) {
		int n = grid_boxes(r ? 2 : 0, r > 1, boxes);
		struct sk_item item = said("w", 4, shape, boxes, n);

		if (cut && r > 1)
			cut_boxes(boxes, n, r == 2);
		add_rank(j, world, &item);
	}
}

/* Nobody's event loop is held by boxes that were made to be hard. */
Test(boxes, what_cannot_be_told_in_time_is_refused, .timeout = 300)
{
	struct job j = { .n = 0 };

	add_grids(&j, false);
	expect(&j, 0, "");
	free_job(&j);
	add_grids(&j, true);
	expect(&j, -E2BIG, "12800 boxes of \"w\" overlap in too many ways to "
	       "tell whether they fill it; let each rank say boxes that "
	       "others do not hold");
	free_job(&j);
}

/* ---- one rank's ---- */

#define EDGE 64		/* 4,096 boxes are the most */

static int register_boxes(struct sk_box *boxes, int n, struct sk_err *err)
{
	struct sk_item item = said("w", 2, (int64_t[]){ EDGE, EDGE }, boxes,
				   n);
	struct sk_layout *l = NULL;
	int r = sk_layout_new("job", 0, 1, SK_IMAGE_PRIMARY, &item, 1, &l,
			      err);

	sk_layout_free(l);
	return r;
}

Test(boxes, of_one_rank_do_not_overlap)
{
	static struct sk_box boxes[EDGE * EDGE];
	struct sk_err err = { "" };

	for (int i = 0; i < EDGE * EDGE; i++)
		boxes[i] = (struct sk_box){ { i / EDGE, i % EDGE }, { 1, 1 } };
	cr_assert_eq(register_boxes(boxes, EDGE * EDGE, &err), 0, "%s",
		     err.text);
	boxes[17].size[1] = 2;
	cr_assert_eq(register_boxes(boxes, EDGE * EDGE, &err), -EINVAL);
	cr_assert_str_eq(err.text, "tensor \"w\": boxes 17 and 18 overlap");
	boxes[17] = boxes[4000];
	cr_assert_eq(register_boxes(boxes, EDGE * EDGE, &err), -EINVAL);
	cr_assert_str_eq(err.text, "tensor \"w\": boxes 17 and 4000 overlap");
}
