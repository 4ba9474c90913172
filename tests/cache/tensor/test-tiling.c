/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tilings against a bitmap of every element and a comparison of every pair.
 * Growth is counted in visits, never in time.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "base/util.h"
#include "tensor/tiling.h"
#include "support/random.h"

#define BOXES 64

static uint64_t seed = 11;

static int64_t pick(int64_t n)
{
	return (int64_t)draw(&seed, (uint64_t)n);
}

static void shuffle(struct sk_box *v, size_t n)
{
	for (; n > 1; n--) {
		size_t k = (size_t)pick((int64_t)n);
		struct sk_box x = v[k];

		v[k] = v[n - 1];
		v[n - 1] = x;
	}
}

/* ---- the references ---- */

static bool holds(int ndim, const struct sk_box *box, const int64_t *at)
{
	for (int d = 0; d < ndim; d++)
		if (at[d] < box->offset[d] ||
		    at[d] >= box->offset[d] + box->size[d])
			return false;
	return true;
}

static bool in_any(int ndim, const struct sk_box *v, size_t n,
		   const int64_t *at)
{
	for (size_t i = 0; i < n; i++)
		if (holds(ndim, &v[i], at))
			return true;
	return false;
}

static bool fills_naively(int ndim, const struct sk_box *whole,
			  const struct sk_box *v, size_t n)
{
	int64_t volume = sk_box_volume(ndim, whole);

	for (int64_t i = 0; i < volume; i++) {
		int64_t at[SK_MAX_DIMS], rest = i;

		for (int d = ndim - 1; d >= 0; d--) {
			at[d] = whole->offset[d] + rest % whole->size[d];
			rest /= whole->size[d];
		}
		if (!in_any(ndim, v, n, at))
			return false;
	}
	return true;
}

static bool overlaps_naively(int ndim, const struct sk_box *whole,
			     const struct sk_box *v, size_t n)
{
	struct sk_box both, inside;

	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < i; k++)
			if (sk_box_intersect(ndim, &v[i], &v[k], &both) &&
			    sk_box_intersect(ndim, &both, whole, &inside))
				return true;
	return false;
}

/* ---- what is tried ---- */

/* Cuts @whole at random into at most @room boxes. */
static size_t cut_up(int ndim, const struct sk_box *whole, struct sk_box *v,
		     size_t room)
{
	size_t n = 1;

	v[0] = *whole;
	for (int tries = 0; ndim && tries < 4 * BOXES && n < room; tries++) {
		struct sk_box *box = &v[pick((int64_t)n)];
		int d = (int)pick(ndim);
		int64_t size = box->size[d], at;

		if (size < 2)
			continue;
		at = 1 + pick(size - 1);
		v[n] = *box;
		v[n].offset[d] += at;
		v[n++].size[d] -= at;
		box->size[d] = at;
	}
	return n;
}

static void grow(int ndim, struct sk_box *box)
{
	for (int d = 0; d < ndim; d++) {
		int64_t less = pick(3) ? 0 : pick(box->offset[d] + 1);

		box->offset[d] -= less;
		box->size[d] += less + (pick(3) ? 0 : pick(3));
	}
}

static void random_box(int ndim, const struct sk_box *whole,
		       struct sk_box *box)
{
	*box = (struct sk_box){ 0 };
	for (int d = 0; d < ndim; d++) {
		box->offset[d] = pick(whole->size[d] + 1);
		box->size[d] = pick(whole->size[d] + 2 - box->offset[d]);
	}
}

/* A tiling, whole or with faults, or anything at all. */
static size_t random_boxes(int ndim, const struct sk_box *whole,
			   struct sk_box v[BOXES])
{
	size_t n = cut_up(ndim, whole, v, 1 + (size_t)pick(BOXES / 2));
	int kind = (int)pick(5);

	shuffle(v, n);
	for (size_t i = 0; i < n && kind == 1; i++)
		grow(ndim, &v[i]);
	if (kind == 2)
		grow(ndim, &v[pick((int64_t)n)]);
	if (kind == 3)
		n--;		/* a hole, if the last one is not the whole */
	if (kind == 4)
		n = (size_t)pick(BOXES);
	for (size_t i = 0; i < n && kind == 4; i++)
		random_box(ndim, whole, &v[i]);
	return n;
}

static void random_space(struct sk_box *whole, int *ret_ndim)
{
	static const int64_t sides[] = { 1, 90, 14, 7, 5 };

	*ret_ndim = (int)pick(5);
	*whole = (struct sk_box){ 0 };
	for (int d = 0; d < *ret_ndim; d++)
		whole->size[d] = 1 + pick(sides[*ret_ndim]);
}

Test(tiling, is_what_every_element_and_every_pair_says, .timeout = 300)
{
	int filled = 0, overlapping = 0, rounds = 20000;

	for (int round = 0; round < rounds; round++) {
		struct sk_box whole, v[BOXES], both;
		uint64_t visits;
		size_t n, pair[2];
		bool fills = false;
		int ndim, r;

		random_space(&whole, &ndim);
		n = random_boxes(ndim, &whole, v);
		visits = sk_tiling_visits(ndim, n);
		cr_assert_eq(sk_tiling_fills(ndim, &whole, v, n, &visits,
					     &fills), 0, "round %d", round);
		cr_assert_eq(fills, fills_naively(ndim, &whole, v, n),
			     "round %d, %zu boxes", round, n);
		visits = sk_tiling_visits(ndim, n);
		r = sk_tiling_overlap(ndim, &whole, v, n, &visits, pair);
		cr_assert_eq(r, overlaps_naively(ndim, &whole, v, n),
			     "round %d, %zu boxes", round, n);
		if (r)
			cr_assert(pair[0] < pair[1] && pair[1] < n &&
				  sk_box_intersect(ndim, &v[pair[0]],
						   &v[pair[1]], &both));
		filled += fills;
		overlapping += r;
	}
	/* Both answers were given often. */
	cr_assert(filled > rounds / 4 && filled < rounds * 3 / 4);
	cr_assert(overlapping > rounds / 4 && overlapping < rounds * 3 / 4);
}

/* No box reaches into it, and each that is one element wider meets one, or the
 * border. */
static bool is_hole(int ndim, const struct sk_box *whole,
		    const struct sk_box *v, size_t n, const struct sk_box *hole)
{
	struct sk_box common;

	if (!sk_box_intersect(ndim, hole, whole, &common) ||
	    !sk_box_equal(ndim, hole, &common))
		return false;
	for (int d = -1; d < 2 * ndim; d++) {
		struct sk_box wide = *hole;
		bool meets;

		if (d >= 0) {
			wide.size[d / 2]++;
			wide.offset[d / 2] -= d % 2;
		}
		meets = !sk_box_intersect(ndim, &wide, whole, &common) ||
			!sk_box_equal(ndim, &wide, &common);
		for (size_t i = 0; i < n && !meets; i++)
			meets = sk_box_intersect(ndim, &v[i], &wide, &common);
		if (meets != (d >= 0))
			return false;
	}
	return true;
}

Test(tiling, a_hole_is_one_and_as_wide_as_it_can_be, .timeout = 300)
{
	int holes = 0, rounds = 20000;

	for (int round = 0; round < rounds; round++) {
		struct sk_box whole, v[BOXES], hole;
		uint64_t visits = 1 << 20;
		int ndim, r;
		size_t n;

		random_space(&whole, &ndim);
		n = random_boxes(ndim, &whole, v);
		r = sk_tiling_hole(ndim, &whole, v, n, &visits, &hole);
		cr_assert_eq(r, !fills_naively(ndim, &whole, v, n),
			     "round %d, %zu boxes", round, n);
		cr_assert(!r || is_hole(ndim, &whole, v, n, &hole),
			  "round %d, %zu boxes", round, n);
		holes += r;
	}
	cr_assert(holes > rounds / 4 && holes < rounds * 3 / 4);
}

Test(tiling, nothing_and_one)
{
	struct sk_box whole = { .size = { 4, 4 } }, none = { .size = { 0 } };
	uint64_t visits = 0;
	size_t pair[2];
	bool fills;

	/* Without boxes or elements there is nothing to pay for. */
	cr_assert_eq(sk_tiling_fills(2, &whole, NULL, 0, &visits, &fills), 0);
	cr_assert(!fills);
	cr_assert_eq(sk_tiling_fills(2, &none, NULL, 0, &visits, &fills), 0);
	cr_assert(fills);
	cr_assert_eq(sk_tiling_overlap(2, &whole, &none, 1, &visits, pair), 0);
	/* For one there is. */
	cr_assert_eq(sk_tiling_fills(2, &whole, &whole, 1, &visits, &fills),
		     -E2BIG);
}

/* Boxes are compared and hashed as they lie in memory. */
Test(tiling, a_whole_has_nothing_beyond_its_dimensions)
{
	const int64_t shape[] = { 3, 4, 7 };
	struct sk_box box = sk_box_whole(2, shape);

	cr_assert_eq(box.size[0], 3);
	cr_assert_eq(box.size[1], 4);
	cr_assert_eq(box.size[2], 0);
}

/* ---- growth ---- */

typedef size_t (*make_fn)(int ndim, size_t n, struct sk_box *whole,
			  struct sk_box *ret);

static void cube(int ndim, int64_t side, struct sk_box *ret)
{
	*ret = (struct sk_box){ 0 };
	for (int d = 0; d < ndim; d++)
		ret->size[d] = side;
}

/* The elements [from, to) of memory in row-major order, as few boxes. */
static size_t interval(int ndim, int64_t side, int64_t from, int64_t to,
		       struct sk_box *ret)
{
	size_t n = 0;

	while (from < to) {
		int64_t stride = 1, rest = from, index;
		struct sk_box box = { 0 };
		int d = ndim - 1;

		/* The widest dimension whose rows begin and fit here. */
		for (; d > 0 && rest % side == 0 &&
		     from + stride * side <= to; d--) {
			stride *= side;
			rest /= side;
			box.size[d] = side;
		}
		index = rest % side;
		box.offset[d] = index;
		box.size[d] = sk_min_i64((to - from) / stride, side - index);
		from += box.size[d] * stride;
		for (rest /= side; --d >= 0; rest /= side) {
			box.offset[d] = rest % side;
			box.size[d] = 1;
		}
		ret[n++] = box;
	}
	return n;
}

/* What FSDP1 makes of one parameter: each rank has a part of it, flat. */
static size_t make_flat(int ndim, size_t n, struct sk_box *whole,
			struct sk_box *ret)
{
	int64_t side = ndim == 1 ? 1 << 24 : ndim == 2 ? 4099 : 257;
	int64_t total, part;
	size_t k = 0;

	cube(ndim, side, whole);
	total = sk_box_volume(ndim, whole);
	part = total / (int64_t)n + 1;
	for (int64_t at = 0; at < total; at += part)
		k += interval(ndim, side, at, sk_min_i64(at + part, total),
			      ret + k);
	return k;
}

static size_t make_grid(int ndim, size_t n, struct sk_box *whole,
			struct sk_box *ret)
{
	int64_t side = 1;
	size_t count = 1;

	while ((size_t)((side + 1) * (side + 1)) <= n ||
	       (ndim == 1 && (size_t)side < n))
		side++;
	cube(ndim, 3 * side, whole);
	for (int d = 2; d < ndim; d++)
		whole->size[d] = 3;
	for (int d = 0; d < ndim && d < 2; d++)
		count *= (size_t)side;
	for (size_t i = 0; i < count; i++) {
		cube(ndim, 3, &ret[i]);
		ret[i].offset[0] = 3 * ((int64_t)i % side);
		if (ndim > 1)
			ret[i].offset[1] = 3 * ((int64_t)i / side);
	}
	return count;
}

/* Tall columns beside flat rows: every row is beside every column. */
static size_t make_combs(int ndim, size_t n, struct sk_box *whole,
			 struct sk_box *ret)
{
	int64_t half = (int64_t)n / 2;

	if (ndim == 1)
		return make_grid(ndim, n, whole, ret);
	cube(ndim, 2 * half, whole);
	for (int64_t i = 0; i < half; i++) {
		ret[2 * i] = ret[2 * i + 1] = *whole;
		ret[2 * i].offset[0] = 2 * i;
		ret[2 * i].size[0] = 2;
		ret[2 * i].size[ndim - 1] = half;
		ret[2 * i + 1].offset[ndim - 1] = half + i;
		ret[2 * i + 1].size[ndim - 1] = 1;
	}
	return 2 * (size_t)half;
}

/* A tiling whose boxes were all made longer: each element is held often. */
static size_t make_overlaps(int ndim, size_t n, struct sk_box *whole,
			    struct sk_box *ret)
{
	n = make_grid(ndim, n, whole, ret);
	for (size_t i = 0; i < n; i++)
		for (int d = 0; d < ndim; d++)
			ret[i].size[d] = sk_min_i64(
				3 + pick(6),
				whole->size[d] - ret[i].offset[d]);
	return n;
}

/* Rows that fill everything, and columns that do: both families alike. */
static size_t make_twice(int ndim, size_t n, struct sk_box *whole,
			 struct sk_box *ret)
{
	cube(ndim, (int64_t)n, whole);
	for (size_t i = 0; i < n; i++) {
		int d = (int)(i % 2) * (ndim - 1);

		ret[i] = *whole;
		ret[i].offset[d] = (int64_t)i;
		ret[i].size[d] = sk_min_i64(2, (int64_t)(n - i));
		if (i == 1) {
			ret[i].offset[d] = 0;
			ret[i].size[d] = 3;
		}
	}
	return n;
}

static const make_fn makes[] = { make_flat, make_grid, make_combs,
				 make_overlaps, make_twice };

/* Visits that were needed, for @n of them or about. */
static double visits_each(make_fn make, int ndim, size_t n, bool fills)
{
	struct sk_box *v = malloc(8 * n * sizeof(*v)), whole;
	uint64_t left, budget;
	size_t pair[2];
	bool filled = false;
	int r;

	cr_assert_not_null(v);
	n = make(ndim, n, &whole, v);
	shuffle(v, n);
	left = budget = sk_tiling_visits(ndim, n);
	if (fills) {
		r = sk_tiling_fills(ndim, &whole, v, n, &left, &filled);
		cr_assert(r == 0 && filled, "%d", r);
	} else {
		r = sk_tiling_overlap(ndim, &whole, v, n, &left, pair);
		cr_assert_eq(r, make == make_overlaps || make == make_twice);
	}
	free(v);
	return (double)(budget - left) / (double)n;
}

/* Twice the boxes take about one more round each, 4 doublings four. */
Test(tiling, boxes_that_cuts_can_part_take_n_log_n_visits, .timeout = 300)
{
	for (size_t m = 0; m < SK_ARRAY_SIZE(makes); m++)
		for (int ndim = 1; ndim <= 3; ndim++)
			for (int fills = 0; fills < 2; fills++) {
				double few = visits_each(makes[m], ndim, 1024,
							 fills);
				double many = visits_each(makes[m], ndim,
							  16384, fills);

				cr_expect_lt(many, 2.0 * few + 8, "make %zu, "
					     "%d dimensions, %s: %.1f, %.1f",
					     m, ndim, fills ? "fills" :
					     "overlap", few, many);
			}
}

/* ---- hostile ---- */

/* Rods in all directions, apart from each other, that no cut parts. */
static size_t make_rods(int ndim, size_t n, struct sk_box *whole,
			struct sk_box *ret)
{
	int64_t side = 2;
	size_t k = 0;

	cr_assert_eq(ndim, 3);
	while (3 * (side / 2) * (side / 2) < (int64_t)n)
		side += 2;
	cube(ndim, side, whole);
	for (int64_t a = 0; a < side; a += 2)
		for (int64_t b = 0; b < side; b += 2)
			for (int d = 0; d < 3 && k < n; d++, k++) {
				cube(3, 1, &ret[k]);
				ret[k].size[d] = side;
				ret[k].offset[(d + 1) % 3] = a;
				ret[k].offset[(d + 2) % 3] = b + 1;
			}
	return k;
}

/* Boxes in boxes in boxes, each of which lacks a half. */
static size_t make_onion(int ndim, size_t n, struct sk_box *whole,
			 struct sk_box *ret)
{
	cube(ndim, 4 * (int64_t)n, whole);
	for (size_t i = 0; i < n; i++) {
		for (int d = 0; d < ndim; d++) {
			ret[i].offset[d] = (int64_t)i;
			ret[i].size[d] = 4 * (int64_t)n - 2 * (int64_t)i;
		}
		ret[i].size[i % (size_t)ndim] /= 2;
	}
	return n;
}

/* Slabs in every direction leave a lattice of holes, all but the last of
 * which large boxes fill. */
static size_t make_lattice(int ndim, size_t n, struct sk_box *whole,
			   struct sk_box *ret)
{
	int64_t each = (int64_t)n / ndim;
	size_t k = 0;

	cube(ndim, 2 * each, whole);
	for (int d = 0; d < ndim; d++)
		for (int64_t i = 0; i < each; i++) {
			ret[k] = *whole;
			ret[k].offset[d] = 2 * i;
			ret[k++].size[d] = 1;
		}
	/* Instead of one slab, all but a corner. */
	for (int d = 0; d < ndim; d++) {
		ret[d] = *whole;
		ret[d].size[d]--;
	}
	return k;
}

/* A box of a grid over dimensions @d and @d + 1. */
static struct sk_box grid_box(const struct sk_box *whole, int d, int64_t i)
{
	struct sk_box box = *whole;

	box.offset[d] = i / whole->size[d];
	box.offset[d + 1] = i % whole->size[d];
	box.size[d] = box.size[d + 1] = 1;
	return box;
}

/* A grid over the first two dimensions that lacks every other box, and a whole
 * one over the last two: each gap of the one is filled by all of the other. */
static size_t make_grids(int ndim, size_t n, struct sk_box *whole,
			 struct sk_box *ret)
{
	int64_t side = 1;
	size_t k = 0;

	while ((size_t)(2 * (side + 1) * (side + 1)) <= n)
		side++;
	cube(ndim, side, whole);
	for (int64_t i = 0; i < side * side; i++) {
		ret[k++] = grid_box(whole, ndim - 2, i);
		if ((i / side + i % side) % 2)
			ret[k++] = grid_box(whole, 0, i);
	}
	return k;
}

/* The same, but every other box of the whole grid is two, cut anywhere. */
static size_t make_mixed_grids(int ndim, size_t n, struct sk_box *whole,
			       struct sk_box *ret)
{
	size_t k = make_grids(ndim, n * 3 / 4, whole, ret), more = k;

	for (size_t i = 0; i < k; i++) {
		int64_t at = 1 + pick(whole->size[0] - 1);

		if (ret[i].size[0] == 1 ||
		    (ret[i].offset[ndim - 2] + ret[i].offset[ndim - 1]) % 2)
			continue;
		ret[more] = ret[i];
		ret[more].offset[0] = at;
		ret[more++].size[0] -= at;
		ret[i].size[0] = at;
	}
	return more;
}

static size_t make_random(int ndim, size_t n, struct sk_box *whole,
			  struct sk_box *ret)
{
	cube(ndim, 1 << 20, whole);
	for (size_t i = 0; i < n; i++)
		random_box(ndim, whole, &ret[i]);
	return n;
}

/* Whatever is asked ends within the visits, with an answer or without. */
Test(tiling, a_hard_question_costs_no_more_than_was_offered, .timeout = 300)
{
	static const make_fn hard[] = { make_rods, make_onion, make_lattice,
					make_random, make_grids,
					make_mixed_grids };
	struct sk_box *v = malloc(16384 * sizeof(*v)), whole, hole;
	int refused = 0;

	cr_assert_not_null(v);
	for (size_t m = 0; m < SK_ARRAY_SIZE(hard); m++)
		for (int ndim = 2; ndim <= 8; ndim++) {
			uint64_t left;
			size_t n, pair[2];
			bool fills = true;
			int r;

			if ((hard[m] == make_rods && ndim != 3) ||
			    ((hard[m] == make_grids ||
			      hard[m] == make_mixed_grids) && ndim < 4))
				continue;
			memset(v, 0, 16384 * sizeof(*v));
			n = hard[m](ndim, 16384, &whole, v);
			left = sk_tiling_visits(ndim, n);
			r = sk_tiling_fills(ndim, &whole, v, n, &left, &fills);
			cr_expect(r == -E2BIG ? !left : r == 0);
			refused += r == -E2BIG;
			cr_expect(r == 0 || hard[m] == make_mixed_grids);
			left = sk_tiling_visits(ndim, n);
			r = sk_tiling_hole(ndim, &whole, v, n, &left, &hole);
			cr_expect(r == -E2BIG ? !left : r == 1 || fills);
			left = sk_tiling_visits(ndim, n);
			r = sk_tiling_overlap(ndim, &whole, v, n, &left, pair);
			cr_expect(r == -E2BIG ? !left : r >= 0);
			cr_expect(r == (hard[m] != make_rods) || r == -E2BIG);
		}
	free(v);
	cr_expect(refused, "nothing was hard");
}
