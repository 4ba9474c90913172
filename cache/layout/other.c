/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank's other image: of the same tensors, so that its items, and the words
 * of its header that describe them, are those of the first. A sketch that is
 * then finished.
 */
#include <assert.h>

#include "base/util.h"
#include "layout/private.h"

int sk_layout_other(struct sk_layout *base, enum sk_image_kind kind,
		    struct sk_layout **ret, struct sk_err *err)
{
	_cleanup_layout_ struct sk_layout *l = NULL;
	struct sk_layout like = *base;
	int r;

	assert(base->header);
	like.kind = kind;
	l = sk_layout_sketch(base, &like);
	if (!l)
		return sk_err_set(err, -ENOMEM, "out of memory for a layout");
	r = sk_layout_finish(l, err);
	if (r >= 0)
		r = sk_layout_index_entries(l, err);
	if (r < 0)
		return r;
	l->priv->memory += sk_layout_entries_memory(l) + l->header_bytes +
			   (uint64_t)l->n_sums * sizeof(*l->priv->sums_at);
	*ret = sk_take_ptr(l);
	return 0;
}
