/* SPDX-License-Identifier: Apache-2.0 */
#include "layout/mentions.h"

#include <assert.h>
#include <string.h>

static int compare(const void *a, const void *b)
{
	const struct sk_mention *x = a, *y = b;
	int c = (int)x->item->kind - (int)y->item->kind;

	if (!c)
		c = strcmp(x->item->spec.name, y->item->spec.name);
	if (!c)
		c = x->image->layout->rank - y->image->layout->rank;
	if (!c)
		c = (int)x->image->layout->kind - (int)y->image->layout->kind;
	return c;
}

int sk_mentions_new(const struct sk_coverage_image *images, size_t n,
		    struct sk_mention **ret, size_t *ret_n, struct sk_err *err)
{
	struct sk_mention *all;
	size_t count = 0;

	*ret_n = 0;
	for (size_t i = 0; i < n; i++)
		count += images[i].layout->n_items;
	*ret = all = malloc((count + 1) * sizeof(*all));
	if (!all)
		return sk_err_set(err, -ENOMEM, "out of memory");
	count = 0;
	for (size_t i = 0; i < n; i++)
		for (uint32_t k = 0; k < images[i].layout->n_items; k++)
			all[count++] = (struct sk_mention){
				&images[i].layout->items[k], &images[i] };
	qsort(all, count, sizeof(*all), compare);
	*ret_n = count;
	return 0;
}

/* A local blob is another thing on each rank. */
static bool same_thing(const struct sk_mention *a, const struct sk_mention *b)
{
	return a->item->kind == b->item->kind &&
	       !strcmp(a->item->spec.name, b->item->spec.name) &&
	       (a->item->kind != SK_ITEM_BLOB_LOCAL ||
		a->image->layout->rank == b->image->layout->rank);
}

size_t sk_mentions_of_first(const struct sk_mention *m, size_t n)
{
	size_t k = 1;

	assert(n);
	while (k < n && same_thing(&m[0], &m[k]))
		k++;
	return k;
}

int sk_mentions_agree(const struct sk_mention *m, size_t n,
		      struct sk_err *err)
{
	const struct sk_spec *a = &m->item->spec;

	assert(n);
	for (size_t i = 1; i < n; i++) {
		const struct sk_spec *b = &m[i].item->spec;

		if (a->dtype != b->dtype || a->ndim != b->ndim ||
		    memcmp(a->shape, b->shape,
			   (size_t)a->ndim * sizeof(*a->shape)))
			return sk_err_set(err, -EINVAL, "ranks %d and %d "
					  "disagree on the dtype or shape of "
					  "\"%s\"", m->image->layout->rank,
					  m[i].image->layout->rank, a->name);
	}
	return 0;
}
