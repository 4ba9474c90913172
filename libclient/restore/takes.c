/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/takes.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "restore/keys.h"
#include "restore/open.h"
#include "state/names.h"
#include "tensor/box.h"

/* Mostly all is described in the order in which it was saved. */
static int64_t find_local(const struct sk_restoring *rs, uint32_t i,
			  const struct sk_item *item)
{
	if (sk_restore_is_registered_as(rs, i, item) ||
	    (i < rs->state->n_locals &&
	     !strcmp(rs->state->locals[i].item.spec.name, item->spec.name)))
		return i;
	return sk_state_find(rs->state, item->spec.name);
}

/* Which local, and 1, is restored from the layout's item @i; 0: none. */
static uint32_t local_of(const struct sk_restoring *rs, uint32_t i,
			 const struct sk_item *item)
{
	int64_t at = rs->wanted ? find_local(rs, i, item) : -1;

	if (at < 0 || !rs->wanted[at] ||
	    rs->state->locals[at].item.kind != item->kind)
		return 0;
	return (uint32_t)at + 1;
}

static int find_locals(const struct sk_restoring *rs,
		       struct sk_restore_description *d)
{
	d->locals = calloc(d->layout->n_items + 1u, sizeof(*d->locals));
	if (!d->locals)
		return -ENOMEM;
	for (uint32_t i = 0; i < d->layout->n_items; i++)
		d->locals[i] = local_of(rs, i, &d->layout->items[i]);
	return 0;
}

int sk_restore_taking(struct sk_restoring *rs,
		      const struct sk_restore_image *image,
		      struct sk_restore_taking *ret)
{
	struct sk_restore_description *d;

	d = sk_restore_description(rs, image->description);
	*ret = (struct sk_restore_taking){ .rs = rs, .image = image };
	if (!d)
		return 0;
	if (!d->locals && find_locals(rs, d) < 0)
		return sk_err_set(&rs->err, -ENOMEM, "no memory for what is "
				  "wanted of %u tensors", d->layout->n_items);
	ret->locals = d->locals;
	ret->n_items = d->layout->n_items;
	return 0;
}

static bool wants_of(const struct sk_local *local, const struct sk_box *box)
{
	int ndim = local->item.spec.ndim;
	struct sk_box cut;

	for (int i = 0; i < local->item.n_boxes; i++)
		if (sk_box_intersect(ndim, &local->parts[i].box, box, &cut))
			return true;
	return false;
}

bool sk_restore_takes(const struct sk_layout *l, const struct sk_entry *e,
		      void *ctx)
{
	const struct sk_restore_taking *t = ctx;
	const struct sk_restoring *rs = t->rs;
	uint32_t local;

	assert(e->item < l->n_items);
	/* What is in this node's memory is what ranks of others come for. */
	if (e->item >= t->n_items ||
	    (rs->apart && t->image->places[0].listed))
		return true;
	local = t->locals[e->item];
	if (!local)
		return false;
	/* A rank's own blob is in its images alone; others bear its name. */
	if (l->items[e->item].kind == SK_ITEM_BLOB_LOCAL)
		return l->rank == rs->state->job.rank;
	return wants_of(&rs->state->locals[local - 1], &e->box);
}
