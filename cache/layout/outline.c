/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Outlines. What a rank describes is most of its header, and that of others is
 * the very same but for boxes, its replicas' those too: the words are taken as
 * they stand, and the digest of the header tells whether they were right.
 */
#include <assert.h>
#include <string.h>

#include "base/util.h"
#include "layout/private.h"

int sk_layout_boxes(const struct sk_layout *l, const struct sk_item *item,
		    struct sk_box **ret_boxes, int *ret_n)
{
	size_t bytes = (size_t)item->n_boxes * sizeof(**ret_boxes);

	assert(item >= l->items && item < l->items + l->n_items);
	if (!l->header && !item->explicit_boxes)
		return sk_spec_boxes(&item->spec, l->rank, ret_boxes, ret_n,
				     NULL);
	*ret_boxes = malloc(bytes ? bytes : 1);
	if (!*ret_boxes)
		return -ENOMEM;
	if (bytes)
		memcpy(*ret_boxes, item->boxes, bytes);
	*ret_n = item->n_boxes;
	return 0;
}

/* ---- making ---- */

static bool same_boxes(const struct sk_item *item, const struct sk_box *v,
		       int n)
{
	bool same = n == item->n_boxes;

	for (int b = 0; b < n && same; b++)
		same = sk_box_equal(item->spec.ndim, &item->boxes[b], &v[b]);
	return same;
}

/* What @rank holds of the item, where it is another part than @item says. */
static int place(struct sk_item *item, int32_t rank)
{
	struct sk_box *boxes = NULL;
	int n, r;

	r = sk_spec_boxes(&item->spec, rank, &boxes, &n, NULL);
	if (r < 0)
		return r;
	if (same_boxes(item, boxes, n)) {
		free(boxes);
		return 0;
	}
	item->boxes = boxes;
	item->n_boxes = n;
	return 0;
}

static void free_items(struct sk_item *items, const struct sk_layout *base)
{
	for (uint32_t i = 0; items && i < base->n_items; i++)
		if (items[i].boxes != base->items[i].boxes)
			free(items[i].boxes);
	free(items);
}

/* @base's items with @rank's boxes: the rest of them, and boxes that are the
 * same, are @base's own. */
static int place_items(const struct sk_layout *base, int32_t rank,
		       struct sk_item **ret)
{
	struct sk_item *items = calloc(base->n_items + 1u, sizeof(*items));
	int r = items ? 0 : -ENOMEM;

	if (items)
		memcpy(items, base->items, base->n_items * sizeof(*items));
	for (uint32_t i = 0; i < base->n_items && r >= 0; i++)
		r = place(&items[i], rank);
	if (r >= 0)
		*ret = items;
	else
		free_items(items, base);
	return r;
}

/* It has been what the digest says. */
static void drop_header(struct sk_layout *l)
{
	free((char *)l->header);
	free(l->priv->sums_at);
	l->header = NULL;
	l->priv->sums_at = NULL;
}

/* Entries and digest of one that has nothing but @items yet. */
static int fill(struct sk_layout *l, struct sk_item *items)
{
	struct sk_item *lasting = l->items;
	int r;

	l->items = items;
	r = sk_layout_finish(l, NULL);
	l->items = lasting;
	drop_header(l);
	return r;
}

/* The digest is of all of them; the few are known by their index. */
static int keep(struct sk_layout *l, sk_keeps_fn keeps, void *ctx)
{
	uint32_t n = l->n_entries;
	int r;

	l->n_entries = 0;
	for (uint32_t i = 0; i < n; i++)
		if (!keeps || keeps(l, &l->entries[i], ctx))
			l->entries[l->n_entries++] = l->entries[i];
	if (l->n_entries < n)
		sk_layout_trim_entries(l);
	r = sk_layout_index_entries(l, NULL);
	l->priv->memory += sk_layout_entries_memory(l);
	return r;
}

static int outline(struct sk_layout *base, int32_t rank,
		   enum sk_image_kind kind, struct sk_layout **ret)
{
	_cleanup_layout_ struct sk_layout *l = NULL;
	struct sk_layout like = *base;
	struct sk_item *items;
	int r;

	like.rank = rank;
	like.kind = kind;
	l = sk_layout_sketch(base, &like);
	if (!l)
		return -ENOMEM;
	r = place_items(base, rank, &items);
	if (r < 0)
		return r;
	r = fill(l, items);
	free_items(items, base);
	if (r >= 0)
		*ret = sk_take_ptr(l);
	return r;
}

int sk_layout_outline(struct sk_layout *base, int32_t rank,
		      enum sk_image_kind kind, const struct sk_digest *digest,
		      sk_keeps_fn keeps, void *ctx, struct sk_layout **ret)
{
	_cleanup_layout_ struct sk_layout *l = NULL;
	int r;

	base = sk_layout_root(base);
	assert(base->header);
	if (rank < 0 || rank >= base->world || sk_layout_says_boxes(base))
		return -ENOENT;
	r = outline(base, rank, kind, &l);
	if (r < 0)
		return r == -ENOMEM ? r : -ENOENT;
	if (!sk_digest_equal(&l->digest, digest))
		return -ENOENT;
	r = keep(l, keeps, ctx);
	if (r >= 0)
		*ret = sk_take_ptr(l);
	return r;
}
