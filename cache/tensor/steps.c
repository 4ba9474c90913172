/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/steps.h"

#include <assert.h>
#include <stddef.h>

/* ---- checking ---- */

/* The loop of the largest stride below @below; -1: none. */
static int next_smaller(const struct sk_steps *s, int64_t below)
{
	int best = -1;

	for (int i = 0; i < s->n; i++)
		if (s->v[i].stride < below &&
		    (best < 0 || s->v[i].stride > s->v[best].stride))
			best = i;
	return best;
}

/* From the largest stride down: each spans at least what is below it. Equal
 * strides do not, and only one of them is met. */
static bool is_nested(const struct sk_steps *s)
{
	int64_t below = INT64_MAX;
	int met = 0;

	for (int i; (i = next_smaller(s, below)) >= 0; met++) {
		if (s->v[i].stride > below / s->v[i].count)
			return false;
		below = s->v[i].stride;
	}
	return met == s->n;
}

/* Loops of one turn go, and those that go on where the next inner one ends
 * are one with it. */
static void merge(struct sk_steps *s)
{
	int n = 0;

	for (int i = 0; i < s->n; i++) {
		struct sk_step *inner = n ? &s->v[n - 1] : NULL;

		if (s->v[i].count == 1)
			continue;
		if (inner && s->v[i].stride / inner->count == inner->stride &&
		    s->v[i].stride % inner->count == 0)
			inner->count *= s->v[i].count;
		else
			s->v[n++] = s->v[i];
	}
	s->n = n;
}

bool sk_steps_normalize(struct sk_steps *s, int64_t n)
{
	int64_t count = 1, last = s->first;

	if (s->first < 0 || s->n < 0 || s->n > SK_STEPS_MAX)
		return false;
	for (int i = 0; i < s->n; i++) {
		const struct sk_step *v = &s->v[i];

		if (v->count < 1 || v->stride < 1 || v->count > n ||
		    v->stride > INT32_MAX || count > n / v->count ||
		    (v->count > 1 &&
		     v->stride > (INT32_MAX - last) / (v->count - 1)))
			return false;
		count *= v->count;
		last += (v->count - 1) * v->stride;
	}
	if (count != n)
		return false;
	merge(s);
	return is_nested(s);
}

/* ---- finding them in a list ---- */

/* How many of the @m elements, one each @every, count up by @stride. */
static int64_t run_length(const int32_t *ranks, int64_t every, int64_t m,
			  int64_t stride)
{
	int64_t k = 1;

	assert(every > 0 && m > 0);
	while (k < m && (int64_t)ranks[k * every] -
			ranks[(k - 1) * every] == stride)
		k++;
	return k;
}

/* Whether all groups of @k elements count up as the first one does. */
static bool all_alike(const int32_t *ranks, int64_t every, int64_t m,
		      int64_t k, int64_t stride)
{
	assert(k > 0 && m % k == 0);
	for (int64_t g = 0; g < m; g += k)
		if (run_length(&ranks[g * every], every, k, stride) != k)
			return false;
	return true;
}

bool sk_steps_of(const int32_t *ranks, int64_t n, struct sk_steps *ret)
{
	struct sk_steps s = { .first = ranks[0] };

	assert(n > 0);
	/* Loop by loop from the innermost; after each, one element stands for
	 * the block that the loops so far make. */
	for (int64_t every = 1, m = n; m > 1;) {
		int64_t stride = (int64_t)ranks[every] - ranks[0];
		int64_t k = run_length(ranks, every, m, stride);

		if (stride < 1 || m % k || s.n == SK_STEPS_MAX ||
		    !all_alike(ranks, every, m, k, stride))
			return false;
		s.v[s.n++] = (struct sk_step){ k, stride };
		every *= k;
		m /= k;
	}
	if (!sk_steps_normalize(&s, n))
		return false;
	*ret = s;
	return true;
}

/* ---- using them ---- */

int32_t sk_steps_at(const struct sk_steps *s, int64_t index)
{
	int64_t rank = s->first;

	assert(index >= 0);
	for (int i = 0; i < s->n; i++) {
		rank += index % s->v[i].count * s->v[i].stride;
		index /= s->v[i].count;
	}
	return (int32_t)rank;
}

int64_t sk_steps_find(const struct sk_steps *s, int32_t rank)
{
	int64_t rest = (int64_t)rank - s->first, below = INT64_MAX;
	int64_t digit[SK_STEPS_MAX] = { 0 }, index = 0;

	if (rest < 0)
		return -1;
	/* The largest stride first, as digits of a number are found. */
	for (int i; (i = next_smaller(s, below)) >= 0;) {
		below = s->v[i].stride;
		digit[i] = rest / below;
		rest %= below;
		if (digit[i] >= s->v[i].count)
			return -1;
	}
	for (int i = s->n - 1; i >= 0; i--)
		index = index * s->v[i].count + digit[i];
	return rest ? -1 : index;
}

bool sk_steps_equal(const struct sk_steps *a, const struct sk_steps *b)
{
	if (a->first != b->first || a->n != b->n)
		return false;
	for (int i = 0; i < a->n; i++)
		if (a->v[i].count != b->v[i].count ||
		    a->v[i].stride != b->v[i].stride)
			return false;
	return true;
}
