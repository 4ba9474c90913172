/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

void series_add(struct series *s, double v)
{
	if (s->n < BENCH_ROUNDS_MAX)
		s->v[s->n++] = v;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *v, int n)
{
	if (!n)
		return NAN;
	qsort(v, (size_t)n, sizeof(*v), by_value);
	return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

double series_median(const struct series *s)
{
	struct series copy = *s;

	return median(copy.v, copy.n);
}

double series_min(const struct series *s)
{
	struct series copy = *s;

	return copy.n ? (median(copy.v, copy.n), copy.v[0]) : NAN;
}

double series_max(const struct series *s)
{
	struct series copy = *s;

	return copy.n ? (median(copy.v, copy.n), copy.v[copy.n - 1]) : NAN;
}

double series_ratio(const struct series *a, const struct series *b)
{
	struct series ratios = { 0 };

	for (int i = 0; i < a->n && i < b->n; i++)
		series_add(&ratios, a->v[i] / b->v[i]);
	return series_median(&ratios);
}
