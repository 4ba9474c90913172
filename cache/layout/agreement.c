/* SPDX-License-Identifier: Apache-2.0 */
#include "layout/agreement.h"

#include "base/util.h"
#include "layout/mentions.h"

static int by_description(const void *a, const void *b)
{
	const struct sk_coverage_image *x = a, *y = b;
	uint64_t p = x->layout->description, q = y->layout->description;

	return (p > q) - (p < q);
}

/* One of each description: ranks that describe the same agree. */
static size_t distinct(const struct sk_coverage_image *images, size_t n,
		       struct sk_coverage_image *ret)
{
	size_t kept = 0;

	for (size_t i = 0; i < n; i++)
		ret[i] = images[i];
	qsort(ret, n, sizeof(*ret), by_description);
	for (size_t i = 0; i < n; i++)
		if (!i || by_description(&ret[i], &ret[kept - 1]))
			ret[kept++] = ret[i];
	return kept;
}

int sk_coverage_agree(const struct sk_coverage_image *images, size_t n,
		      struct sk_err *err)
{
	_cleanup_free_ struct sk_coverage_image *one =
		calloc(n + 1, sizeof(*one));
	_cleanup_free_ struct sk_mention *all = NULL;
	size_t count;
	int r;

	if (!one)
		return sk_err_set(err, -ENOMEM, "out of memory");
	n = distinct(images, n, one);
	r = sk_mentions_new(one, n, &all, &count, err);
	for (size_t i = 0, k; i < count && r >= 0; i += k) {
		k = sk_mentions_of_first(&all[i], count - i);
		r = sk_mentions_agree(&all[i], k, err);
	}
	return r;
}
