/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is primary. Each group of equal holders deals its items, largest first,
 * to whoever of it has the fewest bytes; every holder computes the same.
 */
#include <assert.h>
#include <string.h>

#include "base/array.h"
#include "base/table.h"
#include "base/util.h"
#include "layout/deal.h"
#include "layout/private.h"
#include "tensor/dtype.h"

struct group {
	const struct sk_mesh *mesh;	/* NULL: the world */
	uint32_t replicated;		/* mask of mesh dimensions */
	int64_t own;			/* which of the holders we are */
	struct sk_deal deal;
};

struct groups {
	struct group *v;
	uint32_t n, room;
	struct sk_table table;	/* indices, by mesh and mask */
};

struct dealt {
	uint32_t item;
	uint32_t group;
	uint64_t bytes;
	enum sk_item_kind kind;
	const char *name;
};

static uint32_t replicated_mask(const struct sk_spec *spec)
{
	uint32_t mask = 0;

	for (int m = 0; spec->mesh && m < sk_mesh_ndim(spec->mesh); m++)
		if (spec->placements[m].kind == SK_PLACEMENT_REPLICATE)
			mask |= 1u << m;
	return mask;
}

static bool same_group(const struct group *g, const struct sk_spec *spec,
		       uint32_t mask)
{
	if (!g->mesh || !spec->mesh)
		return !g->mesh && !spec->mesh;
	return g->replicated == mask && sk_mesh_equal(g->mesh, spec->mesh);
}

/* The group of a spec, made when it is new; -ENOMEM. */
static int find_group(const struct sk_layout *l, const struct sk_spec *spec,
		      struct groups *groups)
{
	uint32_t mask = replicated_mask(spec);
	struct group g = { .mesh = spec->mesh, .replicated = mask };

	uint64_t hash = (spec->mesh ? sk_mesh_hash(spec->mesh) : 0) + mask;
	struct sk_table_walk walk = sk_table_find(&groups->table, hash);
	uintptr_t i;

	while (sk_table_next(&walk, &i))
		if (same_group(&groups->v[i], spec, mask))
			return (int)i;
	sk_spec_holder(spec, l->rank, l->world, &g.own, &g.deal.holders);
	assert(g.deal.holders > 0 && g.own < g.deal.holders);
	if (sk_array_fit(groups->v, groups->room, groups->n + 1u) < 0 ||
	    sk_table_add(&groups->table, hash, groups->n) < 0)
		return -ENOMEM;
	groups->v[groups->n] = g;
	return (int)groups->n++;
}

/* Never the same of two, lest the C library decide: each rank may have
 * another one. */
static int compare(const void *a, const void *b)
{
	const struct dealt *x = a, *y = b;
	int c;

	if (x->bytes != y->bytes)
		return x->bytes < y->bytes ? 1 : -1;
	c = strcmp(x->name, y->name);
	return c ? c : (int)x->kind - (int)y->kind;
}

static uint64_t item_bytes(const struct sk_item *item)
{
	uint64_t bits = 0;

	for (int b = 0; b < item->n_boxes; b++)
		bits += (uint64_t)sk_box_volume(item->spec.ndim,
						&item->boxes[b]) *
			sk_dtype_bits(item->spec.dtype);
	return bits / 8;
}

/* True: nobody else may hold it, or it has no bytes to deal. */
static bool is_own(const struct sk_item *item)
{
	assert(item->n_boxes >= 0);
	return item->kind == SK_ITEM_BLOB_LOCAL || item->explicit_boxes ||
	       !item->n_boxes ||
	       sk_box_empty(item->spec.ndim, &item->boxes[0]);
}

/* Deals them in their order; 0 or -ENOMEM. */
static int deal(struct groups *groups, struct dealt *dealt, uint32_t n,
		bool *ret_primary, int64_t *ret_turns)
{
	qsort(dealt, n, sizeof(*dealt), compare);
	for (uint32_t i = 0; i < n; i++) {
		struct group *g = &groups->v[dealt[i].group];
		int64_t holder = sk_deal_next(&g->deal, dealt[i].bytes);

		assert(dealt[i].group < groups->n && g->own >= 0);
		if (holder < 0)
			return (int)holder;
		if (ret_primary)
			ret_primary[dealt[i].item] = holder == g->own;
		if (ret_turns)
			ret_turns[dealt[i].item] = holder;
	}
	return 0;
}

int sk_layout_split(const struct sk_layout *l, bool *ret_primary,
		    int64_t *ret_turns, struct sk_err *err)
{
	_cleanup_free_ struct dealt *dealt = NULL;
	struct groups groups = { NULL };
	uint32_t n = 0;
	int r = 0;

	dealt = malloc((l->n_items + 1u) * sizeof(*dealt));
	if (!dealt)
		return sk_err_set(err, -ENOMEM, "out of memory for a layout");
	for (uint32_t i = 0; i < l->n_items && r >= 0; i++) {
		const struct sk_item *item = &l->items[i];

		if (ret_primary)
			ret_primary[i] = true;
		if (ret_turns)
			ret_turns[i] = -1;
		if (is_own(item))
			continue;
		r = find_group(l, &item->spec, &groups);
		if (r >= 0 && groups.v[r].deal.holders == 1) {
			if (ret_turns)
				ret_turns[i] = 0;
			continue;	/* there is nobody to deal with */
		}
		dealt[n++] = (struct dealt){ i, (uint32_t)r, item_bytes(item),
					     item->kind, item->spec.name };
	}
	if (r >= 0)
		r = deal(&groups, dealt, n, ret_primary, ret_turns);
	for (uint32_t i = 0; i < groups.n; i++)
		free(groups.v[i].deal.heap);
	free(groups.v);
	sk_table_free(&groups.table);
	return r < 0 ? sk_err_set(err, r, "out of memory for a layout") : 0;
}

int sk_layout_turns(const struct sk_layout *l, int64_t *ret_turns,
		    struct sk_err *err)
{
	return sk_layout_split(l, NULL, ret_turns, err);
}
