/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/unlike.h"

#include <string.h>

#include "base/array.h"
#include "base/util.h"
#include "bytes/checksum.h"
#include "restore/agree.h"
#include "restore/keys.h"
#include "restore/nodes.h"

/* A tensor, and how it is described, as ranks of a node say it. */
struct description {
	uint64_t name, how;
	uint64_t local;		/* of that rank's state */
};

struct descriptions {
	struct description *v;
	size_t n, room;
};

/* ---- how one is described ---- */

static uint64_t mix(uint64_t hash, uint64_t number)
{
	return sk_restore_mix(hash + number + 1);
}

/* The same in every process, as sk_mesh_hash() is not. */
static uint64_t mesh_as(const struct sk_mesh *mesh)
{
	const struct sk_steps *steps = sk_mesh_steps(mesh);
	int64_t n = steps ? 0 : sk_mesh_count(mesh);
	uint64_t hash = (uint64_t)sk_mesh_ndim(mesh);

	for (int d = 0; d < sk_mesh_ndim(mesh); d++)
		hash = mix(hash, (uint64_t)sk_mesh_dim(mesh, d));
	for (int i = 0; steps && i < steps->n; i++) {
		hash = mix(hash, (uint64_t)steps->v[i].count);
		hash = mix(hash, (uint64_t)steps->v[i].stride);
	}
	if (steps)
		hash = mix(hash, (uint64_t)steps->first);
	for (int64_t i = 0; i < n; i++)
		hash = mix(hash, (uint64_t)sk_mesh_rank_at(mesh, i));
	return hash;
}

static uint64_t described_as(const struct sk_item *item, uint64_t mesh)
{
	const struct sk_spec *s = &item->spec;
	uint64_t hash = mix(mesh, s->dtype);

	if (item->explicit_boxes)
		return 0;
	for (int d = 0; d < s->ndim; d++)
		hash = mix(hash, (uint64_t)s->shape[d]);
	for (int m = 0; s->mesh && m < sk_mesh_ndim(s->mesh); m++) {
		hash = mix(hash, (uint64_t)s->placements[m].kind);
		hash = mix(hash, (uint64_t)s->placements[m].dim);
		hash = mix(hash, (uint64_t)s->placements[m].split_factor);
	}
	return hash;
}

/* Mostly tensors have the mesh of the one before. */
struct telling {
	const struct sk_mesh *mesh;
	uint64_t hash;
};

static uint64_t tell(struct telling *t, const struct sk_item *item)
{
	if (item->spec.mesh != t->mesh)
		t->hash = item->spec.mesh ? mesh_as(item->spec.mesh) : 0;
	t->mesh = item->spec.mesh;
	return described_as(item, t->hash);
}

static uint64_t name_as(const struct sk_item *item)
{
	return sk_xxh3(item->spec.name, strlen(item->spec.name));
}

uint64_t sk_restore_described_as(const struct sk_restoring *rs)
{
	const struct sk_layout *l = rs->state->layouts[0];
	struct telling t = { 0 };
	uint64_t sum = 0;

	if (l && !rs->state->changed)
		return l->description;
	for (uint32_t i = 0; i < rs->state->n_locals; i++) {
		const struct sk_item *item = &rs->state->locals[i].item;

		sum += mix(name_as(item), tell(&t, item));
	}
	return sum;
}

/* ---- what ranks of a node tell each other ---- */

static int list_mine(struct sk_restoring *rs, struct descriptions *mine)
{
	struct telling t = { 0 };
	uint32_t last = UINT32_MAX;

	for (uint32_t i = 0; rs->n_near > 1 && i < rs->n_pieces; i++) {
		const struct sk_restore_piece *p = &rs->pieces[i];
		const struct sk_item *item =
			&rs->state->locals[p->local].item;

		if (p->place < SK_PLACE_OTHERS || p->local == last ||
		    item->kind != SK_ITEM_TENSOR)
			continue;
		last = p->local;
		if (sk_array_fit(mine->v, mine->room, mine->n + 1) < 0)
			return sk_err_set(&rs->err, -ENOMEM, "no memory for "
					  "%zu names of tensors", mine->n);
		mine->v[mine->n++] = (struct description){
			name_as(item), tell(&t, item), last };
	}
	return 0;
}

static int by_name(const void *a, const void *b)
{
	const struct description *x = a, *y = b;

	return (x->name > y->name) - (x->name < y->name);
}

/* Whether one of @list has it of another description. */
static bool differs(const struct sk_restore_parcel *list,
		    const struct description *of)
{
	const struct description *v = list->data;
	size_t n = list->bytes / sizeof(*v);
	size_t at = sk_count_before(n, i, v[i].name < of->name);

	while (at < n && v[at].name == of->name && v[at].how == of->how)
		at++;
	return at < n && v[at].name == of->name;
}

static void compare(struct sk_restoring *rs, const struct descriptions *mine,
		    const struct sk_restore_parcel *in)
{
	for (size_t i = 0; i < mine->n; i++)
		for (int32_t k = 0; k < rs->n_near; k++)
			rs->boxes_told[mine->v[i].local] |=
				differs(&in[rs->near_ranks[k]], &mine->v[i]);
}

int sk_restore_unlike(struct sk_restoring *rs, int r)
{
	_cleanup_free_ struct sk_restore_parcel *in = NULL;
	struct descriptions mine = { 0 };

	if (r >= 0)
		r = list_mine(rs, &mine);
	if (mine.n)
		qsort(mine.v, mine.n, sizeof(*mine.v), by_name);
	r = sk_restore_trade_near(rs, r, mine.v, mine.n * sizeof(*mine.v),
				  &in);
	if (r >= 0)
		compare(rs, &mine, in);
	/* A comm that failed may still read it. */
	if (!rs->broken)
		free(mine.v);
	return r;
}
