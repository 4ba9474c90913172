/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/cuts.h"

#include <assert.h>
#include <string.h>

#include "base/array.h"
#include "base/util.h"

static bool shards(const struct sk_placement *p, int d)
{
	return (p->kind == SK_PLACEMENT_SHARD ||
		p->kind == SK_PLACEMENT_STRIDED_SHARD) && p->dim == d;
}

/*
 * TP first: a strided cut whose factor is the number of pieces that the later
 * mesh dimensions make comes after them, as a plain one. Works from the last
 * mesh dimension to the first, so the later ones are in order already.
 */
static int put_cut(struct sk_cut *cuts, int n, struct sk_cut cut,
		   int64_t later)
{
	assert(n < SK_MAX_DIMS && later > 0);
	if (cut.split == 1) {	/* one chunk: a plain cut */
		cut.split = 0;
	} else if (n && cut.split == later) {
		cut.split = 0;
		cuts[n] = cut;
		return n + 1;
	}
	memmove(&cuts[1], &cuts[0], (size_t)n * sizeof(*cuts));
	cuts[0] = cut;
	return n + 1;
}

int sk_spec_cuts(const struct sk_spec *spec, int d,
		 struct sk_cut ret_cuts[SK_MAX_DIMS])
{
	int64_t later = 1;
	int n = 0;

	assert(d >= 0 && d < spec->ndim);
	for (int m = spec->mesh ? sk_mesh_ndim(spec->mesh) - 1 : -1; m >= 0;
	     m--) {
		const struct sk_placement *p = &spec->placements[m];
		struct sk_cut cut = { .mesh_dim = m, .split = p->split_factor };

		if (!shards(p, d))
			continue;
		cut.pieces = sk_mesh_dim(spec->mesh, m);
		n = put_cut(ret_cuts, n, cut, later);
		later *= cut.pieces;
	}
	return n;
}

int sk_intervals_add(struct sk_intervals *out, struct sk_interval piece)
{
	struct sk_interval *last = out->n ? &out->v[out->n - 1] : NULL;

	assert(piece.size >= 0);
	if (!piece.size)
		return 0;
	out->total += piece.size;
	if (last && last->from + last->size == piece.from) {
		last->size += piece.size;
		return 0;
	}
	if (out->n == SK_INTERVALS_MAX)
		return -E2BIG;
	if (sk_array_fit(out->v, out->room, (size_t)out->n + 1) < 0)
		return -ENOMEM;
	out->v[out->n++] = piece;
	return 0;
}

/* How far a walk along intervals has come: in interval @i, before which
 * @before elements lie. */
struct place {
	int i;
	int64_t before;
};

/* Appends elements [at, at + size) of what @in lists one after another; @place
 * was left there by what was before. */
static int add_range(const struct sk_intervals *in, int64_t at, int64_t size,
		     struct place *place, struct sk_intervals *out)
{
	int r = 0;

	while (size > 0 && r >= 0) {
		const struct sk_interval *v = &in->v[place->i];
		int64_t skip = at - place->before, k;

		assert(place->i < in->n && skip >= 0);
		if (skip >= v->size) {
			place->before += v->size;
			place->i++;
			continue;
		}
		k = sk_min_i64(size, v->size - skip);
		r = sk_intervals_add(out, (struct sk_interval){
						  v->from + skip, k });
		size -= k;
		at += k;
	}
	return r;
}

int sk_cut_apply(const struct sk_cut *cut, int64_t i,
		 const struct sk_intervals *in, struct sk_intervals *ret_out)
{
	int64_t n = cut->split ? cut->split : 1, size, offset, whole, rest;
	int64_t chunk = in->total / n + (in->total % n != 0);
	struct sk_intervals out = { 0 };
	struct place place = { 0 };
	int r = 0;

	assert(i >= 0 && i < cut->pieces);
	/* All chunks have one size, but for the last, which may be short. */
	whole = chunk ? in->total / chunk : 0;
	rest = in->total - whole * chunk;
	sk_chunk(chunk, cut->pieces, i, &size, &offset);
	/* There may be more chunks than anybody can count. If a piece is none
	 * or all of each, they are one; else each makes an interval. */
	if (size == chunk)
		r = add_range(in, 0, whole * chunk, &place, &out);
	else
		for (int64_t s = 0; size && s < whole && r >= 0; s++)
			r = add_range(in, s * chunk + offset, size, &place,
				      &out);
	sk_chunk(rest, cut->pieces, i, &size, &offset);
	if (r >= 0)
		r = add_range(in, whole * chunk + offset, size, &place, &out);
	if (r < 0) {
		free(out.v);
		return r;
	}
	*ret_out = out;
	return 0;
}
