/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All items of all images are sorted by name; of each name the boxes that are
 * there are collected, and must fill the tensor.
 */
#include "layout/coverage.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "base/util.h"
#include "layout/alike.h"
#include "layout/mentions.h"
#include "tensor/tiling.h"

#define NAMED_MAX 4		/* missing boxes that the sentence names */
/* Visits that one question may take besides those that its boxes bring. */
#define VISITS_FREE ((uint64_t)1 << 20)

struct boxes {
	struct sk_box *v;
	size_t n, room;
};

struct check {
	struct sk_err *err;
	char missing[SK_ERR_MAX - 64];
	size_t at;
	unsigned n_missing;
	uint64_t visits;	/* left: see tensor/tiling.h */
};

static int add_box(struct boxes *b, const struct sk_box *box)
{
	if (sk_array_fit(b->v, b->room, b->n + 1) < 0)
		return -ENOMEM;
	b->v[b->n++] = *box;
	return 0;
}

__attribute__((format(printf, 2, 3)))
static void say_missing(struct check *c, const char *format, ...)
{
	va_list args;

	if (c->n_missing++ >= NAMED_MAX || c->at >= sizeof(c->missing))
		return;
	if (c->at)
		c->at += (size_t)snprintf(c->missing + c->at,
					  sizeof(c->missing) - c->at, ", ");
	if (c->at >= sizeof(c->missing))
		return;
	va_start(args, format);
	c->at += (size_t)vsnprintf(c->missing + c->at,
				   sizeof(c->missing) - c->at, format, args);
	va_end(args);
}

static void note_missing(struct check *c, const struct sk_mention *m,
			 const struct sk_box *box)
{
	char text[160];

	say_missing(c, "%.80s %s of rank %d", m->item->spec.name,
		    sk_box_format(m->item->spec.ndim, box, text, sizeof(text)),
		    m->image->layout->rank);
}

static void note_hole(struct check *c, const struct sk_mention *m,
		      const struct sk_box *box, const char *why)
{
	char text[160];

	say_missing(c, "%.80s %s (%s)", m->item->spec.name,
		    sk_box_format(m->item->spec.ndim, box, text, sizeof(text)),
		    why);
}

static int compare_box(const void *a, const void *b)
{
	const struct sk_box *x = a, *y = b;

	for (int d = 0; d < SK_MAX_DIMS; d++) {
		if (x->offset[d] != y->offset[d])
			return x->offset[d] < y->offset[d] ? -1 : 1;
		if (x->size[d] != y->size[d])
			return x->size[d] < y->size[d] ? -1 : 1;
	}
	return 0;
}

static bool holds(const struct sk_mention *m, const struct sk_box *box)
{
	return sk_layout_find(m->image->layout, m->item->kind,
			      m->item->spec.name, box->offset);
}

/* The boxes of one thing that images hold, each once; @absent: those as well
 * that are not there. */
static int collect(const struct sk_mention *m, size_t n, bool absent,
		   struct boxes *have)
{
	size_t kept = 0;
	int r = 0;

	assert(!have->n);
	for (size_t i = 0; i < n; i++)
		for (int b = 0; (absent || m[i].image->present) &&
		     b < m[i].item->n_boxes && r >= 0; b++)
			if (holds(&m[i], &m[i].item->boxes[b]))
				r = add_box(have, &m[i].item->boxes[b]);
	if (r < 0 || !have->n)
		return r;
	qsort(have->v, have->n, sizeof(*have->v), compare_box);
	for (size_t i = 1; i < have->n; i++)
		if (compare_box(&have->v[i], &have->v[kept]))
			have->v[++kept] = have->v[i];
	have->n = kept + 1;
	return 0;
}

/* Computed boxes of one spec never overlap, so their volumes just add up. */
static bool regular(const struct sk_mention *m, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (m[i].item->explicit_boxes ||
		    !sk_spec_same_layout(&m[i].item->spec, &m[0].item->spec))
			return false;
	return true;
}

static int is_covered(struct check *c, const struct sk_mention *m, size_t n,
		      const struct boxes *have, bool *ret)
{
	const struct sk_spec *s = &m->item->spec;
	struct sk_box whole = sk_box_whole(s->ndim, s->shape);
	int64_t total = sk_box_volume(s->ndim, &whole), lack = total;

	assert(n);
	if (!total) {		/* no element is missing; a layout names it */
		*ret = true;
		return 0;
	}
	/* Not a sum, which might overflow: boxes may be the whole, often. */
	for (size_t i = 0; i < have->n && lack > 0; i++)
		lack -= sk_box_volume(s->ndim, &have->v[i]);
	if (lack > 0 || regular(m, n)) {
		*ret = !lack;
		return 0;
	}
	c->visits += sk_tiling_visits(s->ndim, have->n);
	return sk_tiling_fills(s->ndim, &whole, have->v, have->n, &c->visits,
			       ret);
}

static bool has_box(const struct boxes *have, const struct sk_box *box)
{
	return have->n && bsearch(box, have->v, have->n, sizeof(*box),
				  compare_box);
}

/* What of @box, which an image would hold, is not there; false: others have it.
 * Where telling takes too long it is all of the box. */
static bool is_missing(struct check *c, int ndim, const struct sk_box *box,
		       const struct boxes *have, bool apart,
		       struct sk_box *ret)
{
	*ret = *box;
	if (sk_box_empty(ndim, box) || has_box(have, box))
		return false;
	return apart || sk_tiling_hole(ndim, box, have->v, have->n,
				       &c->visits, ret) != 0;
}

/* What images hold that are not there, each box in one of a rank's two. */
static void name_boxes(struct check *c, const struct sk_mention *m, size_t n,
		       const struct boxes *have)
{
	bool apart = regular(m, n);	/* boxes are equal or do not overlap */
	struct sk_box lack;

	for (size_t i = 0; i < n && c->n_missing <= NAMED_MAX; i++)
		for (int b = 0; !m[i].image->present &&
		     b < m[i].item->n_boxes; b++)
			if (holds(&m[i], &m[i].item->boxes[b]) &&
			    is_missing(c, m->item->spec.ndim,
				       &m[i].item->boxes[b], have, apart,
				       &lack))
				note_missing(c, &m[i], &lack);
}

static bool is_described(const struct sk_mention *m, size_t n, int32_t rank)
{
	size_t from = 0;

	while (n) {
		size_t half = n / 2;
		int32_t at = m[from + half].image->layout->rank;

		if (at == rank)
			return true;
		if (at < rank) {
			from += half + 1;
			n -= half + 1;
		} else {
			n = half;
		}
	}
	return false;
}

/* Ranks of the mesh that do not describe what is theirs of it: nobody holds
 * that, also where equal ranks describe it and take those for its holders. */
static int name_ranks(struct check *c, const struct sk_mention *m, size_t n,
		      const struct boxes *held)
{
	const struct sk_spec *s = &m->item->spec;
	int64_t count = s->mesh ? sk_mesh_count(s->mesh) :
				  m->image->layout->world;

	for (int64_t i = 0; i < count && c->n_missing <= NAMED_MAX; i++) {
		_cleanup_free_ struct sk_box *boxes = NULL;
		int32_t rank = s->mesh ? sk_mesh_rank_at(s->mesh, i) :
					 (int32_t)i;
		char why[48];
		int n_boxes = 0;

		if (is_described(m, n, rank))
			continue;
		if (sk_spec_boxes(s, rank, &boxes, &n_boxes, NULL) == -ENOMEM)
			return -ENOMEM;
		(void)snprintf(why, sizeof(why), "rank %d does not describe "
			       "it", rank);
		for (int b = 0; b < n_boxes; b++)
			if (!sk_box_empty(s->ndim, &boxes[b]) &&
			    !has_box(held, &boxes[b]))
				note_hole(c, m, &boxes[b], why);
	}
	return 0;
}

/* What none of @boxes has; is added to them, and to @more. */
static int name_rest(struct check *c, const struct sk_mention *m,
		     struct boxes *boxes, const char *why, struct boxes *more)
{
	const struct sk_spec *s = &m->item->spec;
	struct sk_box whole = sk_box_whole(s->ndim, s->shape), hole;
	int r = 0;

	c->visits += sk_tiling_visits(s->ndim, boxes->n);
	while (r >= 0 && c->n_missing <= NAMED_MAX) {
		r = sk_tiling_hole(s->ndim, &whole, boxes->v, boxes->n,
				   &c->visits, &hole);
		if (r <= 0)
			break;
		note_hole(c, m, &hole, why);
		r = add_box(boxes, &hole);
		if (r >= 0 && more)
			r = add_box(more, &hole);
	}
	return r;
}

/* Of what was said box by box. */
static int name_holes(struct check *c, const struct sk_mention *m, size_t n,
		      struct boxes *held)
{
	struct boxes all = { 0 };
	int r = 0;

	for (size_t i = 0; i < n && r >= 0; i++)
		for (int b = 0; b < m[i].item->n_boxes && r >= 0; b++)
			r = add_box(&all, &m[i].item->boxes[b]);
	if (r >= 0)
		r = name_rest(c, m, &all, "described by no rank", held);
	if (r >= 0)
		r = name_rest(c, m, held, "held by no rank", NULL);
	free(all.v);
	return r;
}

/* What would be missing if all images were there. */
static int name_unheld(struct check *c, const struct sk_mention *m, size_t n)
{
	struct boxes held = { 0 };
	int r = collect(m, n, true, &held);

	if (r >= 0)
		r = regular(m, n) ? name_ranks(c, m, n, &held) :
				    name_holes(c, m, n, &held);
	free(held.v);
	return r;
}

static int name_missing(struct check *c, const struct sk_mention *m, size_t n,
			const struct boxes *have)
{
	struct sk_box whole = sk_box_whole(m->item->spec.ndim,
					   m->item->spec.shape);
	unsigned before = c->n_missing;
	int r;

	assert(n);
	c->visits += sk_tiling_visits(m->item->spec.ndim, have->n);
	name_boxes(c, m, n, have);
	r = c->n_missing > NAMED_MAX ? 0 : name_unheld(c, m, n);
	if (r != -ENOMEM && c->n_missing == before)
		/* Finding out which part of it would take too long. */
		note_hole(c, m, &whole, "no rank describes all of it");
	return r == -ENOMEM ? r : 0;
}

static int check_thing(struct check *c, const struct sk_mention *m, size_t n)
{
	struct boxes have = { 0 };
	bool covered = false;
	int r = sk_mentions_agree(m, n, c->err);

	if (r < 0)
		return r;
	r = collect(m, n, false, &have);
	if (r >= 0)
		r = is_covered(c, m, n, &have, &covered);
	if (r >= 0 && !covered)
		r = name_missing(c, m, n, &have);
	free(have.v);
	if (r == -E2BIG)
		return sk_err_set(c->err, r, "%zu boxes of \"%s\" overlap in "
				  "too many ways to tell whether they fill it; "
				  "let each rank say boxes that others do not "
				  "hold", have.n, m->item->spec.name);
	return r < 0 ? sk_err_set(c->err, r, "out of memory for the coverage "
				  "of \"%s\"", m->item->spec.name) : 0;
}

/* Of every rank the primary layout must be known: what else might it hold? */
static int check_ranks(const struct sk_coverage_like *im, size_t n,
		       int32_t world, struct sk_err *err)
{
	_cleanup_free_ bool *known = calloc((size_t)world + 1, sizeof(bool));
	int32_t absent = 0, first = -1;

	assert(world >= 0);
	if (!known)
		return sk_err_set(err, -ENOMEM, "out of memory");
	for (size_t i = 0; i < n; i++)
		if (im[i].kind == SK_IMAGE_PRIMARY && im[i].rank < world)
			known[im[i].rank] = true;
	for (int32_t r = 0; r < world; r++)
		if (!known[r] && absent++ == 0)
			first = r;
	if (!absent)
		return 0;
	return sk_err_set(err, -ENODATA, "%d of %d ranks have no image, "
			  "rank %d first", absent, world, first);
}

/* By all boxes of all images, of which none is a sketch. */
static int check_boxes(const struct sk_coverage_image *images, size_t n,
		       struct sk_err *err)
{
	_cleanup_free_ struct sk_mention *all = NULL;
	struct check c = { .err = err, .visits = VISITS_FREE };
	size_t count;
	int r = sk_mentions_new(images, n, &all, &count, err);

	for (size_t i = 0, k; i < count && r >= 0; i += k) {
		k = sk_mentions_of_first(&all[i], count - i);
		r = check_thing(&c, &all[i], k);
	}
	if (r < 0 || !c.n_missing)
		return r;
	return sk_err_set(err, -ENODATA, "missing: %s%s", c.missing,
			  c.n_missing > NAMED_MAX ? ", ..." : "");
}

/* ---- sketches ---- */

/* Most that the layouts of sketches may take. */
#define WHOLE_MAX ((uint64_t)512 << 20)

static int check_size(const struct sk_coverage_image *images, size_t n,
		      struct sk_err *err)
{
	const struct sk_coverage_image *absent = NULL;
	uint64_t bytes = 0;

	for (size_t i = 0; i < n; i++) {
		if (!images[i].present && !absent)
			absent = &images[i];
		if (!images[i].layout->header)
			bytes += images[i].layout->header_bytes * 3;
	}
	if (bytes <= WHOLE_MAX)
		return 0;
	return sk_err_set(err, -ENODATA, "missing: the image of rank %d; with "
			  "%zu images it is not looked for whether others "
			  "have what it held", absent ? absent->layout->rank :
			  images[0].layout->rank, n);
}

static int make_whole(struct sk_coverage_image *images, size_t n,
		      struct sk_err *err)
{
	for (size_t i = 0; i < n; i++) {
		struct sk_layout *whole;
		int r = sk_layout_whole((struct sk_layout *)images[i].layout,
					&whole);

		if (r < 0) {
			sk_err_set(err, r == -ENOMEM ? r : -ENODATA, "the "
				   "layout of rank %d cannot be computed",
				   images[i].layout->rank);
			while (i--)
				sk_layout_free((struct sk_layout *)
					       images[i].layout);
			return r == -ENOMEM ? r : -ENODATA;
		}
		images[i].layout = whole;
	}
	return 0;
}

static int check_sketches(const struct sk_coverage_image *images, size_t n,
			  struct sk_err *err)
{
	_cleanup_free_ struct sk_coverage_image *whole = NULL;
	int r = check_size(images, n, err);

	if (r < 0)
		return r;
	whole = malloc((n + 1) * sizeof(*whole));
	if (!whole)
		return sk_err_set(err, -ENOMEM, "out of memory");
	memcpy(whole, images, n * sizeof(*whole));
	r = make_whole(whole, n, err);
	if (r < 0)
		return r;
	r = check_boxes(whole, n, err);
	for (size_t i = 0; i < n; i++)
		sk_layout_free((struct sk_layout *)whole[i].layout);
	return r;
}

static bool has_sketch(const struct sk_coverage_image *images, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!images[i].layout->header)
			return true;
	return false;
}

int sk_coverage_follows(const struct sk_coverage_like *images, size_t n,
			int32_t world, bool *ret_covered, struct sk_err *err)
{
	uint64_t looks = 0;
	int r = check_ranks(images, n, world, err);

	*ret_covered = false;
	if (r >= 0 && sk_coverage_alike(images, n, world, ret_covered,
					&looks) < 0)
		r = sk_err_set(err, -ENOMEM, "out of memory");
	return r;
}

int sk_coverage_check(const struct sk_coverage_image *images, size_t n,
		      int32_t world, struct sk_err *err)
{
	_cleanup_free_ struct sk_coverage_like *like = NULL;
	bool covered;
	int r;

	like = malloc((n + 1) * sizeof(*like));
	if (!like)
		return sk_err_set(err, -ENOMEM, "out of memory");
	for (size_t i = 0; i < n; i++)
		like[i] = (struct sk_coverage_like){
			images[i].layout, images[i].layout->rank,
			images[i].layout->kind, images[i].present };
	r = sk_coverage_follows(like, n, world, &covered, err);
	if (r < 0 || covered)
		return r;
	return has_sketch(images, n) ? check_sketches(images, n, err) :
				       check_boxes(images, n, err);
}
