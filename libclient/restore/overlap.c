/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/overlap.h"

#include <assert.h>
#include <string.h>

#include "base/array.h"
#include "base/util.h"
#include "restore/agree.h"
#include "restore/unlike.h"
#include "tensor/box.h"
#include "tensor/dtype.h"

/* Pieces that one is cut into at most; more are not worth what they save. */
#define CUT_MOST 4096u

/* A part of an entry that a rank wants, as ranks of a node say it. */
struct region {
	struct sk_box box;
	uint32_t image, place, entry;
	int32_t ndim;
	uint32_t piece;		/* of that rank's plan */
	int32_t rank;
};

struct regions {
	struct region *v;
	uint32_t *group;	/* of those that overlap: the first's index */
	size_t n, room;
};

static int no_memory(struct sk_restoring *rs, size_t n)
{
	return sk_err_set(&rs->err, -ENOMEM, "no memory for %zu boxes from "
			  "other nodes", n);
}

static const struct sk_item *item_of(const struct sk_restoring *rs,
				     const struct sk_restore_piece *p)
{
	return &rs->state->locals[p->local].item;
}

/* ---- what ranks tell each other ---- */

static struct region region_of(const struct sk_restoring *rs, uint32_t index)
{
	const struct sk_restore_piece *p = &rs->pieces[index];
	struct region region = {
		.image = p->image,
		.place = p->place,
		.entry = p->entry->index,
		.ndim = item_of(rs, p)->spec.ndim,
		.piece = index,
		.rank = rs->state->job.rank,
	};
	size_t bytes = (size_t)region.ndim * sizeof(int64_t);

	/* Bytes beyond the dimensions are compared, too. */
	memcpy(region.box.offset, p->box.offset, bytes);
	memcpy(region.box.size, p->box.size, bytes);
	return region;
}

static int add(struct sk_restoring *rs, struct regions *all,
	       const struct region *region)
{
	if (sk_array_fit(all->v, all->room, all->n + 1) < 0)
		return no_memory(rs, all->n);
	all->v[all->n++] = *region;
	return 0;
}

/* Who is alone on its node has nobody to tell. */
static int collect(struct sk_restoring *rs, struct regions *all)
{
	int r = 0;

	for (uint32_t i = 0; rs->n_near > 1 && i < rs->n_pieces && r >= 0;
	     i++) {
		const struct sk_restore_piece *p = &rs->pieces[i];
		struct region region;

		if (p->place < SK_PLACE_OTHERS || !rs->boxes_told[p->local])
			continue;
		region = region_of(rs, i);
		r = add(rs, all, &region);
	}
	return r;
}

static int take_in(struct sk_restoring *rs, struct regions *all,
		   const struct sk_restore_parcel *in)
{
	int r = 0;

	for (int32_t k = 0; k < rs->n_near && r >= 0; k++) {
		int32_t rank = rs->near_ranks[k];
		const struct region *v = in[rank].data;
		size_t n = in[rank].bytes / sizeof(*v);

		for (size_t i = 0; i < n && r >= 0; i++) {
			struct region region = v[i];

			if (region.ndim < 0 || region.ndim > SK_MAX_DIMS)
				continue;
			region.rank = rank;
			r = add(rs, all, &region);
		}
	}
	return r;
}

static int trade(struct sk_restoring *rs, int r, struct regions *all)
{
	_cleanup_free_ struct sk_restore_parcel *in = NULL;
	struct region *mine;

	if (r >= 0)
		r = collect(rs, all);
	mine = all->v;
	r = sk_restore_trade_near(rs, r, mine, all->n * sizeof(*mine), &in);
	/* A comm that failed may still read them. */
	if (rs->broken)
		all->v = NULL;
	return r < 0 ? r : take_in(rs, all, in);
}

/* ---- of which tensors ---- */

/* Those that owners said themselves; of others it may turn out. */
static int begin(struct sk_restoring *rs)
{
	uint32_t n = rs->state->n_locals;

	if (!rs->boxes_told)
		rs->boxes_told = calloc(n ? n : 1, sizeof(*rs->boxes_told));
	if (!rs->boxes_told)
		return no_memory(rs, n);
	for (uint32_t i = 0; i < n; i++)
		rs->boxes_told[i] = rs->state->locals[i].item.explicit_boxes;
	return 0;
}

static bool wants_told(const struct sk_restoring *rs)
{
	for (uint32_t i = 0; rs->n_near > 1 && i < rs->n_pieces; i++)
		if (rs->pieces[i].place >= SK_PLACE_OTHERS &&
		    rs->boxes_told[rs->pieces[i].local])
			return true;
	return false;
}

/* What any rank has. */
struct said {
	bool told;	/* boxes to tell */
	bool unlike;	/* a neighbour that described something else */
};

static int ask_all(struct sk_restoring *rs, int r, struct said *ret)
{
	struct sk_restore_word word = { 0 }, *words;

	if (r >= 0) {
		word.flags = wants_told(rs);
		word.extra = sk_restore_described_as(rs);
	}
	r = sk_restore_agree(rs, r, &word, &words, 0);
	for (int32_t i = 0; r >= 0 && i < rs->state->job.world; i++) {
		int32_t near = rs->nodes[rs->node_of[i]].ranks[0];

		ret->told |= words[i].flags;
		ret->unlike |= words[i].extra != words[near].extra;
	}
	return r;
}

/* ---- which overlap ---- */

static int by_entry(const void *a, const void *b)
{
	const struct region *x = a, *y = b;

	if (x->image != y->image)
		return x->image < y->image ? -1 : 1;
	if (x->place != y->place)
		return x->place < y->place ? -1 : 1;
	if (x->entry != y->entry)
		return x->entry < y->entry ? -1 : 1;
	return (x->box.offset[0] > y->box.offset[0]) -
	       (x->box.offset[0] < y->box.offset[0]);
}

static bool same_entry(const struct region *a, const struct region *b)
{
	return a->image == b->image && a->place == b->place &&
	       a->entry == b->entry && a->ndim == b->ndim;
}

static bool overlap(const struct region *a, const struct region *b)
{
	struct sk_box cut;

	return sk_box_intersect(a->ndim, &a->box, &b->box, &cut);
}

static uint32_t first_of(struct regions *all, uint32_t i)
{
	while (all->group[i] != i)
		i = all->group[i] = all->group[all->group[i]];
	return i;
}

/* Those that overlap, and those that overlap these, are a group. */
static int group(struct sk_restoring *rs, struct regions *all)
{
	all->group = calloc(all->n + 1, sizeof(*all->group));
	if (!all->group)
		return no_memory(rs, all->n);
	if (all->n)	/* of who is alone on its node there are none */
		qsort(all->v, all->n, sizeof(*all->v), by_entry);
	for (uint32_t i = 0; i < all->n; i++)
		all->group[i] = i;
	for (uint32_t i = 0; i < all->n; i++) {
		const struct region *a = &all->v[i];
		int64_t end = a->box.offset[0] + a->box.size[0];

		for (uint32_t k = i + 1; k < all->n &&
		     same_entry(a, &all->v[k]) &&
		     (!a->ndim || all->v[k].box.offset[0] < end); k++)
			if (overlap(a, &all->v[k]))
				all->group[first_of(all, k)] =
					first_of(all, i);
	}
	return 0;
}

/* ---- cutting ---- */

/* The piece, and those that were cut off it: from @tail on. */
static int cut_at(struct sk_restoring *rs, uint32_t piece, uint32_t tail,
		  int d, int64_t at)
{
	uint32_t end = rs->n_pieces;

	for (uint32_t i = piece; i < end; i = i < tail ? tail : i + 1) {
		struct sk_restore_piece rest = rs->pieces[i];
		struct sk_box *box = &rs->pieces[i].box;

		if (at <= box->offset[d] ||
		    at >= box->offset[d] + box->size[d] ||
		    rs->n_pieces - tail >= CUT_MOST)
			continue;
		rest.box.offset[d] = at;
		rest.box.size[d] -= at - box->offset[d];
		box->size[d] = at - box->offset[d];
		rest.flat = rs->pieces[i].flat = NULL;
		if (sk_array_fit(rs->pieces, rs->room_pieces,
				 (size_t)rs->n_pieces + 1) < 0)
			return no_memory(rs, rs->n_pieces);
		rs->pieces[rs->n_pieces++] = rest;
	}
	return 0;
}

static int cut_by(struct sk_restoring *rs, const struct region *mine,
		  uint32_t tail, const struct region *other)
{
	int r = 0;

	for (int d = 0; d < mine->ndim && r >= 0; d++) {
		int64_t from = other->box.offset[d];

		r = cut_at(rs, mine->piece, tail, d, from);
		if (r >= 0)
			r = cut_at(rs, mine->piece, tail, d,
				   from + other->box.size[d]);
	}
	return r;
}

static void note_shared(struct sk_restoring *rs, uint32_t piece,
			const struct region *other)
{
	struct sk_restore_piece *p = &rs->pieces[piece];
	struct sk_box cut;

	if (other->rank == rs->state->job.rank ||
	    !sk_box_intersect(other->ndim, &p->box, &other->box, &cut))
		return;
	p->shared = true;
}

/* One of this rank's, by all of its group. A group is of one entry, whose
 * regions lie together. */
static int settle(struct sk_restoring *rs, struct regions *all, uint32_t i)
{
	const struct region *mine = &all->v[i];
	uint32_t tail = rs->n_pieces, from = i, to = i, first;
	/* Within a byte nothing can be cut. */
	bool cuts = sk_dtype_bits(item_of(rs, &rs->pieces[mine->piece])
					  ->spec.dtype) % 8 == 0;
	int r = 0;

	first = first_of(all, i);
	while (from && same_entry(&all->v[from - 1], mine))
		from--;
	while (to < all->n && same_entry(&all->v[to], mine))
		to++;
	for (uint32_t k = from; cuts && k < to && r >= 0; k++)
		if (first_of(all, k) == first)
			r = cut_by(rs, mine, tail, &all->v[k]);
	for (uint32_t k = from; k < to && r >= 0; k++) {
		if (first_of(all, k) != first)
			continue;
		note_shared(rs, mine->piece, &all->v[k]);
		for (uint32_t p = tail; p < rs->n_pieces; p++)
			note_shared(rs, p, &all->v[k]);
	}
	return r;
}

static int settle_all(struct sk_restoring *rs, struct regions *all)
{
	int r = group(rs, all);

	for (uint32_t i = 0; i < all->n && r >= 0; i++)
		if (all->v[i].rank == rs->state->job.rank)
			r = settle(rs, all, i);
	return r;
}

int sk_restore_overlap(struct sk_restoring *rs, int r)
{
	struct regions all = { 0 };
	struct said said = { 0 };

	assert(rs->apart);
	if (r >= 0)
		r = begin(rs);
	r = ask_all(rs, r, &said);
	if (said.unlike)
		r = sk_restore_unlike(rs, r);
	if (said.told || said.unlike)
		r = trade(rs, r, &all);
	if (r >= 0)
		r = settle_all(rs, &all);
	free(all.v);
	free(all.group);
	return r;
}
