/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is primary. Each group of equal holders deals its items, largest first,
 * to whoever of it has the fewest bytes; every holder computes the same.
 */
#include <string.h>

#include "dtype.h"
#include "layout-private.h"
#include "util.h"

struct group {
	const struct sk_mesh *mesh;	/* NULL: the world */
	uint32_t replicated;		/* mask of mesh dimensions */
	int32_t *ranks;
	uint64_t *load;
	int n;
};

struct dealt {
	uint32_t item;
	uint32_t group;
	uint64_t bytes;
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
		      struct group **groups, uint32_t *n)
{
	uint32_t mask = replicated_mask(spec);
	struct group g = { .mesh = spec->mesh, .replicated = mask }, *bigger;

	for (uint32_t i = *n; i > 0; i--)
		if (same_group(&(*groups)[i - 1], spec, mask))
			return (int)(i - 1);
	if (sk_spec_holders(spec, l->rank, l->world, &g.ranks, &g.n, NULL) < 0)
		return -ENOMEM;
	g.load = calloc((size_t)g.n, sizeof(*g.load));
	bigger = realloc(*groups, (*n + 1) * sizeof(*bigger));
	if (!g.load || !bigger) {
		free(g.ranks);
		free(g.load);
		if (bigger)
			*groups = bigger;
		return -ENOMEM;
	}
	*groups = bigger;
	bigger[*n] = g;
	return (int)(*n)++;
}

static int compare(const void *a, const void *b)
{
	const struct dealt *x = a, *y = b;

	if (x->bytes != y->bytes)
		return x->bytes < y->bytes ? 1 : -1;
	return strcmp(x->name, y->name);
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
	return item->kind == SK_ITEM_BLOB_LOCAL || item->explicit_boxes ||
	       !item->n_boxes ||
	       sk_box_empty(item->spec.ndim, &item->boxes[0]);
}

static bool deal(struct group *g, uint64_t bytes, int32_t rank)
{
	int best = 0;

	for (int i = 1; i < g->n; i++)
		if (g->load[i] < g->load[best])
			best = i;
	g->load[best] += bytes;
	return g->ranks[best] == rank;
}

int sk_layout_split(const struct sk_layout *l, bool *ret_primary,
		    struct sk_err *err)
{
	_cleanup_free_ struct dealt *dealt = NULL;
	struct group *groups = NULL;
	uint32_t n = 0, n_groups = 0;
	int g = 0;

	dealt = malloc((l->n_items + 1u) * sizeof(*dealt));
	if (!dealt)
		return sk_err_set(err, -ENOMEM, "out of memory for a layout");
	for (uint32_t i = 0; i < l->n_items && g >= 0; i++) {
		const struct sk_item *item = &l->items[i];

		ret_primary[i] = true;
		if (is_own(item))
			continue;
		g = find_group(l, &item->spec, &groups, &n_groups);
		dealt[n++] = (struct dealt){ i, (uint32_t)g, item_bytes(item),
					     item->spec.name };
	}
	if (g >= 0) {
		qsort(dealt, n, sizeof(*dealt), compare);
		for (uint32_t i = 0; i < n; i++)
			ret_primary[dealt[i].item] =
				deal(&groups[dealt[i].group], dealt[i].bytes,
				     l->rank);
	}
	for (uint32_t i = 0; i < n_groups; i++) {
		free(groups[i].ranks);
		free(groups[i].load);
	}
	free(groups);
	return g < 0 ? sk_err_set(err, g, "out of memory for a layout") : 0;
}
