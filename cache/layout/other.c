/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank's other image: of the same tensors, so that its items, and the words
 * of its header that describe them, are those of the first.
 */
#include <assert.h>
#include <string.h>

#include "base/util.h"
#include "bytes/checksum.h"
#include "layout/private.h"

static uint64_t memory_of(const struct sk_layout *l)
{
	const struct sk_table *t = &l->priv->entries;

	return sizeof(*l) + sizeof(*l->priv) + l->header_bytes +
	       (uint64_t)l->n_entries * sizeof(*l->entries) +
	       (uint64_t)l->n_sums * sizeof(*l->priv->sums_at) +
	       (t->slots ? (t->mask + 1) * sizeof(*t->slots) : 0);
}

static struct sk_layout *begin(struct sk_layout *base,
			       enum sk_image_kind kind)
{
	struct sk_layout *l = malloc(sizeof(*l));
	struct sk_layout_priv *priv = calloc(1, sizeof(*priv));

	if (!l || !priv) {
		free(l);
		free(priv);
		return NULL;
	}
	*l = (struct sk_layout){
		.rank = base->rank, .world = base->world, .kind = kind,
		.items = base->items, .n_items = base->n_items, .priv = priv,
	};
	memcpy(l->job, base->job, sizeof(l->job));
	priv->base = sk_layout_ref(base);
	return l;
}

int sk_layout_other(struct sk_layout *base, enum sk_image_kind kind,
		    struct sk_layout **ret, struct sk_err *err)
{
	_cleanup_layout_ struct sk_layout *l = NULL;
	int r;

	base = sk_layout_root(base);
	assert(base->header);
	l = begin(base, kind);
	if (!l)
		return sk_err_set(err, -ENOMEM, "out of memory for a layout");
	r = sk_layout_fill(l, err);
	if (r >= 0)
		r = sk_layout_write_header(l, err);
	if (r < 0)
		return r;
	sk_xxh3_128(l->header, l->header_bytes, l->digest.bytes);
	l->priv->memory = memory_of(l);
	*ret = sk_take_ptr(l);
	return 0;
}
