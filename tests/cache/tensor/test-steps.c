/* SPDX-License-Identifier: Apache-2.0 */
/* Steps against the lists of ranks that they stand for. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "tensor/mesh.h"
#include "tensor/steps.h"
#include "support/random.h"

#define RANKS 512

static uint64_t seed = 2;

static int64_t pick(int64_t n)
{
	return (int64_t)draw(&seed, (uint64_t)n);
}

/* By definition: nested loops. */
static int64_t list(const struct sk_steps *s, int32_t *ranks)
{
	int64_t n = 1;

	ranks[0] = s->first;
	for (int i = 0; i < s->n; i++) {
		for (int64_t k = n; k < n * s->v[i].count; k++)
			ranks[k] = (int32_t)(ranks[k - n] + s->v[i].stride);
		n *= s->v[i].count;
	}
	return n;
}

static bool distinct(const int32_t *ranks, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		for (int64_t k = 0; k < i; k++)
			if (ranks[i] == ranks[k])
				return false;
	return true;
}

static void random_steps(struct sk_steps *s)
{
	int64_t n = 1;

	*s = (struct sk_steps){ .first = (int32_t)pick(9) };
	while (s->n < SK_STEPS_MAX && pick(5)) {
		struct sk_step step = { 1 + pick(5), 1 + pick(4) * pick(20) };

		/* Often what a larger mesh would have. */
		if (s->n && pick(2))
			step.stride = s->v[s->n - 1].stride *
				      (s->v[s->n - 1].count + pick(3));
		n *= step.count;
		if (n > RANKS)
			return;
		s->v[s->n++] = step;
	}
}

static int64_t search(const int32_t *ranks, int64_t n, int32_t rank)
{
	for (int64_t i = 0; i < n; i++)
		if (ranks[i] == rank)
			return i;
	return -1;
}

static void expect_list(const struct sk_steps *s, const int32_t *ranks,
			int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		cr_assert_eq(sk_steps_at(s, i), ranks[i]);
	for (int32_t rank = 0; rank < 300; rank++)
		cr_assert_eq(sk_steps_find(s, rank), search(ranks, n, rank));
}

Test(steps, are_the_list_that_they_stand_for, .timeout = 300)
{
	int accepted = 0, rounds = 4000;

	for (int round = 0; round < rounds; round++) {
		struct sk_steps s, again = { 0 };
		int32_t ranks[RANKS];
		int64_t n;

		random_steps(&s);
		n = list(&s, ranks);
		if (!sk_steps_normalize(&s, n))
			continue;
		accepted++;
		cr_assert(distinct(ranks, n));
		expect_list(&s, ranks, n);
		/* One list, one form. */
		cr_assert(sk_steps_of(ranks, n, &again));
		cr_assert(sk_steps_equal(&s, &again));
		cr_assert(!sk_steps_normalize(&again, n + 1));
	}
	cr_assert(accepted > rounds / 3, "%d", accepted);
}

/* Whatever list: if it has steps they are it, and one change ends that. */
Test(steps, of_any_list, .timeout = 300)
{
	for (int round = 0; round < 4000; round++) {
		struct sk_steps s;
		int32_t ranks[RANKS];
		int64_t n, at;

		random_steps(&s);
		n = list(&s, ranks);
		at = pick(n);
		if (pick(2))
			ranks[at] = (int32_t)pick(200);
		if (!sk_steps_of(ranks, n, &s))
			continue;
		cr_assert(distinct(ranks, n));
		expect_list(&s, ranks, n);
	}
}

Test(steps, refuse_what_is_none)
{
	static const struct {
		struct sk_steps s;
		int64_t n;
	} bad[] = {
		{ { 0, 1, { { 4, 0 } } }, 4 },		/* one rank, often */
		{ { 0, 1, { { 4, -1 } } }, 4 },
		{ { -1, 0, { { 0, 0 } } }, 1 },
		{ { 0, 1, { { 0, 1 } } }, 0 },
		{ { 0, 2, { { 2, 1 }, { 2, 1 } } }, 4 },	/* 0 1 1 2 */
		/* 0 1 2 2 3 4 */
		{ { 0, 2, { { 3, 1 }, { 2, 2 } } }, 6 },
		{ { 0, 1, { { 4, 1 } } }, 5 },
		{ { 0, 9, { { 1, 1 } } }, 1 },
		{ { 0, -1, { { 1, 1 } } }, 1 },
		{ { INT32_MAX, 1, { { 2, 1 } } }, 2 },
		{ { 0, 1, { { 3, INT32_MAX } } }, 3 },
		{ { 0, 1, { { INT64_MAX, INT64_MAX } } }, INT64_MAX },
		{ { 0, 3, { { 1ll << 40, 1 }, { 1ll << 40, 1 },
			    { 1ll << 40, 1 } } }, 1ll << 56 },
	};

	for (size_t i = 0; i < SK_ARRAY_SIZE(bad); i++) {
		struct sk_steps s = bad[i].s;

		cr_assert(!sk_steps_normalize(&s, bad[i].n), "%zu", i);
	}
}

/* As many loops as there may be, none of which goes into another. */
Test(steps, as_many_as_there_may_be)
{
	struct sk_steps s = { .n = SK_STEPS_MAX };
	int64_t stride = 1;

	for (int i = 0; i < SK_STEPS_MAX; i++, stride *= 3)
		s.v[i] = (struct sk_step){ 2, stride };
	cr_assert(sk_steps_normalize(&s, 1 << SK_STEPS_MAX));
	cr_assert_eq(s.n, SK_STEPS_MAX);
}

/* Slices and subsets of meshes as trainers have them are said by steps. */
Test(steps, say_what_meshes_are)
{
	static const char *const names[] = { "pp", "dp", "tp" };
	struct sk_mesh *world = NULL, *child = NULL;

	cr_assert_eq(sk_mesh_new(3, (int64_t[]){ 4, 8, 2 }, NULL, names,
				 &world, NULL), 0);
	for (int set = 1; set < 8; set++) {
		const char *some[3];
		int n = 0;

		for (int d = 0; d < 3; d++)
			if (set & 1 << d)
				some[n++] = names[d];
		for (int32_t rank = 0; rank < 64; rank += 7) {
			cr_assert_eq(sk_mesh_slice(world, rank, some, n,
						   &child, NULL), 0);
			cr_assert_not_null(sk_mesh_steps(child));
			sk_mesh_unref(child);
		}
	}
	sk_mesh_unref(world);
}
