/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each tensor dimension is solved alone: which pieces of its cuts overlap the
 * target, found by inverting the chunk arithmetic, cut after cut. The pieces
 * of the tensor are the product of the dimensions' segments.
 */
#include "tensor/plan.h"

#include <assert.h>
#include <string.h>

#include "tensor/cuts.h"
#include "base/array.h"
#include "base/util.h"

struct sk_holders {
	const struct sk_mesh *mesh;	/* NULL: all ranks of the world */
	int64_t base;			/* mesh index of the first holder */
	int64_t count;
	int n_free;			/* replicated mesh dimensions, the
					 * last one first */
	int64_t size[SK_MAX_DIMS];
	int64_t stride[SK_MAX_DIMS];
	int free_dim[SK_MAX_DIMS];
};

int64_t sk_holders_count(const struct sk_holders *h)
{
	return h->count;
}

int32_t sk_holders_rank(const struct sk_holders *h, int64_t i)
{
	int64_t index = h->base;

	assert(i >= 0 && i < h->count);
	if (!h->mesh)
		return (int32_t)i;
	for (int k = 0; k < h->n_free; k++) {
		index += i % h->size[k] * h->stride[k];
		i /= h->size[k];
	}
	return sk_mesh_rank_at(h->mesh, index);
}

int64_t sk_holders_find(const struct sk_holders *h, int32_t rank)
{
	int64_t coords[SK_MAX_DIMS], left = h->base, i = 0, count = 1;

	if (!h->mesh)
		return rank >= 0 && rank < h->count ? rank : -1;
	if (sk_mesh_coords(h->mesh, rank, coords) < 0)
		return -1;
	for (int k = 0; k < h->n_free; k++) {
		int64_t at = coords[h->free_dim[k]];

		i += at * count;
		count *= h->size[k];
		left += at * h->stride[k];
	}
	return sk_mesh_rank_at(h->mesh, left) == rank ? i : -1;
}

/* A part of the target along one dimension, and whose it is. */
struct segment {
	struct sk_interval part, source;
	int64_t index;		/* summand of the mesh index */
};

struct segments {
	struct segment *v;
	size_t n, room;
};

struct walk {
	const struct sk_cut *cuts;
	int n_cuts;
	const int64_t *strides;	/* of the mesh */
	struct sk_interval target;
	struct segments *out;
};

static int add_segment(struct segments *s, struct segment segment)
{
	if (sk_array_fit(s->v, s->room, s->n + 1) < 0)
		return -ENOMEM;
	s->v[s->n++] = segment;
	return 0;
}

static bool overlap(struct sk_interval a, struct sk_interval b,
		    struct sk_interval *ret)
{
	int64_t from = sk_max_i64(a.from, b.from);
	int64_t to = sk_min_i64(a.from + a.size, b.from + b.size);

	if (from >= to)
		return false;
	*ret = (struct sk_interval){ from, to - from };
	return true;
}

static int leaf(const struct walk *w, const struct sk_intervals *held,
		int64_t index)
{
	struct segment s = { .index = index };
	int r = 0;

	for (int i = 0; i < held->n && r >= 0; i++) {
		s.source = held->v[i];
		if (overlap(held->v[i], w->target, &s.part))
			r = add_segment(w->out, s);
	}
	return r;
}

/* The pieces that can overlap the target: all, or where one interval is cut
 * plainly just those, by division. */
static void candidates(const struct walk *w, const struct sk_cut *cut,
		       const struct sk_intervals *held, int64_t *ret_first,
		       int64_t *ret_last)
{
	struct sk_interval part;
	int64_t chunk;

	*ret_first = 0;
	*ret_last = cut->pieces - 1;
	if (held->n != 1 || cut->split)
		return;
	if (!overlap(held->v[0], w->target, &part)) {
		*ret_last = -1;
		return;
	}
	chunk = held->total / cut->pieces + (held->total % cut->pieces != 0);
	*ret_first = (part.from - held->v[0].from) / chunk;
	*ret_last = (part.from + part.size - 1 - held->v[0].from) / chunk;
}

static int descend(const struct walk *w, int c,
		   const struct sk_intervals *held, int64_t index)
{
	const struct sk_cut *cut = &w->cuts[c];
	int64_t first, last;
	int r = 0;

	if (c == w->n_cuts)
		return leaf(w, held, index);
	candidates(w, cut, held, &first, &last);
	for (int64_t i = first; i <= last && r >= 0; i++) {
		struct sk_intervals next;

		r = sk_cut_apply(cut, i, held, &next);
		if (r < 0)
			break;
		if (next.n)
			r = descend(w, c + 1, &next,
				    index + i * w->strides[cut->mesh_dim]);
		free(next.v);
	}
	return r;
}

static int solve_dim(const struct sk_spec *source, int d,
		     const struct sk_box *target, const int64_t *strides,
		     struct segments *out)
{
	struct sk_interval all = { 0, source->shape[d] };
	const struct sk_intervals whole = { .v = &all, .n = 1,
					    .total = all.size };
	struct sk_cut cuts[SK_MAX_DIMS];
	struct walk w = {
		.cuts = cuts, .strides = strides, .out = out,
		.target = { target->offset[d], target->size[d] },
	};

	w.n_cuts = sk_spec_cuts(source, d, cuts);
	return descend(&w, 0, &whole, 0);
}

static void mesh_strides(const struct sk_mesh *mesh, int64_t *strides)
{
	int64_t s = 1;

	for (int m = sk_mesh_ndim(mesh) - 1; m >= 0; m--) {
		strides[m] = s;
		s *= sk_mesh_dim(mesh, m);
	}
}

static void free_dims(const struct sk_spec *source, const int64_t *strides,
		      struct sk_holders *h)
{
	h->mesh = source->mesh;
	h->count = 1;
	for (int m = sk_mesh_ndim(source->mesh) - 1; m >= 0; m--) {
		if (source->placements[m].kind != SK_PLACEMENT_REPLICATE)
			continue;
		h->size[h->n_free] = sk_mesh_dim(source->mesh, m);
		h->stride[h->n_free] = strides[m];
		h->free_dim[h->n_free] = m;
		h->count *= h->size[h->n_free++];
	}
}

/* Every combination of one segment per dimension is a piece. */
static int product(int ndim, const struct segments *dims,
		   struct sk_holders *h, sk_piece_fn fn, void *ctx)
{
	size_t at[SK_MAX_DIMS] = { 0 };
	int d, r;

	assert(ndim >= 0 && ndim <= SK_MAX_DIMS);
	do {
		struct sk_piece piece = { 0 };

		h->base = 0;
		for (d = 0; d < ndim; d++) {
			const struct segment *s = &dims[d].v[at[d]];

			piece.box.offset[d] = s->part.from;
			piece.box.size[d] = s->part.size;
			piece.source.offset[d] = s->source.from;
			piece.source.size[d] = s->source.size;
			h->base += s->index;
		}
		r = fn(&piece, h, ctx);
		if (r)
			return r;
		for (d = ndim - 1; d >= 0 && ++at[d] == dims[d].n; d--)
			at[d] = 0;
	} while (d >= 0);
	return 0;
}

static int plan_mesh(const struct sk_spec *source,
		     const struct sk_box *target, sk_piece_fn fn, void *ctx)
{
	struct segments dims[SK_MAX_DIMS] = { 0 };
	int64_t strides[SK_MAX_DIMS];
	struct sk_holders h = { 0 };
	int r = 0;

	assert(source->mesh);
	mesh_strides(source->mesh, strides);
	free_dims(source, strides, &h);
	for (int d = 0; d < source->ndim && r >= 0; d++) {
		r = solve_dim(source, d, target, strides, &dims[d]);
		assert(r < 0 || dims[d].n);	/* cuts lose nothing */
	}
	if (r >= 0)
		r = product(source->ndim, dims, &h, fn, ctx);
	for (int d = 0; d < source->ndim; d++)
		free(dims[d].v);
	return r;
}

int sk_plan_box(const struct sk_spec *source, int32_t world,
		const struct sk_box *target, sk_piece_fn fn, void *ctx)
{
	struct sk_holders all = { .count = world };
	struct sk_piece piece;

	assert(fn && world > 0);
	if (sk_box_empty(source->ndim, target))
		return 0;
	if (source->mesh)
		return plan_mesh(source, target, fn, ctx);
	piece.box = *target;
	piece.source = sk_box_whole(source->ndim, source->shape);
	return fn(&piece, &all, ctx);
}
