/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps: a list of ranks that counts up evenly, in as many nested loops as it
 * takes. Ranks of a mesh mostly do: all of a job, every fourth, rows of a
 * larger mesh. Then a few numbers say them, however many they are.
 *
 * The list is that of
 *
 *	for (i = 0; i < v[n - 1].count; i++)
 *		...
 *			for (k = 0; k < v[0].count; k++)
 *				first + i * v[n - 1].stride + ...
 *				      + k * v[0].stride
 *
 * and it names each rank once, because some order of the loops is nested:
 * each stride is at least what the loops of smaller strides span. There is one
 * way to say a list. Thread-safety: pure.
 */
#ifndef SK_CACHE_TENSOR_STEPS_H
#define SK_CACHE_TENSOR_STEPS_H

#include <stdbool.h>
#include <stdint.h>

/** Most loops; 2^24 ranks could take no more than 24. */
#define SK_STEPS_MAX 8

struct sk_step {
	int64_t count;		/* > 1 */
	int64_t stride;		/* > 0 */
};

struct sk_steps {
	int32_t first;
	int n;			/* loops; 0: @first alone */
	struct sk_step v[SK_STEPS_MAX];	/* innermost first */
};

/** The steps of @n ranks (> 0), which are >= 0 but need not differ. False:
 * there are none. */
bool sk_steps_of(const int32_t *ranks, int64_t n, struct sk_steps *ret);

/** Brings @steps of unknown origin into their one form; false if they are
 * none, or do not count exactly @n ranks of 0 .. INT32_MAX, each once. */
bool sk_steps_normalize(struct sk_steps *steps, int64_t n);

/** The rank at @index, which is below the count. */
int32_t sk_steps_at(const struct sk_steps *steps, int64_t index);
/** Where @rank is, or -1. */
int64_t sk_steps_find(const struct sk_steps *steps, int32_t rank);
bool sk_steps_equal(const struct sk_steps *a, const struct sk_steps *b);

#endif
