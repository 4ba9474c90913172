/* SPDX-License-Identifier: Apache-2.0 */
/* Sketches, and layouts that follow from others by arithmetic. */
#include <assert.h>
#include <string.h>

#include "base/util.h"
#include "layout/private.h"

/* The same tensors as the rank's other image, or what placements give another
 * rank; boxes said one by one give that nothing. @locals: sizes of its local
 * blobs, in the order of the items; NULL: those of @base. */
static int compute(const struct sk_layout *base, int32_t rank,
		   enum sk_image_kind kind, const int64_t *locals,
		   struct sk_layout **ret)
{
	_cleanup_free_ struct sk_item *items = NULL;
	uint32_t n = base->n_items;

	if (rank >= base->world)
		return -EINVAL;
	items = calloc(n + 1u, sizeof(*items));
	if (!items)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++) {
		items[i] = base->items[i];
		if (base->rank != rank && items[i].explicit_boxes)
			return -EINVAL;
		if (locals && items[i].kind == SK_ITEM_BLOB_LOCAL)
			items[i].spec.shape[0] = *locals++;
	}
	return sk_layout_new(base->job, rank, base->world, kind, items, n, ret,
			     NULL);
}

int sk_layout_compute(const struct sk_layout *base, int32_t rank,
		      enum sk_image_kind kind, struct sk_layout **ret)
{
	return compute(base, rank, kind, NULL, ret);
}

static uint32_t count_locals(const struct sk_layout *l)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < l->n_items; i++)
		n += l->items[i].kind == SK_ITEM_BLOB_LOCAL;
	return n;
}

/* Their sizes are in no description. */
static int64_t *sizes_of_locals(const struct sk_layout *l)
{
	int64_t *sizes = calloc(count_locals(l) + 1u, sizeof(*sizes));
	uint32_t n = 0;

	for (uint32_t i = 0; sizes && i < l->n_items; i++)
		if (l->items[i].kind == SK_ITEM_BLOB_LOCAL)
			sizes[n++] = l->items[i].spec.shape[0];
	return sizes;
}

bool sk_layout_says_boxes(const struct sk_layout *l)
{
	for (uint32_t i = 0; i < l->n_items; i++)
		if (l->items[i].explicit_boxes)
			return true;
	return false;
}

struct sk_layout *sk_layout_sketch(struct sk_layout *base,
				   const struct sk_layout *like)
{
	struct sk_layout *l = malloc(sizeof(*l));

	assert(base->header && base->description == like->description);
	assert(base->world == like->world && !strcmp(base->job, like->job));
	if (!l)
		return NULL;
	*l = *like;
	l->items = base->items;
	l->n_items = base->n_items;
	l->entries = NULL;
	l->n_entries = 0;
	l->header = NULL;
	l->priv = calloc(1, sizeof(*l->priv));
	if (l->priv)
		l->priv->locals = sizes_of_locals(like);
	if (!l->priv || !l->priv->locals) {
		free(l->priv);
		free(l);
		return NULL;
	}
	l->priv->base = sk_layout_ref(base);
	l->priv->memory = sizeof(*l) + sizeof(*l->priv) +
			  count_locals(like) * sizeof(int64_t);
	return l;
}

int sk_layout_whole(struct sk_layout *l, struct sk_layout **ret)
{
	struct sk_layout *whole = NULL;
	int r;

	if (l->header) {
		*ret = sk_layout_ref(l);
		return 0;
	}
	r = compute(l->priv->base, l->rank, l->kind, l->priv->locals, &whole);
	if (r < 0)
		return r == -ENOMEM ? r : -EBADMSG;
	if (!sk_digest_equal(&whole->digest, &l->digest)) {
		sk_layout_free(whole);
		return -EBADMSG;
	}
	*ret = whole;
	return 0;
}
