/* SPDX-License-Identifier: Apache-2.0 */
#include "layout/alike.h"

#include <assert.h>
#include <string.h>

#include "base/array.h"
#include "base/table.h"
#include "base/util.h"

/* What some ranks describe, by one of their layouts. */
struct kind {
	const struct sk_layout *layout;
};

/* All that one kind has on one mesh, summed up in no order. */
struct share {
	uint32_t kind;
	const struct sk_mesh *mesh;	/* NULL: the world */
	uint64_t sum;
};

struct alike {
	int32_t world;
	uint32_t *kind_of;		/* per rank, and 1; 0: no image */
	struct kind *kinds;
	size_t n_kinds, room_kinds;
	struct sk_table by_description;	/* indices of kinds */
	struct share *shares;
	size_t n_shares, room_shares;
	struct sk_table by_mesh;	/* and kind: indices of shares */
	const struct sk_item **named;
	size_t n_named, room_named;
	struct sk_table by_name;	/* indices of named */
	uint64_t *looks;
};

static void release(struct alike *a)
{
	free(a->kind_of);
	free(a->kinds);
	sk_table_free(&a->by_description);
	free(a->shares);
	sk_table_free(&a->by_mesh);
	free(a->named);
	sk_table_free(&a->by_name);
}

/* ---- ranks ---- */

/* The kind of the layout, and 1; 0: no memory. */
static uint32_t kind_of(struct alike *a, const struct sk_layout *l)
{
	struct sk_table_walk walk = sk_table_find(&a->by_description,
						  l->description);
	uintptr_t i;

	while (sk_table_next(&walk, &i))
		if (a->kinds[i].layout->description == l->description)
			return (uint32_t)i + 1;
	if (sk_array_fit(a->kinds, a->room_kinds, a->n_kinds + 1) < 0 ||
	    sk_table_add(&a->by_description, l->description, a->n_kinds) < 0)
		return 0;
	a->kinds[a->n_kinds].layout = l;
	return (uint32_t)++a->n_kinds;
}

/* 1: each rank has a primary image; 0: not so. */
static int take_ranks(struct alike *a, const struct sk_coverage_like *images,
		      size_t n)
{
	int32_t ranks = 0;

	for (size_t i = 0; i < n; i++) {
		const struct sk_coverage_like *image = &images[i];
		uint32_t kind;

		++*a->looks;
		if (image->kind != SK_IMAGE_PRIMARY)
			continue;
		if (!image->present || image->rank >= a->world ||
		    image->like->world != a->world || a->kind_of[image->rank])
			return 0;
		kind = kind_of(a, image->like);
		if (!kind)
			return -ENOMEM;
		a->kind_of[image->rank] = kind;
		ranks++;
	}
	return ranks == a->world;
}

/* ---- what they describe ---- */

static uint64_t hash_item(const struct sk_item *item)
{
	const struct sk_spec *s = &item->spec;
	uint64_t h = sk_hash_bytes(sk_hash_seed() + (uint64_t)item->kind,
				   s->name, strlen(s->name));

	h = sk_hash_bytes(h, &s->dtype, sizeof(s->dtype));
	h = sk_hash_bytes(h, s->shape, (size_t)s->ndim * sizeof(*s->shape));
	for (int m = 0; s->mesh && m < sk_mesh_ndim(s->mesh); m++) {
		const struct sk_placement *p = &s->placements[m];
		const int64_t v[] = { p->kind, p->dim, p->split_factor };

		h = sk_hash_bytes(h, v, sizeof(v));
	}
	return h;
}

static uint64_t hash_share(uint32_t kind, const struct sk_mesh *mesh)
{
	uint64_t h = mesh ? sk_mesh_hash(mesh) : sk_hash_seed();

	return sk_hash_bytes(h, &kind, sizeof(kind));
}

static bool same_mesh(const struct sk_mesh *a, const struct sk_mesh *b)
{
	return a && b ? sk_mesh_equal(a, b) : !a && !b;
}

static struct share *find_share(const struct alike *a, uint32_t kind,
				const struct sk_mesh *mesh)
{
	struct sk_table_walk walk = sk_table_find(&a->by_mesh,
						  hash_share(kind, mesh));
	uintptr_t i;

	while (sk_table_next(&walk, &i))
		if (a->shares[i].kind == kind &&
		    same_mesh(a->shares[i].mesh, mesh))
			return &a->shares[i];
	return NULL;
}

static int add_to_share(struct alike *a, uint32_t kind,
			const struct sk_item *item)
{
	const struct sk_mesh *mesh = item->spec.mesh;
	struct share *s = find_share(a, kind, mesh);

	if (!s) {
		if (sk_array_fit(a->shares, a->room_shares,
				 a->n_shares + 1) < 0 ||
		    sk_table_add(&a->by_mesh, hash_share(kind, mesh),
				 a->n_shares) < 0)
			return -ENOMEM;
		s = &a->shares[a->n_shares++];
		*s = (struct share){ .kind = kind, .mesh = mesh };
	}
	s->sum += hash_item(item);
	return 0;
}

/* 1: of that name there is one thing only; 0: not so. */
static int add_name(struct alike *a, const struct sk_item *item)
{
	uint64_t hash = sk_hash_bytes(sk_hash_seed() + (uint64_t)item->kind,
				      item->spec.name,
				      strlen(item->spec.name));
	struct sk_table_walk walk = sk_table_find(&a->by_name, hash);
	uintptr_t i;

	while (sk_table_next(&walk, &i))
		if (a->named[i]->kind == item->kind &&
		    !strcmp(a->named[i]->spec.name, item->spec.name))
			return sk_spec_same_layout(&a->named[i]->spec,
						   &item->spec);
	if (sk_array_fit(a->named, a->room_named, a->n_named + 1) < 0 ||
	    sk_table_add(&a->by_name, hash, a->n_named) < 0)
		return -ENOMEM;
	a->named[a->n_named++] = item;
	return 1;
}

/* 1: nothing said box by box, and names agree; 0: not so. */
static int take_kind(struct alike *a, uint32_t kind)
{
	const struct sk_layout *l = a->kinds[kind].layout;
	int r = 1;

	for (uint32_t i = 0; i < l->n_items && r > 0; i++) {
		const struct sk_item *item = &l->items[i];

		++*a->looks;
		if (item->explicit_boxes)
			return 0;
		/* Each rank's own, and in its primary image. */
		if (item->kind == SK_ITEM_BLOB_LOCAL || a->n_kinds == 1)
			continue;
		r = add_name(a, item);
		if (r > 0 && add_to_share(a, kind, item) < 0)
			r = -ENOMEM;
	}
	return r;
}

/* ---- meshes ---- */

/* Whether all ranks of the mesh have the same on it. */
static bool is_closed(struct alike *a, const struct share *s)
{
	int64_t n = s->mesh ? sk_mesh_count(s->mesh) : a->world;
	uint32_t last = s->kind;

	for (int64_t i = 0; i < n; i++) {
		int32_t rank = s->mesh ? sk_mesh_rank_at(s->mesh, i) :
					 (int32_t)i;
		const struct share *other;
		uint32_t kind;

		++*a->looks;
		if (rank >= a->world)
			return false;
		kind = a->kind_of[rank] - 1;
		if (kind == last)
			continue;
		other = find_share(a, kind, s->mesh);
		if (!other || other->sum != s->sum)
			return false;
		last = kind;
	}
	return true;
}

/* Whose share of that mesh is the first. */
static const struct share *first_share(const struct alike *a,
				       const struct share *s)
{
	for (uint32_t kind = 0; kind < s->kind; kind++) {
		const struct share *other = find_share(a, kind, s->mesh);

		if (other)
			return other;
	}
	return s;
}

/* A mesh that several kinds have is looked at once; who is outside of it may
 * not know more of it than those who are inside. */
static bool is_settled(struct alike *a, const struct share *s)
{
	const struct share *first = first_share(a, s);

	return first == s ? is_closed(a, s) : first->sum == s->sum;
}

static int decide(struct alike *a, const struct sk_coverage_like *images,
		  size_t n)
{
	int r = take_ranks(a, images, n);

	for (uint32_t kind = 0; kind < a->n_kinds && r > 0; kind++)
		r = take_kind(a, kind);
	for (size_t i = 0; i < a->n_shares && r > 0; i++)
		r = is_settled(a, &a->shares[i]);
	return r;
}

int sk_coverage_alike(const struct sk_coverage_like *images, size_t n,
		      int32_t world, bool *ret_covered, uint64_t *looks)
{
	struct alike a = { .world = world, .looks = looks };
	int r;

	assert(world >= 0);
	a.kind_of = calloc((size_t)world + 1, sizeof(*a.kind_of));
	r = a.kind_of ? decide(&a, images, n) : -ENOMEM;
	release(&a);
	if (r < 0)
		return r;
	*ret_covered = r;
	return 0;
}
