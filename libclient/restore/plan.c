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
#include "restore/keys.h"
#include "restore/shape.h"
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
	assert(image < p->rs->n_images && place < 2);
	r = sk_restore_copy(p->rs, &piece, &copy, &skip, &p->rs->err);
	if (r < 0)
		return r;
	return append(p->rs, piece);
}

/* ---- by arithmetic ---- */

/* The first image of a rank, or where it would be. */
static uint32_t first_of(const struct sk_restoring *rs, int32_t rank)
{
	uint32_t from = 0, to = rs->n_images;

	while (from < to) {
		uint32_t middle = from + (to - from) / 2;

		if (rs->images[middle].rank < rank)
			from = middle + 1;
		else
			to = middle;
	}
	return from;
}

/* The entry that is just @box, in an image of @rank at @place. */
static const struct sk_entry *entry_at(const struct sk_restoring *rs,
				       const struct sk_restore_key *key,
				       const struct sk_box *box, int32_t rank,
				       uint32_t place, uint32_t *ret_image)
{
	const struct sk_spec *spec = &key->item->spec;

	assert(place < 2);
	for (uint32_t i = first_of(rs, rank);
	     i < rs->n_images && rs->images[i].rank == rank; i++) {
		const struct sk_entry *e;

		if (!rs->images[i].places[place].there)
			continue;
		e = sk_layout_find(rs->images[i].layout, key->item->kind,
				   spec->name, box->offset);
		if (!e || !sk_box_equal(spec->ndim, &e->box, box))
			continue;
		*ret_image = i;
		return e;
	}
	return NULL;
}

/* Memory before disk; there the image of the rank's own number, which it may
 * have left on its own NUMA node; else spread over the holders. */
const struct sk_entry *sk_restore_pick(const struct sk_restoring *rs,
				       const struct sk_restore_key *key,
				       const struct sk_box *source,
				       const struct sk_holders *holders,
				       int32_t rank, uint32_t *ret_image,
				       uint32_t *ret_place)
{
	int64_t n = sk_holders_count(holders);

	assert(ret_image && ret_place);
	for (uint32_t place = 0; place < 2; place++) {
		const struct sk_entry *e;

		*ret_place = place;
		e = entry_at(rs, key, source, rank, place, ret_image);
		for (int64_t i = 0; i < n && !e; i++)
			e = entry_at(rs, key, source,
				     sk_holders_rank(holders, (rank + i) % n),
				     place, ret_image);
		if (e)
			return e;
	}
	return NULL;
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

static int take_image(struct planning *p, uint32_t image, uint32_t place,
		      struct boxes *left)
{
	const struct sk_layout *layout = p->rs->images[image].layout;
	const struct sk_spec *spec = &p->key->item->spec;
	const struct sk_item *item;
	int r = 0;

	assert(image < p->rs->n_images && place < 2);
	item = sk_layout_item(layout, p->key->item->kind, spec->name);
	for (int i = 0; item && i < item->n_boxes && left->n && r >= 0; i++) {
		const struct sk_entry *e;

		e = sk_layout_find(layout, item->kind, spec->name,
				   item->boxes[i].offset);
		if (e && !sk_box_empty(spec->ndim, &e->box))
			r = take_entry(p, image, place, e, left);
	}
	return r;
}

/* A rank's own blob is in that rank's images alone; others bear its name. */
static bool may_have(const struct planning *p, uint32_t image, uint32_t place)
{
	const struct sk_restore_image *i = &p->rs->images[image];

	return i->places[place].there &&
	       (p->key->item->kind != SK_ITEM_BLOB_LOCAL ||
		i->rank == p->rs->state->job.rank);
}

static int explain_missing(struct sk_restoring *rs,
			   const struct sk_restore_key *key,
			   const struct sk_box *box)
{
	char text[128];

	return sk_err_set(&rs->err, -ENODATA, "%s of \"%.100s\" is in none of "
			  "the %u images of step %" PRId64 " of run %" PRIu64
			  " that can be reached",
			  sk_box_format(key->item->spec.ndim, box, text,
					sizeof(text)),
			  key->item->spec.name, rs->n_images, rs->report.step,
			  rs->report.run);
}

static int go_through(struct planning *p, const struct sk_box *box)
{
	struct sk_restoring *rs = p->rs;
	struct boxes left = { 0 };
	uint32_t own = first_of(rs, rs->state->job.rank);
	int r;

	r = push(rs, &left, box);
	for (uint32_t place = 0; place < 2; place++)
		for (uint32_t i = 0; i < rs->n_images && r >= 0; i++) {
			uint32_t image = (own + i) % rs->n_images;

			if (!left.n)
				break;
			if (may_have(p, image, place))
				r = take_image(p, image, place, &left);
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
	const struct sk_entry *e;
	uint32_t image, place;

	e = sk_restore_pick(p->rs, p->key, &piece->source, holders,
			    p->rs->state->job.rank, &image, &place);
	if (!e)
		return go_through(p, &piece->box);
	return add_piece(p, image, place, e, &piece->box);
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
		.key = sk_restore_key(rs, item->kind, item->spec.name),
	};
	if (!ret_p->key)
		return false;
	return item->kind != SK_ITEM_BLOB_LOCAL ||
	       rs->images[ret_p->key->image].rank == rs->state->job.rank;
}

int sk_restore_plan(struct sk_restoring *rs)
{
	int r = 0;

	rs->n_pieces = 0;
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

static bool stands(const struct sk_restoring *rs,
		   const struct sk_restore_piece *piece,
		   const uint8_t *unverified)
{
	assert(piece->image < rs->n_images && piece->place < 2);
	if (!rs->images[piece->image].places[piece->place].there)
		return false;
	for (uint32_t c = 0; unverified && c < piece->entry->n_sums; c++)
		if (sk_bit(unverified, sk_restore_sum_index(rs, piece, c)))
			return false;
	return true;
}

int sk_restore_replan(struct sk_restoring *rs, const uint8_t *unverified)
{
	_cleanup_free_ struct sk_restore_piece *old = rs->pieces;
	uint32_t n = rs->n_pieces;
	int r = 0;

	rs->pieces = NULL;
	rs->room_pieces = rs->n_pieces = 0;
	for (uint32_t i = 0; i < n && r >= 0; i++) {
		struct planning p;

		if (stands(rs, &old[i], unverified))
			continue;
		if (!plan_of(rs, old[i].local, &p))
			continue;
		p.part = old[i].part;
		r = plan_box(&p, &old[i].box);
	}
	return r;
}
