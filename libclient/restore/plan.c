/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pieces: which entry of which image has which part of what this rank wants.
 *
 * By arithmetic on the placements of the source. Where that finds no entry
 * (boxes that owners said themselves, images that are gone), all entries of
 * the name are gone through, and what they leave of the target is followed.
 */
#include "restore/plan.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/array.h"
#include "base/util.h"
#include "restore/images.h"
#include "restore/keys.h"
#include "restore/neighbour.h"
#include "restore/nodes.h"
#include "restore/open.h"
#include "restore/shape.h"
#include "restore/whole.h"
#include "tensor/box.h"

static int no_memory(struct sk_restoring *rs)
{
	return sk_err_set(&rs->err, -ENOMEM, "no memory for a plan of %u "
			  "pieces", rs->n_pieces);
}

static int append(struct sk_restoring *rs, struct sk_restore_piece piece)
{
	if (sk_array_fit(rs->pieces, rs->room_pieces,
			 (size_t)rs->n_pieces + 1) < 0)
		return no_memory(rs);
	rs->pieces[rs->n_pieces++] = piece;
	return 0;
}

/* What is being planned: a box of one part. */
struct planning {
	struct sk_restoring *rs;
	const struct sk_restore_key *key;
	uint32_t local, part;
};

static int add_piece(struct planning *p, uint32_t image, uint32_t place,
		     const struct sk_entry *entry, const struct sk_box *box)
{
	struct sk_restore_piece piece = {
		.local = p->local,
		.part = p->part,
		.image = image,
		.place = place,
		.entry = entry,
		.box = *box,
	};
	struct sk_copy copy;
	uint64_t skip;
	int r;

	assert(p->local < p->rs->state->n_locals);
	assert(image < p->rs->n_images && place < SK_PLACES);
	r = sk_restore_copy(p->rs, &piece, &copy, &skip, &p->rs->err);
	if (r < 0)
		return r;
	if (!copy.ndim && !skip && copy.bytes && copy.bytes == entry->bytes)
		piece.flat = copy.dst;
	return append(p->rs, piece);
}

/* ---- by arithmetic ---- */

/* The entry that is just @box, in an image of @rank at @place, which is opened
 * for it. -ENOENT: none; other errors end the restore. */
static int entry_at(struct sk_restoring *rs, const struct sk_restore_key *key,
		    const struct sk_box *box, int32_t rank, uint32_t place,
		    struct sk_restore_source *ret)
{
	int r = -ENOENT;

	assert(place < SK_PLACES);
	for (uint32_t i = sk_restore_first_of(rs, rank); r == -ENOENT &&
	     i < rs->n_images && rs->images[i].rank == rank; i++) {
		const struct sk_entry *e = NULL;

		if (!rs->images[i].places[place].there)
			continue;
		r = sk_restore_entry_in(rs, i, key, box, &e);
		if (r >= 0)
			r = sk_restore_open(rs, i, place);
		*ret = (struct sk_restore_source){ e, i, place };
	}
	return r;
}

static int find_turns(struct sk_restoring *rs, struct sk_restore_image *i)
{
	_cleanup_layout_ struct sk_layout *whole = NULL;
	_cleanup_free_ int64_t *turns = NULL;
	int r = sk_layout_whole(i->layout, &whole);

	turns = r < 0 ? NULL : calloc(whole->n_items + 1u, sizeof(*turns));
	if (!turns)
		return no_memory(rs);
	r = sk_layout_turns(whole, turns, &rs->err);
	if (r >= 0)
		i->turns = sk_take_ptr(turns);
	return r;
}

/* Which of the holders wrote it to disk, which is arithmetic again: over all
 * that the first of them describes. */
static int primary_of(struct sk_restoring *rs,
		      const struct sk_restore_key *key,
		      const struct sk_holders *holders, int32_t *ret_rank)
{
	int32_t first = sk_holders_rank(holders, 0);
	uint32_t at = sk_restore_first_of(rs, first);
	struct sk_restore_image *i = &rs->images[at];
	const struct sk_item *item;
	int64_t turn;
	int r;

	*ret_rank = first;
	if (sk_holders_count(holders) == 1)
		return 0;
	if (at == rs->n_images || i->rank != first)
		return -ENOENT;
	r = sk_restore_know(rs, at);
	if (r >= 0 && !i->turns)
		r = find_turns(rs, i);
	if (r < 0)
		return r;
	item = sk_layout_item(i->layout, key->item->kind,
			      key->item->spec.name);
	turn = item ? i->turns[item - i->layout->items] : -1;
	if (turn >= 0 && turn < sk_holders_count(holders))
		*ret_rank = sk_holders_rank(holders, turn);
	return 0;
}

/* In the memory of other nodes. Where they begin to look is the same for all
 * ranks, so that a node asks once, and one holder sends it for all nodes, which
 * pass it on (trees.h); and another for each box. */
static int pick_elsewhere(struct sk_restoring *rs,
			  const struct sk_restore_key *key,
			  const struct sk_box *box,
			  const struct sk_holders *holders,
			  struct sk_restore_source *ret)
{
	int64_t n = sk_holders_count(holders);
	uint64_t start = sk_restore_key_hash(key);
	int r = -ENOENT;

	for (int d = 0; d < key->item->spec.ndim; d++)
		start = sk_restore_mix(start + (uint64_t)box->offset[d]);
	for (int64_t i = 0; rs->apart && i < n && r == -ENOENT; i++)
		r = entry_at(rs, key, box, sk_holders_rank(holders,
				(int64_t)((start + (uint64_t)i) % (uint64_t)n)),
			     SK_PLACE_OTHERS, ret);
	return r;
}

/* Memory before disk. -ENOENT: arithmetic finds none. */
static int pick(struct sk_restoring *rs, const struct sk_restore_key *key,
		const struct sk_box *box, const struct sk_holders *holders,
		struct sk_restore_source *ret)
{
	int32_t own = rs->state->job.rank, rank;
	int64_t at = 0;
	int r = -ENOENT;

	while (r == -ENOENT) {
		rank = sk_restore_neighbour(rs, holders, own, &at);
		if (rank < 0)
			break;
		r = entry_at(rs, key, box, rank, 0, ret);
	}
	if (r == -ENOENT)
		r = pick_elsewhere(rs, key, box, holders, ret);
	if (r == -ENOENT && sk_holders_find(holders, own) >= 0)
		r = entry_at(rs, key, box, own, 1, ret);
	if (r != -ENOENT)
		return r;
	r = primary_of(rs, key, holders, &rank);
	if (r < 0)
		return r;
	r = entry_at(rs, key, box, rank, 1, ret);
	return r != -ENOENT ? r :
	       entry_at(rs, key, box, rank, SK_PLACE_OTHERS + 1, ret);
}

/* ---- by going through all entries ---- */

struct boxes {
	struct sk_box *v;
	size_t n, room;
};

static int push(struct sk_restoring *rs, struct boxes *b,
		const struct sk_box *box)
{
	if (sk_array_fit(b->v, b->room, b->n + 1) < 0)
		return no_memory(rs);
	b->v[b->n++] = *box;
	return 0;
}

/* What @cut, which lies in @box, leaves of it: slabs, dimension by
 * dimension. */
static int push_rest(struct sk_restoring *rs, struct boxes *b, int ndim,
		     struct sk_box box, const struct sk_box *cut)
{
	int r = 0;

	assert(ndim >= 0 && ndim <= SK_MAX_DIMS);
	for (int d = 0; d < ndim && r >= 0; d++) {
		int64_t end = box.offset[d] + box.size[d];
		int64_t cut_end = cut->offset[d] + cut->size[d];
		struct sk_box slab = box;

		slab.size[d] = cut->offset[d] - box.offset[d];
		if (slab.size[d])
			r = push(rs, b, &slab);
		slab.offset[d] = cut_end;
		slab.size[d] = end - cut_end;
		if (slab.size[d] && r >= 0)
			r = push(rs, b, &slab);
		box.offset[d] = cut->offset[d];
		box.size[d] = cut->size[d];
	}
	return r;
}

/* Takes from one entry what is still wanted. */
static int take_entry(struct planning *p, uint32_t image, uint32_t place,
		      const struct sk_entry *e, struct boxes *left)
{
	int ndim = p->key->item->spec.ndim, r = 0;
	size_t n = left->n;

	assert(p->key);
	for (size_t i = 0; i < n && r >= 0;) {
		struct sk_box box = left->v[i], cut;

		if (!sk_box_intersect(ndim, &box, &e->box, &cut)) {
			i++;
			continue;
		}
		r = add_piece(p, image, place, e, &cut);
		if (r < 0)
			break;
		/* The last unseen box, then the last new one, move up. */
		left->v[i] = left->v[--n];
		left->v[n] = left->v[--left->n];
		r = push_rest(p->rs, left, ndim, box, &cut);
	}
	return r;
}

static bool wants(int ndim, const struct boxes *left,
		  const struct sk_entry *e)
{
	struct sk_box cut;

	for (size_t i = 0; i < left->n; i++)
		if (sk_box_intersect(ndim, &left->v[i], &e->box, &cut))
			return true;
	return false;
}

/* Opens the image if it has anything of that. */
static int take_image(struct planning *p, uint32_t image, uint32_t place,
		      struct boxes *left)
{
	const struct sk_spec *spec = &p->key->item->spec;
	_cleanup_free_ struct sk_box *boxes = NULL;
	const struct sk_layout *layout;
	const struct sk_item *item;
	int n = 0, r;

	assert(image < p->rs->n_images && place < SK_PLACES);
	r = sk_restore_know(p->rs, image);
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	layout = p->rs->images[image].layout;
	item = sk_layout_item(layout, p->key->item->kind, spec->name);
	if (item && sk_layout_boxes(layout, item, &boxes, &n) < 0)
		return no_memory(p->rs);
	for (int i = 0; i < n && left->n && r >= 0; i++) {
		const struct sk_entry *e;

		e = sk_layout_find(layout, item->kind, spec->name,
				   boxes[i].offset);
		if (!e || sk_box_empty(spec->ndim, &e->box) ||
		    !wants(spec->ndim, left, e))
			continue;
		r = sk_restore_open(p->rs, image, place);
		if (r >= 0)
			r = take_entry(p, image, place, e, left);
	}
	return r == -ENOENT ? 0 : r;
}

/* A rank's own blob is in that rank's images alone; others bear its name. */
static bool may_have(const struct planning *p, uint32_t image, uint32_t place)
{
	const struct sk_restore_image *i = &p->rs->images[image];
	const struct sk_item *item = p->key->item;
	const struct sk_layout *l;

	if (!i->places[place].there || (item->kind == SK_ITEM_BLOB_LOCAL &&
					i->rank != p->rs->state->job.rank))
		return false;
	l = sk_restore_described(p->rs, i->description);
	return !l || sk_layout_item(l, item->kind, item->spec.name);
}

static int explain_missing(struct sk_restoring *rs,
			   const struct sk_restore_key *key,
			   const struct sk_box *box)
{
	struct sk_err why;
	char text[128];

	(void)sk_box_format(key->item->spec.ndim, box, text, sizeof(text));
	if (!rs->n_lost)
		return sk_err_set(&rs->err, -ENODATA, "%s of \"%.100s\" is in "
				  "none of the %u images of step %" PRId64
				  " of run %" PRIu64 " that can be reached",
				  text, key->item->spec.name, rs->n_images,
				  rs->report.step, rs->report.run);
	(void)sk_err_set(&why, 0, "%" PRId32 " of %" PRId32 " ranks have no "
			 "image, rank %" PRId32 " first, and nobody else has "
			 "%s of \"%.100s\"", rs->n_lost, rs->world,
			 rs->first_lost, text, key->item->spec.name);
	return sk_restore_not_whole(rs, -ENODATA, &why);
}

static const uint32_t nearest[SK_PLACES] = {
	0, SK_PLACE_OTHERS, 1, SK_PLACE_OTHERS + 1
};

/* In whatever place is nearest. -ENOENT: it is not among what that rank has. */
static int entry_of(struct planning *p, const struct sk_box *box, int32_t rank,
		    struct sk_restore_source *ret)
{
	int r = -ENOENT;

	for (uint32_t k = 0; k < SK_PLACES && r == -ENOENT; k++)
		r = entry_at(p->rs, p->key, box, rank, nearest[k], ret);
	return r;
}

/* What ranks said that they have all of may have one name and values of each
 * rank, as running statistics do: a rank has its own again wherever they are,
 * and who had none those of one rank, the first, under all names. -ENOENT: it
 * is nothing of that kind. */
static int take_own(struct planning *p, const struct sk_box *box)
{
	struct sk_restoring *rs = p->rs;
	const struct sk_spec *spec = &p->key->item->spec;
	const struct sk_box whole = sk_box_whole(spec->ndim, spec->shape);
	struct sk_restore_source from;
	int r;

	if (!p->key->is_explicit || !sk_box_equal(spec->ndim, box, &whole))
		return -ENOENT;
	r = entry_of(p, box, rs->state->job.rank, &from);
	for (uint32_t i = 0; i < rs->n_images && r == -ENOENT; i++)
		if (!i || rs->images[i].rank != rs->images[i - 1].rank)
			r = entry_of(p, box, rs->images[i].rank, &from);
	return r < 0 ? r :
		       add_piece(p, from.image, from.place, from.entry, box);
}

static int go_through(struct planning *p, const struct sk_box *box)
{
	struct sk_restoring *rs = p->rs;
	struct boxes left = { 0 };
	/* Of other nodes, where all ranks begin, as above. */
	uint32_t near = sk_restore_first_of(rs, rs->state->job.rank);
	uint32_t far = (uint32_t)(sk_restore_key_hash(p->key) %
				  (rs->n_images ? rs->n_images : 1));
	int r;

	r = take_own(p, box);
	if (r != -ENOENT)
		return r;
	r = push(rs, &left, box);
	for (uint32_t k = 0; k < SK_PLACES; k++)
		for (uint32_t i = 0; i < rs->n_images && r >= 0; i++) {
			uint32_t own = nearest[k] < SK_PLACE_OTHERS ? near :
								      far;
			uint32_t image = (own + i) % rs->n_images;

			if (!left.n)
				break;
			if (may_have(p, image, nearest[k]))
				r = take_image(p, image, nearest[k], &left);
		}
	if (r >= 0 && left.n)
		r = explain_missing(rs, p->key, &left.v[0]);
	free(left.v);
	return r;
}

/* ---- one box, one local, all ---- */

static int on_piece(const struct sk_piece *piece,
		    const struct sk_holders *holders, void *ctx)
{
	struct planning *p = ctx;
	struct sk_restore_source from;
	int r = pick(p->rs, p->key, &piece->source, holders, &from);

	if (r == -ENOENT)
		return go_through(p, &piece->box);
	if (r < 0)
		return r;
	return add_piece(p, from.image, from.place, from.entry, &piece->box);
}

static int plan_box(struct planning *p, const struct sk_box *box)
{
	struct sk_restoring *rs = p->rs;
	int r;

	if (sk_box_empty(p->key->item->spec.ndim, box))
		return 0;
	if (p->key->is_explicit || p->key->item->kind == SK_ITEM_BLOB_LOCAL)
		return go_through(p, box);
	rs->err.text[0] = 0;
	r = sk_plan_box(&p->key->item->spec, rs->world, box, on_piece, p);
	if (r == -ENOMEM && !rs->err.text[0])
		return no_memory(rs);
	return r;
}

/* Whether the snapshot has something for the local. */
static bool plan_of(struct sk_restoring *rs, uint32_t local,
		    struct planning *ret_p)
{
	const struct sk_item *item = &rs->state->locals[local].item;

	assert(local < rs->state->n_locals);
	*ret_p = (struct planning){
		.rs = rs,
		.local = local,
		.key = sk_restore_key_of(rs, local),
	};
	if (!ret_p->key)
		return false;
	return item->kind != SK_ITEM_BLOB_LOCAL || ret_p->key->mine;
}

static int plan_all(struct sk_restoring *rs)
{
	int r = 0;

	rs->n_pieces = 0;
	/* Mostly a piece each: an array that grew would be copied, and touch
	 * memory that it leaves again. */
	if (!rs->names && rs->state->n_locals &&
	    sk_array_fit(rs->pieces, rs->room_pieces, rs->state->n_locals) < 0)
		return no_memory(rs);
	for (uint32_t i = 0; i < rs->state->n_locals && r >= 0; i++) {
		const struct sk_local *local = &rs->state->locals[i];
		struct planning p;

		if (!rs->wanted[i] || !plan_of(rs, i, &p))
			continue;
		for (; (int)p.part < local->item.n_boxes && r >= 0; p.part++)
			r = plan_box(&p, &local->parts[p.part].box);
	}
	return r;
}

/* By what is listed; then all that it takes is opened. Where some of that is
 * not to be had, it is planned anew without. */
int sk_restore_plan(struct sk_restoring *rs)
{
	bool lost;
	int r;

	do {
		lost = false;
		rs->later = true;
		r = plan_all(rs);
		rs->later = false;
		if (r >= 0)
			r = sk_restore_open_asked(rs, &lost);
	} while (r >= 0 && lost);
	return r;
}

static bool stands(const struct sk_restoring *rs,
		   const struct sk_restore_piece *piece)
{
	assert(piece->image < rs->n_images && piece->place < SK_PLACES);
	if (piece->place >= SK_PLACE_OTHERS)
		return rs->holders[piece->holder].there;
	return rs->images[piece->image].places[piece->place].there &&
	       !(rs->doubted && piece->relied);
}

int sk_restore_replan(struct sk_restoring *rs)
{
	_cleanup_free_ struct sk_restore_piece *old = rs->pieces;
	uint32_t n = rs->n_pieces;
	int r = 0;

	rs->pieces = NULL;
	rs->room_pieces = rs->n_pieces = 0;
	for (uint32_t i = 0; i < n && r >= 0; i++) {
		struct planning p;

		if (stands(rs, &old[i]))
			continue;
		if (!plan_of(rs, old[i].local, &p))
			continue;
		p.part = old[i].part;
		r = plan_box(&p, &old[i].box);
	}
	return r;
}
