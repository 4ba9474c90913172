/* SPDX-License-Identifier: Apache-2.0 */
/* Sketches, outlines, and layouts that follow from others by arithmetic. */
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
	return sk_layout_new_over(base->job, rank, base->world, kind,
				  base->nodes, items, n, ret, NULL);
}

int sk_layout_compute(struct sk_layout *base, int32_t rank,
		      enum sk_image_kind kind, struct sk_layout **ret)
{
	if (rank == base->rank && base->header)
		return sk_layout_other(base, kind, ret, NULL);
	return compute(base, rank, kind, NULL, ret);
}

/* Their sizes are in no description. */
uint32_t sk_layout_locals(const struct sk_layout *l, int64_t *ret_sizes)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < l->n_items; i++) {
		if (l->items[i].kind != SK_ITEM_BLOB_LOCAL)
			continue;
		if (ret_sizes)
			/* A sketch's items are another rank's. */
			ret_sizes[n] = l->header ? l->items[i].spec.shape[0] :
						   l->priv->locals[n];
		n++;
	}
	return n;
}

bool sk_layout_says_boxes(const struct sk_layout *l)
{
	for (uint32_t i = 0; i < l->n_items; i++)
		if (l->items[i].explicit_boxes)
			return true;
	return false;
}

/* Of a layout that is like @like; @locals are taken over. */
static struct sk_layout *sketch(struct sk_layout *base,
				const struct sk_layout *like, int64_t *locals,
				uint32_t n_locals)
{
	struct sk_layout *l = malloc(sizeof(*l));
	struct sk_layout_priv *priv = calloc(1, sizeof(*priv));

	base = sk_layout_root(base);
	if (!l || !priv || !locals) {
		free(priv);
		free(l);
		free(locals);
		return NULL;
	}
	*l = *like;
	l->items = base->items;
	l->n_items = base->n_items;
	l->nodes = base->nodes;		/* for as long as its items */
	l->entries = NULL;
	l->n_entries = 0;
	l->header = NULL;
	l->priv = priv;
	priv->locals = locals;
	priv->base = sk_layout_ref(base);
	priv->memory = sizeof(*l) + sizeof(*priv) +
		       n_locals * sizeof(*locals);
	return l;
}

struct sk_layout *sk_layout_sketch(struct sk_layout *base,
				   const struct sk_layout *like)
{
	uint32_t n = sk_layout_locals(like, NULL);
	int64_t *locals = calloc(n + 1u, sizeof(*locals));

	assert(base->header && base->description == like->description);
	assert(base->world == like->world && !strcmp(base->job, like->job));
	if (locals)
		(void)sk_layout_locals(like, locals);
	return sketch(base, like, locals, n);
}

struct sk_layout *sk_layout_sketch_brief(struct sk_layout *base,
					 const struct sk_layout_brief *b)
{
	struct sk_layout like = *base;
	int64_t *locals;

	if (!base->header || base->description != b->description ||
	    b->rank < 0 || b->rank >= base->world ||
	    sk_layout_says_boxes(base) ||
	    sk_layout_locals(base, NULL) != b->n_locals)
		return NULL;
	like.rank = b->rank;
	like.kind = SK_IMAGE_PRIMARY;
	like.n_sums = b->n_sums;
	like.header_bytes = b->header_bytes;
	like.image_bytes = b->image_bytes;
	like.digest = b->digest;
	locals = calloc(b->n_locals + 1u, sizeof(*locals));
	if (locals && b->n_locals)
		memcpy(locals, b->locals, b->n_locals * sizeof(*locals));
	return sketch(base, &like, locals, b->n_locals);
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
