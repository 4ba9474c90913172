/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is primary, and on which rank of a node a replica is kept once. Each
 * group of equal holders deals its items, largest first, to whoever of it has
 * the fewest bytes; then those of one node deal what is primary elsewhere in
 * the same way. Every holder computes the same.
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
	/* Where a node keeps a replica once: which of the holders are on ours,
	 * ascending; owned. Else NULL. */
	int64_t *near;
	struct sk_deal near_deal;
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

static int by_number(const void *a, const void *b)
{
	const int64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/* Which of the spec's holders are on our node: we, at least. */
static int find_near(const struct sk_layout *l, const struct sk_spec *spec,
		     struct group *g)
{
	int64_t count = sk_nodes_count(l->nodes, l->rank), n = 0;

	g->near = calloc((size_t)count, sizeof(*g->near));
	if (!g->near)
		return -ENOMEM;
	for (int64_t i = 0; i < count; i++) {
		int32_t rank = sk_nodes_rank(l->nodes, l->rank, i);
		int64_t holder = sk_spec_holder_find(spec, l->rank, rank,
						     l->world);

		if (holder >= 0)
			g->near[n++] = holder;
	}
	assert(n > 0);
	qsort(g->near, (size_t)n, sizeof(*g->near), by_number);
	g->near_deal.holders = n;
	return 0;
}

static bool is_near(const struct group *g, int64_t holder)
{
	return bsearch(&holder, g->near, (size_t)g->near_deal.holders,
		       sizeof(holder), by_number) != NULL;
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
	    sk_table_add(&groups->table, hash, groups->n) < 0 ||
	    (l->nodes && l->kind == SK_IMAGE_REPLICA &&
	     find_near(l, spec, &g) < 0))
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

/* Whether our replica image has what @primary is primary of: 1 or 0; -ENOMEM.
 * Asked of each item, in the order in which they are dealt. */
static int keeps_replica(struct group *g, int64_t primary, uint64_t bytes)
{
	int64_t turn;

	if (!g->near)
		return primary != g->own;
	if (is_near(g, primary))
		return 0;
	turn = sk_deal_next(&g->near_deal, bytes);
	return turn < 0 ? (int)turn : g->near[turn] == g->own;
}

/* Deals them in their order; 0 or -ENOMEM. */
static int deal(struct groups *groups, struct dealt *dealt, uint32_t n,
		enum sk_image_kind kind, bool *ret_has, int64_t *ret_turns)
{
	qsort(dealt, n, sizeof(*dealt), compare);
	for (uint32_t i = 0; i < n; i++) {
		struct group *g = &groups->v[dealt[i].group];
		int64_t holder = sk_deal_next(&g->deal, dealt[i].bytes);
		int has = holder == g->own;

		assert(dealt[i].group < groups->n && g->own >= 0);
		if (holder >= 0 && ret_has && kind == SK_IMAGE_REPLICA)
			has = keeps_replica(g, holder, dealt[i].bytes);
		if (holder < 0 || has < 0)
			return -ENOMEM;
		if (ret_has)
			ret_has[dealt[i].item] = has;
		if (ret_turns)
			ret_turns[dealt[i].item] = holder;
	}
	return 0;
}

static void groups_free(struct groups *groups)
{
	for (uint32_t i = 0; i < groups->n; i++) {
		free(groups->v[i].deal.heap);
		free(groups->v[i].near_deal.heap);
		free(groups->v[i].near);
	}
	free(groups->v);
	sk_table_free(&groups->table);
}

int sk_layout_split(const struct sk_layout *l, bool *ret_has,
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

		if (ret_has)
			ret_has[i] = l->kind == SK_IMAGE_PRIMARY;
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
		r = deal(&groups, dealt, n, l->kind, ret_has, ret_turns);
	groups_free(&groups);
	return r < 0 ? sk_err_set(err, r, "out of memory for a layout") : 0;
}

int sk_layout_turns(const struct sk_layout *l, int64_t *ret_turns,
		    struct sk_err *err)
{
	return sk_layout_split(l, NULL, ret_turns, err);
}
