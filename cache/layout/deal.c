/* SPDX-License-Identifier: Apache-2.0 */
#include "layout/deal.h"

#include <assert.h>
#include <stdbool.h>

#include "base/array.h"

static bool is_before(const struct sk_hand *a, const struct sk_hand *b)
{
	return a->bytes != b->bytes ? a->bytes < b->bytes :
				      a->holder < b->holder;
}

static bool swap_if_before(struct sk_deal *d, size_t child, size_t parent)
{
	struct sk_hand hand = d->heap[child];

	assert(child < d->n && parent < child);
	d->steps++;
	if (!is_before(&hand, &d->heap[parent]))
		return false;
	d->heap[child] = d->heap[parent];
	d->heap[parent] = hand;
	return true;
}

static void sift_up(struct sk_deal *d, size_t i)
{
	assert(i < d->n);
	while (i && swap_if_before(d, i, (i - 1) / 2))
		i = (i - 1) / 2;
}

static void sift_down(struct sk_deal *d, size_t i)
{
	for (size_t child; (child = 2 * i + 1) < d->n; i = child) {
		if (child + 1 < d->n &&
		    is_before(&d->heap[child + 1], &d->heap[child]))
			child++;
		if (!swap_if_before(d, child, i))
			return;
	}
}

int64_t sk_deal_next(struct sk_deal *d, uint64_t bytes)
{
	int64_t holder = (int64_t)d->n;

	assert(holder <= d->holders && d->n <= d->room);
	assert(d->holders > 0);
	/* One who got nothing but empty items stands before the unserved. */
	if (holder == d->holders || (d->n && !d->heap[0].bytes)) {
		holder = d->heap[0].holder;
		d->heap[0].bytes += bytes;
		sift_down(d, 0);
		return holder;
	}
	if (sk_array_fit(d->heap, d->room, d->n + 1) < 0)
		return -ENOMEM;
	d->heap[d->n++] = (struct sk_hand){ bytes, holder };
	sift_up(d, d->n - 1);
	return holder;
}
