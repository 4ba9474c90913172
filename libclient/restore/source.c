/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/source.h"

#include <assert.h>
#include <string.h>

#include "base/util.h"
#include "conn/memfd.h"
#include "restore/images.h"
#include "restore/memory.h"
#include "restore/open.h"
#include "restore/passing.h"
#include "restore/sums.h"

/* ---- finding ---- */

static int64_t find_image(const struct sk_restoring *rs,
			  const struct sk_want *w)
{
	for (uint32_t i = sk_restore_first_of(rs, w->rank);
	     i < rs->n_images && rs->images[i].rank == w->rank; i++) {
		const struct sk_restore_image *image = &rs->images[i];

		if (image->kind == w->kind && w->place < 2 &&
		    image->places[w->place].listed &&
		    image->places[w->place].id == w->image &&
		    sk_digest_equal(&image->digest, &w->digest))
			return i;
	}
	return -1;
}

static bool lies_within(int ndim, const struct sk_box *box,
			const struct sk_box *in)
{
	for (int d = 0; d < ndim; d++) {
		int64_t skip;

		if (box->size[d] <= 0 || box->offset[d] < in->offset[d])
			return false;
		skip = box->offset[d] - in->offset[d];
		if (skip > in->size[d] || box->size[d] > in->size[d] - skip)
			return false;
	}
	return true;
}

/* Which of the image's entries that is, @e, or none. */
static int check_want(struct sk_restoring *rs, const struct sk_layout *layout,
		      const struct sk_entry *e, const struct sk_want *w,
		      struct sk_sourced *ret)
{
	const struct sk_item *item = e ? &layout->items[e->item] : NULL;
	struct sk_restore_shape shape;
	struct sk_copy copy;
	uint64_t skip;
	char none;

	if (e && lies_within(item->spec.ndim, &w->box, &e->box) &&
	    !sk_restore_pack(item, e, &w->box, &none, &copy, &skip, NULL)) {
		sk_restore_shape(item, e, &w->box, &shape);
		ret->entry = e;
		ret->item = item;
		if (w->to <= sk_restore_before(&shape, e->bytes))
			return 0;
	}
	return sk_err_set(&rs->err, -EPROTO, "a rank of another node wants "
			  "bytes that no image of rank %d has", w->rank);
}

/* So that the checksums are known, and which of them were right. */
static int have_at_hand(struct sk_restoring *rs, uint32_t image,
			const struct sk_want *w, const struct sk_entry **ret)
{
	struct sk_restore_image *i = &rs->images[image];
	int r = sk_restore_open(rs, image, w->place);

	if (r >= 0)
		r = sk_restore_reach(rs, image, w->place);
	if (r >= 0)
		r = sk_restore_named_entry(rs, image, w->entry, ret);
	if (r >= 0 && *ret)
		r = sk_restore_need_sums(rs, image, w->place, *ret);
	return r < 0 ? r : sk_restore_may_verify(rs, i);
}

int sk_restore_find_source(struct sk_restoring *rs,
			   const struct sk_want *want, struct sk_sourced *ret)
{
	int64_t image = find_image(rs, want);
	const struct sk_entry *entry = NULL;
	int r;

	*ret = (struct sk_sourced){ .place = want->place };
	if (image < 0)
		return sk_err_set(&rs->err, -EPROTO, "a rank of another node "
				  "wants an image of rank %d that is not here",
				  want->rank);
	ret->image = (uint32_t)image;
	r = sk_restore_know(rs, ret->image);
	if (r >= 0)
		r = have_at_hand(rs, ret->image, want, &entry);
	if (r == -ENOENT) {	/* others may have it */
		sk_bit_set(rs->bad, (uint64_t)want->place * rs->n_images +
					    ret->image);
		return 0;
	}
	return r < 0 ? r : check_want(rs, rs->images[image].layout, entry,
				      want, ret);
}

/* ---- reading ---- */

/* Out of its file. */
static int fill(struct sk_restoring *rs, const struct sk_sourced *s,
		uint64_t from, uint64_t to, char *buf, struct sk_err *err)
{
	const struct sk_restore_image *image = &rs->images[s->image];
	int r;

	r = sk_read_all(rs->sk->os, image->places[1].fd, buf, to - from,
			s->entry->offset + from);
	return r >= 0 ? 0 : sk_err_errno(err, -EIO, "cannot read %llu bytes "
					 "of the image of rank %d",
					 (unsigned long long)(to - from),
					 image->rank);
}

static void note_bad(struct sk_restoring *rs, const struct sk_sourced *s)
{
	struct sk_restore_image *image = &rs->images[s->image];

	__atomic_store_n(&image->places[s->place].bad_entry,
			 s->entry->index + 1, __ATOMIC_RELAXED);
	sk_bit_set(rs->bad, (uint64_t)s->place * rs->n_images + s->image);
}

static void note_sum(struct sk_restoring *rs, const struct sk_sourced *s,
		     uint32_t chunk, uint64_t sum, uint64_t bytes)
{
	struct sk_restore_image *image = &rs->images[s->image];

	__atomic_fetch_add(&rs->report.bytes_verified, bytes,
			   __ATOMIC_RELAXED);
	if (sum != sk_restore_sum(image, s->entry, chunk))
		note_bad(rs, s);
	sk_restore_note_verified(image, s->place, s->entry, chunk);
}

/* Of a file: a copy of ours, of all of the chunk or of what is wanted. */
static int hold_file(struct sk_restoring *rs, const struct sk_sourced *s,
		     struct sk_passing *p, char *buf, bool verify,
		     struct sk_err *err)
{
	uint64_t from = p->from, to = p->to;
	int r;

	if (!verify) {
		from = sk_restore_position(&p->shape, p->first);
		to = sk_restore_position(&p->shape, p->last - 1) + 1;
	}
	r = fill(rs, s, from, to, buf, err);
	p->copy = sk_passing_out_of(p, from, buf);
	p->base = (const char *)((uintptr_t)buf - from);
	p->shared = false;
	return r;
}

/* Of a mapping what is more than a fault brings along. */
#define POPULATE_LEAST ((uint64_t)128 << 10)

/* All of a chunk that nobody has read yet is about to be. */
static void populate(const struct sk_restoring *rs, const struct sk_sourced *s,
		     const struct sk_passing *p)
{
	if (!s->place && p->to - p->from >= POPULATE_LEAST)
		sk_restore_populate(rs, s->image, s->entry->offset + p->from,
				    s->entry->offset + p->to);
}

/* What is verified is what is sent. */
static int pack_chunk(struct sk_restoring *rs, const struct sk_sourced *s,
		      uint32_t chunk, struct sk_passing *p, char *buf,
		      struct sk_err *err)
{
	const struct sk_restore_image *image = &rs->images[s->image];
	bool verify = !(rs->flags & SK_RESTORE_NO_VERIFY) &&
		      !sk_restore_is_verified(image, s->place, s->entry,
					      chunk);
	uint64_t sum;
	int r = 0;

	if (s->place)
		r = hold_file(rs, s, p, buf, verify, err);
	if (r >= 0 && !verify) {
		sk_copy_run_range(&p->copy, p->first, p->last);
		sk_restore_trust(rs, s->place);
	}
	if (r < 0 || !verify)
		return r;
	populate(rs, s, p);
	r = sk_passing_run(p, &sum, err);
	if (r >= 0)
		note_sum(rs, s, chunk, sum, p->to - p->from);
	return r;
}

/* Where byte 0 of the entry is in this process, of a file nowhere yet. */
static const char *base_of(const struct sk_restoring *rs,
			   const struct sk_sourced *s)
{
	const char *map = rs->images[s->image].places[0].map;

	return s->place ? NULL : map + s->entry->offset;
}

int sk_restore_read_source(struct sk_restoring *rs, const struct sk_want *want,
			   const struct sk_sourced *s, uint64_t from,
			   uint64_t to, char *dst, struct sk_err *err)
{
	_cleanup_free_ char *buf = s->place ? malloc(SK_SUM_CHUNK) : NULL;
	struct sk_passing whole = { .shared = true };
	uint64_t skip;
	int r;

	assert(s->entry && from < to);
	if (s->place && !buf)
		return sk_err_set(err, -ENOMEM, "no memory to read a chunk");
	r = sk_restore_pack(s->item, s->entry, &want->box,
			    (char *)((uintptr_t)dst - from), &whole.copy,
			    &skip, err);
	sk_restore_shape(s->item, s->entry, &want->box, &whole.shape);
	whole.base = base_of(rs, s);
	whole.copy.src = (const char *)((uintptr_t)whole.base + skip);
	while (from < to && r >= 0) {
		struct sk_passing p = whole;
		uint64_t chunk = sk_restore_position(&p.shape, from) /
				 SK_SUM_CHUNK;

		sk_restore_chunk(s->entry, (uint32_t)chunk, &p.from, &p.to);
		p.first = from;
		p.last = sk_restore_before(&p.shape, p.to);
		p.last = p.last < to ? p.last : to;
		r = pack_chunk(rs, s, (uint32_t)chunk, &p, buf, err);
		from = p.last;
	}
	return r;
}
