/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/asked.h"

#include <stdlib.h>

#include "base/util.h"
#include "restore/wants.h"

static int no_memory(struct sk_restoring *rs, size_t n)
{
	return sk_err_set(&rs->err, -ENOMEM, "no memory for %zu pieces that "
			  "other nodes ask for", n);
}

/* What rank @k says is checked before anything is counted by it. */
static int add_asks(struct sk_restoring *rs, int32_t k,
		    const struct sk_restore_parcel *asked, struct sk_asked *a)
{
	const struct sk_want *v = asked->data;
	size_t n = asked->bytes / sizeof(*v);

	for (size_t i = 0; i < n; i++) {
		if (v[i].from >= v[i].to ||
		    v[i].source != rs->state->job.rank)
			return sk_err_set(&rs->err, -EPROTO, "rank %d asks "
					  "for what cannot be", k);
		a->asks[a->n++] = (struct sk_ask){ &v[i], k, (uint32_t)i };
	}
	return 0;
}

static int list(struct sk_restoring *rs, const struct sk_wants *w,
		struct sk_asked *a)
{
	int r = 0;
	int32_t world = rs->state->job.world;
	size_t n = 0;

	for (int32_t k = 0; k < world; k++)
		n += w->asked[k].bytes / sizeof(struct sk_want);
	a->asks = calloc(n + 1, sizeof(*a->asks));
	a->wants = calloc(n + 1, sizeof(*a->wants));
	if (!a->asks || !a->wants || n > INT32_MAX)
		return no_memory(rs, n);
	for (int32_t k = 0; k < world && r >= 0; k++)
		r = add_asks(rs, k, &w->asked[k], a);
	return r;
}

static int by_want(const void *x, const void *y)
{
	const struct sk_ask *a = x, *b = y;
	int c = sk_want_compare(a->want, b->want);

	if (c)
		return c;
	if (a->rank != b->rank)
		return a->rank < b->rank ? -1 : 1;
	return (a->index > b->index) - (a->index < b->index);
}

/* Who asks for something twice would have it sent to itself. */
static int add_once(struct sk_restoring *rs, struct sk_asked *a, size_t first,
		    size_t n)
{
	for (size_t i = first + 1; i < first + n; i++)
		if (a->asks[i].rank == a->asks[i - 1].rank)
			return sk_err_set(&rs->err, -EPROTO, "rank %d asks for "
					  "the same bytes twice",
					  a->asks[i].rank);
	a->several |= n > 1;
	a->wants[a->n_wants++] = (struct sk_asked_want){ .first = first,
							 .n = n };
	return sk_restore_find_source(rs, a->asks[first].want,
				      &a->wants[a->n_wants - 1].sourced);
}

int sk_asked_new(struct sk_restoring *rs, const struct sk_wants *wants,
		 struct sk_asked *ret)
{
	int r;

	*ret = (struct sk_asked){ 0 };
	r = list(rs, wants, ret);
	if (r >= 0)
		qsort(ret->asks, ret->n, sizeof(*ret->asks), by_want);
	for (size_t i = 0, k; i < ret->n && r >= 0; i = k) {
		for (k = i + 1; k < ret->n &&
		     !sk_want_compare(ret->asks[k].want, ret->asks[i].want);)
			k++;
		r = add_once(rs, ret, i, k - i);
	}
	return r;
}

void sk_asked_free(struct sk_asked *asked)
{
	free(asked->asks);
	free(asked->wants);
}
