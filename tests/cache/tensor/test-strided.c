/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strided shards, which make many boxes: against lists of every element, cut
 * as the definition says.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "base/util.h"
#include "tensor/cuts.h"
#include "tensor/placement.h"
#include "support/random.h"

#define SIDE 60

static uint64_t seed = 3;

static int64_t pick(int64_t n)
{
	return (int64_t)draw(&seed, (uint64_t)n);
}

/* ---- one cut ---- */

/* Elements of one dimension, ascending. */
struct list {
	int64_t v[SIDE];
	int n;
};

static struct list list_of(const struct sk_intervals *in)
{
	struct list l = { .n = 0 };

	for (int i = 0; i < in->n; i++)
		for (int64_t k = 0; k < in->v[i].size; k++)
			l.v[l.n++] = in->v[i].from + k;
	return l;
}

static struct list cut_list(const struct sk_cut *cut, int64_t piece,
			    const struct list *in)
{
	int64_t n = cut->split ? cut->split : 1, size, from, sub, at;
	struct list out = { .n = 0 };

	for (int64_t s = 0; s < n; s++) {
		sk_chunk(in->n, n, s, &size, &from);
		sk_chunk(size, cut->pieces, piece, &sub, &at);
		for (int64_t k = 0; k < sub; k++)
			out.v[out.n++] = in->v[from + at + k];
	}
	return out;
}

static void random_intervals(struct sk_intervals *in)
{
	int64_t at = 0, size;

	*in = (struct sk_intervals){ 0 };
	while (at < SIDE && pick(12)) {
		size = pick(5) ? 1 + pick(6) : SIDE;
		size = sk_min_i64(size, SIDE - at);
		cr_assert_eq(sk_intervals_add(in, (struct sk_interval){
						      at, size }), 0);
		at += size + pick(3);
	}
}

Test(strided, a_cut_is_what_lists_of_elements_give, .timeout = 300)
{
	for (int round = 0; round < 20000; round++) {
		struct sk_cut cut = { .pieces = 1 + pick(6),
				      .split = pick(2 + pick(80)) };
		struct sk_intervals in, out;
		struct list before, want, got;
		int64_t piece = pick(cut.pieces);

		random_intervals(&in);
		before = list_of(&in);
		want = cut_list(&cut, piece, &before);
		cr_assert_eq(sk_cut_apply(&cut, piece, &in, &out), 0);
		got = list_of(&out);
		cr_assert_eq(got.n, want.n, "round %d", round);
		cr_assert_eq(memcmp(got.v, want.v, (size_t)want.n *
							   sizeof(*want.v)), 0);
		cr_assert_eq(out.total, want.n);
		for (int i = 1; i < out.n; i++)
			cr_assert_gt(out.v[i].from, out.v[i - 1].from +
						    out.v[i - 1].size);
		free(in.v);
		free(out.v);
	}
}

/* As many chunks as elements, and no end of either. */
Test(strided, more_chunks_than_can_be_counted, .timeout = 300)
{
	struct sk_interval all = { 0, (int64_t)1 << 60 };
	const struct sk_intervals in = { .v = &all, .n = 1,
					 .total = all.size };
	struct sk_cut cut = { .pieces = 2, .split = all.size };
	struct sk_intervals out;

	/* The first rank has each chunk whole, the second nothing of any. */
	cr_assert_eq(sk_cut_apply(&cut, 0, &in, &out), 0);
	cr_assert(out.n == 1 && out.total == all.size);
	free(out.v);
	cr_assert_eq(sk_cut_apply(&cut, 1, &in, &out), 0);
	cr_assert(out.n == 0 && out.total == 0);
	/* A half of each is more than anybody may hold. */
	cut.split = all.size / 2;
	cr_assert_eq(sk_cut_apply(&cut, 1, &in, &out), -E2BIG);
	cut.split = INT64_MAX;
	cr_assert_eq(sk_cut_apply(&cut, 0, &in, &out), 0);
	cr_assert_eq(out.total, all.size);
	free(out.v);
}

/* ---- where boxes lie in the local tensor ---- */

/* By definition: behind all intervals of its dimension that are before. */
static int64_t local_at(const struct sk_box *boxes, int n, int b, int d)
{
	bool counted[SIDE] = { false };
	int64_t at = 0;

	for (int i = 0; i < n; i++) {
		if (boxes[i].offset[d] >= boxes[b].offset[d] ||
		    counted[boxes[i].offset[d]])
			continue;
		counted[boxes[i].offset[d]] = true;
		at += boxes[i].size[d];
	}
	return at;
}

static void check_rank(const struct sk_spec *spec, int rank)
{
	int64_t at[SK_MAX_DIMS] = { 0 };
	struct sk_box *boxes = NULL;
	int n;

	cr_assert_eq(sk_spec_boxes(spec, rank, &boxes, &n, NULL), 0);
	for (int b = 0; b < n; b++) {
		if (b)
			sk_spec_next_box(spec->ndim, &boxes[b - 1], &boxes[b],
					 at);
		for (int d = 0; d < spec->ndim; d++)
			cr_assert_eq(at[d], sk_box_empty(spec->ndim,
							 &boxes[0]) ? 0 :
				     local_at(boxes, n, b, d));
	}
	free(boxes);
}

Test(strided, boxes_lie_behind_those_before_them, .timeout = 300)
{
	struct sk_mesh *m = NULL;

	cr_assert_eq(sk_mesh_new(3, (int64_t[]){ 2, 3, 2 }, NULL, NULL, &m,
				 NULL), 0);
	for (int round = 0; round < 1000; round++) {
		struct sk_spec spec = { .name = "w", .dtype = SK_U8,
					.ndim = 1 + (int)pick(3), .mesh = m };

		for (int d = 0; d < spec.ndim; d++)
			spec.shape[d] = pick(SIDE / spec.ndim);
		for (int k = 0; k < 3; k++)
			spec.placements[k] = pick(4) ?
				(struct sk_placement)SK_STRIDED_SHARD(
					(int)pick(spec.ndim), 1 + pick(9)) :
				(struct sk_placement)SK_REPLICATE;
		cr_assert_eq(sk_spec_normalize(&spec, NULL), 0);
		for (int rank = 0; rank < 12; rank++)
			check_rank(&spec, rank);
	}
	sk_mesh_unref(m);
}
