/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Coverage against a reference that marks every element that a present image
 * has an entry for.
 */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "layout/agreement.h"
#include "layout/alike.h"
#include "layout/coverage.h"
#include "base/util.h"
#include "support/random.h"

#define RANKS_MAX 6
#define THINGS 4		/* tensors and blobs of a job */
#define SIDE 11
#define DIMS 2

/* ---- the job ---- */

struct job {
	int world;
	struct sk_item things[THINGS];
	char names[THINGS][8];
	bool is_explicit[THINGS];	/* said by the owners, rank by rank */
	bool omits[THINGS][RANKS_MAX];	/* the rank does not describe it */
	struct sk_box said[THINGS][RANKS_MAX];
	struct sk_layout *layouts[RANKS_MAX][2];
	struct sk_coverage_image images[2 * RANKS_MAX];
	size_t n;
};

static uint64_t seed = 4;

static int pick(int n)
{
	return (int)draw(&seed, (uint64_t)n);
}

static const struct sk_mesh *random_mesh(int world)
{
	int first = pick(world), n = 1 + pick(world);
	int64_t shape[2] = { n, 1 };
	int32_t ranks[RANKS_MAX];
	struct sk_mesh *m = NULL;

	if (n % 2 == 0 && pick(2)) {
		shape[0] = 2;
		shape[1] = n / 2;
	}
	for (int i = 0; i < n; i++)
		ranks[i] = (first + i) % world;
	cr_assert_eq(sk_mesh_new(2, shape, ranks, NULL, &m, NULL), 0);
	return m;
}

static struct sk_placement random_placement(int ndim)
{
	int kind = ndim ? pick(5) : 0;

	if (kind < 2)
		return SK_REPLICATE;
	if (kind == 2)
		return SK_STRIDED_SHARD(pick(ndim), 1 + pick(3));
	return SK_SHARD(pick(ndim));
}

/* Each rank says a box of its own; together they may overlap or leave
 * holes. */
static void say_boxes(struct job *j, int i)
{
	const struct sk_spec *s = &j->things[i].spec;

	j->is_explicit[i] = true;
	for (int r = 0; r < j->world; r++)
		for (int d = 0; d < s->ndim; d++) {
			int n = (int)s->shape[d];
			int from = pick(2) ? 0 : pick(n + 1);

			j->said[i][r].offset[d] = from;
			j->said[i][r].size[d] = pick(2) ? n - from :
						pick(n - from + 1);
		}
}

static void random_thing(struct job *j, int i)
{
	struct sk_item *it = &j->things[i];
	struct sk_spec *s = &it->spec;

	(void)snprintf(j->names[i], sizeof(j->names[i]), "t%d", i);
	*it = (struct sk_item){ .kind = (enum sk_item_kind)
		(pick(3) ? SK_ITEM_TENSOR : pick(3)) };
	*s = (struct sk_spec){ .name = j->names[i], .dtype = SK_U8,
			       .ndim = 1, .shape = { 1 + pick(5) } };
	if (it->kind != SK_ITEM_TENSOR)
		return;
	s->ndim = pick(DIMS + 1);
	for (int d = 0; d < s->ndim; d++)
		s->shape[d] = pick(SIDE + 1);
	if (pick(5))
		s->mesh = random_mesh(j->world);
	for (int m = 0; m < 2; m++)
		s->placements[m] = random_placement(s->ndim);
	cr_assert_eq(sk_spec_normalize(s, NULL), 0);
	if (s->ndim && !pick(4))
		say_boxes(j, i);
}

static void lay_out(struct job *j, int r)
{
	struct sk_item items[THINGS];
	struct sk_err err = { "" };
	uint32_t n = 0;

	for (int i = 0; i < THINGS; i++) {
		if (j->omits[i][r])
			continue;
		items[n] = j->things[i];
		if (j->is_explicit[i]) {
			items[n].explicit_boxes = true;
			items[n].boxes = &j->said[i][r];
			items[n].n_boxes = 1;
		}
		n++;
	}
	for (int k = 0; k < 2; k++)
		cr_assert_eq(sk_layout_new("job", r, j->world,
					   (enum sk_image_kind)k, items, n,
					   &j->layouts[r][k], &err),
			     0, "%s", err.text);
}

/* As pipelines do: a thing may be the first or the last ranks' alone, or
 * anybody's. */
static void omit_some(struct job *j)
{
	for (int i = 0; i < THINGS; i++) {
		int how = pick(6), border = pick(j->world + 1);

		for (int r = 0; r < j->world; r++)
			j->omits[i][r] = how == 0 ? r < border :
					 how == 1 ? r >= border :
					 how == 2 ? !pick(3) : false;
	}
}

/* Most images are given, most of these are present. */
static void random_job(struct job *j)
{
	int here = pick(3) ? 1 + pick(12) : 1000;

	*j = (struct job){ .world = 1 + pick(RANKS_MAX) };
	for (int i = 0; i < THINGS; i++)
		random_thing(j, i);
	if (pick(2))
		omit_some(j);
	for (int r = 0; r < j->world; r++) {
		lay_out(j, r);
		for (int k = 0; k < 2; k++)
			if (k ? pick(3) : pick(20))
				j->images[j->n++] =
					(struct sk_coverage_image){
						j->layouts[r][k],
						pick(here) != 0 };
	}
}

static void free_job(struct job *j)
{
	for (int r = 0; r < j->world; r++)
		for (int k = 0; k < 2; k++)
			sk_layout_free(j->layouts[r][k]);
	for (int i = 0; i < THINGS; i++)
		sk_mesh_unref((struct sk_mesh *)j->things[i].spec.mesh);
}

/* ---- the reference ---- */

static void mark(const struct sk_box *b, int ndim,
		 bool marks[SIDE + 1][SIDE + 1])
{
	int64_t n0 = ndim > 0 ? b->size[0] : 1, n1 = ndim > 1 ? b->size[1] : 1;

	for (int64_t x = 0; x < n0; x++)
		for (int64_t y = 0; y < n1; y++)
			marks[x + (ndim > 0 ? b->offset[0] : 0)]
			     [y + (ndim > 1 ? b->offset[1] : 0)] = true;
}

/* Marks what present images hold, of one rank or (-1) of all. */
static void mark_held(const struct job *j, int thing, int rank,
		      bool marks[SIDE + 1][SIDE + 1])
{
	for (size_t i = 0; i < j->n; i++) {
		const struct sk_layout *l = j->images[i].layout;

		if (!j->images[i].present || (rank >= 0 && l->rank != rank))
			continue;
		for (uint32_t e = 0; e < l->n_entries; e++)
			if (!strcmp(l->items[l->entries[e].item].spec.name,
				    j->names[thing]))
				mark(&l->entries[e].box,
				     j->things[thing].spec.ndim, marks);
	}
}

static bool holds_all(const struct job *j, int thing, int rank)
{
	const struct sk_spec *s = &j->things[thing].spec;
	int64_t n0 = s->ndim > 0 ? s->shape[0] : 1;
	int64_t n1 = s->ndim > 1 ? s->shape[1] : 1;
	bool marks[SIDE + 1][SIDE + 1] = { { 0 } };

	mark_held(j, thing, rank, marks);
	for (int64_t x = 0; x < n0; x++)
		for (int64_t y = 0; y < n1; y++)
			if (!marks[x][y])
				return false;
	return true;
}

/* A local blob is another thing on each rank whose layout is known. */
static bool local_blobs(const struct job *j, int thing)
{
	for (size_t i = 0; i < j->n; i++)
		if (!j->omits[thing][j->images[i].layout->rank] &&
		    !holds_all(j, thing, j->images[i].layout->rank))
			return false;
	return true;
}

/* What nobody describes is nothing that could be missing. */
static bool described(const struct job *j, int thing)
{
	for (size_t i = 0; i < j->n; i++)
		if (!j->omits[thing][j->images[i].layout->rank])
			return true;
	return false;
}

static bool all_known(const struct job *j)
{
	int known = 0;

	for (size_t i = 0; i < j->n; i++)
		known += j->images[i].layout->kind == SK_IMAGE_PRIMARY;
	return known == j->world;
}

static bool complete(const struct job *j)
{
	bool all = all_known(j);

	for (int i = 0; i < THINGS && all; i++)
		all = !described(j, i) ||
		      (j->things[i].kind == SK_ITEM_BLOB_LOCAL ?
		       local_blobs(j, i) : holds_all(j, i, -1));
	return all;
}

/* Another image's layout of that description; NULL: none. */
static struct sk_layout *base_of(const struct job *j, const struct sk_layout *l)
{
	for (int r = 0; r < j->world; r++)
		if (j->layouts[r][0] != l &&
		    j->layouts[r][0]->description == l->description &&
		    !sk_layout_says_boxes(j->layouts[r][0]))
			return j->layouts[r][0];
	return NULL;
}

/* By descriptions alone. */
static bool follows(const struct sk_coverage_image *images, size_t n,
		    int32_t world, uint64_t *looks)
{
	struct sk_coverage_like *like = calloc(n + 1, sizeof(*like));
	bool alike = false;

	cr_assert(like);
	for (size_t i = 0; i < n; i++)
		like[i] = (struct sk_coverage_like){
			images[i].layout, images[i].layout->rank,
			images[i].layout->kind, images[i].present };
	cr_assert_eq(sk_coverage_alike(like, n, world, &alike, looks), 0);
	free(like);
	return alike;
}

/* The same, with sketches of all that others describe as well. */
static int check_sketches(const struct job *j, size_t *sketches)
{
	struct sk_coverage_image images[2 * RANKS_MAX];
	struct sk_layout *made[2 * RANKS_MAX] = { NULL };
	int r;

	memcpy(images, j->images, sizeof(images));
	for (size_t i = 0; i < j->n; i++) {
		struct sk_layout *base = base_of(j, images[i].layout);

		if (!base)
			continue;
		made[i] = sk_layout_sketch(base, images[i].layout);
		images[i].layout = made[i];
		++*sketches;
	}
	r = sk_coverage_check(images, j->n, j->world, NULL);
	for (size_t i = 0; i < j->n; i++)
		sk_layout_free(made[i]);
	return r;
}

/* "[0:4, 8:16]", "[]". */
static const char *read_box(const char *at, int ndim, struct sk_box *ret)
{
	int n = 0;

	*ret = (struct sk_box){ 0 };
	cr_assert_eq(*at++, '[');
	for (int d = 0; d < ndim; d++, at += n) {
		int64_t to = 0;

		cr_assert_eq(sscanf(at, d ? ", %" SCNd64 ":%" SCNd64 "%n" :
					    "%" SCNd64 ":%" SCNd64 "%n",
				    &ret->offset[d], &to, &n), 2, "%s", at);
		ret->size[d] = to - ret->offset[d];
	}
	cr_assert_eq(*at, ']', "%s", at);
	return at + 1;
}

static bool none_held(const struct job *j, int thing, int rank,
		      const struct sk_box *box)
{
	int ndim = j->things[thing].spec.ndim;
	bool held[SIDE + 1][SIDE + 1] = { { 0 } };
	bool said[SIDE + 1][SIDE + 1] = { { 0 } };

	mark_held(j, thing, j->things[thing].kind == SK_ITEM_BLOB_LOCAL ?
				    rank : -1, held);
	mark(box, ndim, said);
	for (int x = 0; x <= SIDE; x++)
		for (int y = 0; y <= SIDE; y++)
			if (held[x][y] && said[x][y])
				return false;
	return !sk_box_empty(ndim, box);
}

static bool is_absent(const struct job *j, int rank)
{
	for (size_t i = 0; i < j->n; i++)
		if (j->images[i].layout->rank == rank && !j->images[i].present)
			return true;
	return false;
}

/* What is said to be missing is, all of it; a rank that is said to have it has
 * an image that is not there, and one that does not describe it does not. */
static void says_the_truth(const struct job *j, const char *text)
{
	int n = 0, thing, rank;

	if (sscanf(text, "missing: %n", &n) || !n)
		return;
	for (const char *at = text + n; strcmp(at, "...") != 0;) {
		struct sk_box box;

		cr_assert_eq(sscanf(at, "t%d %n", &thing, &n), 1, "%s", text);
		at = read_box(at + n, j->things[thing].spec.ndim, &box);
		n = 0;
		rank = -1;
		if (sscanf(at, " of rank %d%n", &rank, &n) == 1)
			cr_assert(is_absent(j, rank), "%s", text);
		else if (sscanf(at, " (rank %d does not describe it)%n", &rank,
				&n) == 1)
			cr_assert(j->omits[thing][rank], "%s", text);
		else
			(void)(sscanf(at, " (described by no rank)%n", &n) +
			       sscanf(at, " (held by no rank)%n", &n));
		cr_assert(n, "%s", text);
		cr_assert(none_held(j, thing, rank, &box), "%s", text);
		at += n;
		if (!*at)
			return;
		cr_assert(at[0] == ',' && at[1] == ' ', "%s", text);
		at += 2;
	}
}

Test(coverage, is_what_marking_every_element_says, .timeout = 300)
{
	static struct job j;
	int covered = 0, followed = 0;
	size_t sketches = 0;

	for (int round = 0; round < 5000; round++) {
		struct sk_err err = { "" };
		bool all, alike = false;
		uint64_t looks = 0;
		int r;

		random_job(&j);
		all = complete(&j);
		r = sk_coverage_check(j.images, j.n, j.world, &err);
		cr_assert_eq(r, all ? 0 : -ENODATA, "round %d: %d, %s, \"%s\"",
			     round, r, all ? "covered" : "not covered",
			     err.text);
		cr_assert_eq(!err.text[0], all, "round %d", round);
		says_the_truth(&j, err.text);
		alike = follows(j.images, j.n, j.world, &looks);
		cr_assert(all || !alike, "round %d", round);
		cr_assert_eq(check_sketches(&j, &sketches), r, "round %d",
			     round);
		covered += all;
		followed += alike;
		free_job(&j);
	}
	/* Both answers were given often. */
	cr_assert(covered > 500 && covered < 4500, "%d covered", covered);
	cr_assert(followed > 300 && sketches > 1000, "%d followed, %zu "
		  "sketches", followed, sketches);
}

/* Of a world that describes the same: looks of ranks, and of its items. */
static uint64_t looks_for(int32_t world, uint32_t n_items)
{
	_cleanup_free_ struct sk_item *items = calloc(n_items,
						      sizeof(*items));
	_cleanup_free_ struct sk_coverage_image *images =
		calloc((size_t)world, sizeof(*images));
	_cleanup_free_ char *names = calloc(n_items, 8);
	struct sk_layout *base = NULL, like;
	struct sk_mesh *mesh = NULL;
	uint64_t looks = 0;

	cr_assert_eq(sk_mesh_new(1, &(int64_t){ world }, NULL, NULL, &mesh,
				 NULL), 0);
	for (uint32_t i = 0; i < n_items; i++) {
		(void)snprintf(&names[i * 8], 8, "t%u", i);
		items[i].spec = (struct sk_spec){
			.name = &names[i * 8], .dtype = SK_U8, .ndim = 1,
			.shape = { world }, .mesh = mesh,
			.placements = { SK_SHARD(0) } };
	}
	cr_assert_eq(sk_layout_new("job", 0, world, SK_IMAGE_PRIMARY, items,
				   n_items, &base, NULL), 0);
	like = *base;
	for (int32_t r = 0; r < world; r++) {
		like.rank = r;
		images[r] = (struct sk_coverage_image){
			sk_layout_sketch(base, &like), true };
	}
	cr_assert(follows(images, (size_t)world, world, &looks));
	for (int32_t r = 0; r < world; r++)
		sk_layout_free((struct sk_layout *)images[r].layout);
	sk_layout_free(base);
	sk_mesh_unref(mesh);
	return looks;
}

Test(coverage, of_a_world_costs_its_ranks_and_its_items, .timeout = 300)
{
	cr_assert_eq(looks_for(64, 10), 64 + 10);
	cr_assert_eq(looks_for(16384, 10), 16384 + 10);
	cr_assert_eq(looks_for(16384, 1000), 16384 + 1000);
}

/* ---- by hand ---- */

struct few {
	struct sk_coverage_image im[12];
	size_t n;
};

static void add_layout(struct few *f, int rank, int world, int kind,
		       const struct sk_item *items, uint32_t n)
{
	struct sk_layout *l = NULL;
	struct sk_err err = { "" };

	cr_assert_eq(sk_layout_new("job", rank, world,
				   (enum sk_image_kind)kind, items, n, &l,
				   &err), 0, "%s", err.text);
	f->im[f->n++] = (struct sk_coverage_image){ l, true };
}

/* All images of a state of these items, present. */
static struct few images_of(int world, const struct sk_item *items,
			    uint32_t n, bool replicas)
{
	struct few f = { .n = 0 };

	for (int r = 0; r < world; r++)
		for (int k = 0; k <= replicas; k++)
			add_layout(&f, r, world, k, items, n);
	return f;
}

static void free_few(struct few *f)
{
	while (f->n)
		sk_layout_free((struct sk_layout *)f->im[--f->n].layout);
}

static struct sk_item item_of(const char *name, enum sk_item_kind kind,
			      enum sk_dtype dtype, int64_t n)
{
	return (struct sk_item){ .kind = kind, .spec = {
		.name = name, .dtype = dtype, .ndim = 1, .shape = { n } } };
}

/* What two ranks describe, of which nothing need be there. */
static int agreement(struct sk_item a, struct sk_item b)
{
	const struct sk_item same = item_of("norm", SK_ITEM_TENSOR, SK_F32, 3);
	struct sk_item of_a[] = { same, a }, of_b[] = { b, same };
	struct few f = { .n = 0 };
	struct sk_err err = { "" };
	int r;

	for (int kind = 0; kind < 2; kind++) {
		add_layout(&f, 0, 4, kind, of_a, 2);
		add_layout(&f, 2, 4, kind, of_b, 2);
		add_layout(&f, 3, 4, kind, of_a, 2);
	}
	for (size_t i = 0; i < f.n; i++)
		f.im[i].present = i % 2;
	r = sk_coverage_agree(f.im, f.n, &err);
	cr_assert(!r || strstr(err.text, "disagree on the dtype or shape of "
			       "\"w\""), "%s", err.text);
	free_few(&f);
	return r;
}

Test(coverage, ranks_that_are_there_agree_or_do_not)
{
	struct sk_item w = item_of("w", SK_ITEM_TENSOR, SK_F32, 8);
	struct sk_item rng = item_of("rng", SK_ITEM_BLOB_LOCAL, SK_U8, 5);

	cr_assert_eq(agreement(w, w), 0);
	cr_assert_eq(agreement(w, item_of("v", SK_ITEM_TENSOR, SK_F64, 7)),
		     0);
	cr_assert_eq(agreement(w, item_of("w", SK_ITEM_TENSOR, SK_F32, 9)),
		     -EINVAL);
	cr_assert_eq(agreement(w, item_of("w", SK_ITEM_TENSOR, SK_F64, 8)),
		     -EINVAL);
	/* Its own is another thing on each rank. */
	cr_assert_eq(agreement(rng, item_of("rng", SK_ITEM_BLOB_LOCAL, SK_U8,
					    50)), 0);
	cr_assert_eq(sk_coverage_agree(NULL, 0, NULL), 0);
}

static struct sk_mesh *line(int n)
{
	struct sk_mesh *m = NULL;

	cr_assert_eq(sk_mesh_new(1, (int64_t[]){ n }, NULL, NULL, &m, NULL),
		     0);
	return m;
}

static struct sk_mesh *grid(int64_t rows, int64_t columns)
{
	struct sk_mesh *m = NULL;

	cr_assert_eq(sk_mesh_new(2, (int64_t[]){ rows, columns }, NULL, NULL,
				 &m, NULL), 0);
	return m;
}

static struct sk_item tensor(const char *name, const struct sk_mesh *m,
			     int64_t rows, struct sk_placement placement)
{
	return (struct sk_item){ .spec = {
		.name = name, .dtype = SK_F32, .ndim = 2,
		.shape = { rows, 4 }, .mesh = m,
		.placements = { placement } } };
}

static void expect(const struct few *f, int world, int r, const char *text)
{
	struct sk_err err = { "" };

	cr_assert_eq(sk_coverage_check(f->im, f->n, world, &err), r, "%s",
		     err.text);
	cr_assert_str_eq(err.text, text);
	cr_assert_eq(sk_coverage_check(f->im, f->n, world, NULL), r);
}

Test(coverage, names_the_first_missing_boxes)
{
	_cleanup_mesh_ struct sk_mesh *m = line(6);
	struct sk_item items[] = { tensor("wq", m, 12, SK_SHARD(0)) };
	struct few f = images_of(6, items, 1, false);

	f.im[1].present = false;
	f.im[4].present = false;
	expect(&f, 6, -ENODATA,
	       "missing: wq [2:4, 0:4] of rank 1, wq [8:10, 0:4] of rank 4");
	for (int i = 0; i < 6; i++)
		f.im[i].present = false;
	expect(&f, 6, -ENODATA,
	       "missing: wq [0:2, 0:4] of rank 0, wq [2:4, 0:4] of rank 1, "
	       "wq [4:6, 0:4] of rank 2, wq [6:8, 0:4] of rank 3, ...");
	free_few(&f);
}

/* Two images of a rank describe its boxes twice, and it is told once. */
Test(coverage, names_a_missing_box_once)
{
	_cleanup_mesh_ struct sk_mesh *m = line(2);
	struct sk_item items[] = { tensor("bias", m, 3, SK_REPLICATE),
				   tensor("wq", m, 4, SK_SHARD(0)) };
	struct few f = images_of(2, items, 2, true);

	f.im[2].present = f.im[3].present = false;
	expect(&f, 2, -ENODATA, "missing: wq [2:4, 0:4] of rank 1");
	f.im[0].present = f.im[1].present = false;
	expect(&f, 2, -ENODATA,
	       "missing: bias [0:3, 0:4] of rank 0, bias [0:3, 0:4] of rank "
	       "1, wq [0:2, 0:4] of rank 0, wq [2:4, 0:4] of rank 1");
	free_few(&f);
}

Test(coverage, a_replica_stands_for_its_primary)
{
	_cleanup_mesh_ struct sk_mesh *m = line(3);
	struct sk_item items[] = { tensor("bias", m, 3, SK_REPLICATE) };
	struct few f = images_of(3, items, 1, true);

	/* Any one of the six images that holds it is enough. */
	for (size_t keep = 0; keep < f.n; keep++) {
		struct sk_err err = { "" };
		bool has = f.im[keep].layout->n_entries > 0;

		for (size_t i = 0; i < f.n; i++)
			f.im[i].present = i == keep;
		cr_assert_eq(sk_coverage_check(f.im, f.n, 3, &err),
			     has ? 0 : -ENODATA, "%s", err.text);
	}
	free_few(&f);
}

/* Twice the same half is not the whole, however the volumes add up. */
Test(coverage, counts_nothing_twice)
{
	struct sk_item item = tensor("w", NULL, 4, SK_REPLICATE);

	item.explicit_boxes = true;
	item.n_boxes = 1;
	for (int shift = 0; shift <= 2; shift++) {
		struct sk_box boxes[2] = { { { 0, 0 }, { 2, 4 } },
					   { { shift, 0 }, { 2, 4 } } };
		struct few f = { .n = 0 };

		for (int r = 0; r < 2; r++) {
			item.boxes = &boxes[r];
			add_layout(&f, r, 2, SK_IMAGE_PRIMARY, &item, 1);
		}
		if (shift == 2)
			expect(&f, 2, 0, "");
		else
			expect(&f, 2, -ENODATA, shift ?
			       "missing: w [3:4, 0:4] (described by no rank)" :
			       "missing: w [2:4, 0:4] (described by no rank)");
		free_few(&f);
	}
}

/* What is missing is named with the rank that described it, and what nobody
 * described without one; what another rank has is not missing. */
Test(coverage, names_holes_and_what_ranks_lack_apart)
{
	struct sk_item item = tensor("w", NULL, 12, SK_REPLICATE);
	struct sk_box boxes[3] = { { { 0, 0 }, { 4, 4 } },
				   { { 2, 0 }, { 2, 4 } },
				   { { 2, 0 }, { 4, 2 } } };
	struct few f = { .n = 0 };

	item.explicit_boxes = true;
	item.n_boxes = 1;
	for (int r = 0; r < 3; r++) {
		item.boxes = &boxes[r];
		add_layout(&f, r, 3, SK_IMAGE_PRIMARY, &item, 1);
	}
	expect(&f, 3, -ENODATA,
	       "missing: w [4:12, 2:4] (described by no rank), "
	       "w [6:12, 0:2] (described by no rank)");
	/* All of rank 1's box lies in rank 0's, of rank 2's a half. */
	f.im[1].present = f.im[2].present = false;
	expect(&f, 3, -ENODATA,
	       "missing: w [4:6, 0:2] of rank 2, "
	       "w [4:12, 2:4] (described by no rank), "
	       "w [6:12, 0:2] (described by no rank)");
	free_few(&f);
}

/* The ranks of a mesh would fill it, but one of them does not describe it. */
Test(coverage, names_what_a_rank_of_the_mesh_does_not_describe)
{
	_cleanup_mesh_ struct sk_mesh *m = line(4);
	struct sk_item item = tensor("w", m, 8, SK_SHARD(0));
	struct few f = { .n = 0 };

	for (int r = 0; r < 4; r++)
		add_layout(&f, r, 4, SK_IMAGE_PRIMARY, &item, r != 2);
	expect(&f, 4, -ENODATA,
	       "missing: w [4:6, 0:4] (rank 2 does not describe it)");
	f.im[1].present = false;
	expect(&f, 4, -ENODATA,
	       "missing: w [2:4, 0:4] of rank 1, "
	       "w [4:6, 0:4] (rank 2 does not describe it)");
	free_few(&f);
	/* Of a replica others have it; of two, neither does. */
	for (int many = 0; many < 2; many++) {
		_cleanup_mesh_ struct sk_mesh *two = grid(2, 2);
		struct few g = { .n = 0 };

		item = tensor("w", two, 8, SK_REPLICATE);
		item.spec.placements[1] = SK_SHARD(0);
		for (int r = 0; r < 4; r++)
			add_layout(&g, r, 4, SK_IMAGE_PRIMARY, &item,
				   r != 1 && !(many && r == 3));
		expect(&g, 4, -ENODATA, many ?
		       "missing: w [4:8, 0:4] (rank 1 does not describe it), "
		       "w [4:8, 0:4] (rank 3 does not describe it)" :
		       "missing: w [4:8, 0:4] (rank 1 does not describe it)");
		free_few(&g);
	}
}

Test(coverage, ranks_without_an_image_are_missing)
{
	_cleanup_mesh_ struct sk_mesh *m = line(1);
	struct sk_item items[] = { tensor("w", m, 4, SK_SHARD(0)) };
	struct few f = images_of(3, items, 1, false);
	struct few some = f;

	some.n = 2;	/* rank 2 holds nothing, but who would know */
	expect(&some, 3, -ENODATA,
	       "1 of 3 ranks have no image, rank 2 first");
	some.n = 0;
	expect(&some, 3, -ENODATA,
	       "3 of 3 ranks have no image, rank 0 first");
	expect(&f, 3, 0, "");
	free_few(&f);
}

Test(coverage, empty_tensors_lack_nothing_and_scalars_may)
{
	_cleanup_mesh_ struct sk_mesh *m = line(2);
	struct sk_item items[] = {
		tensor("nothing", m, 0, SK_SHARD(0)),
		{ .spec = { .name = "step", .dtype = SK_F32, .mesh = m,
			    .placements = { SK_REPLICATE } } },
	};
	struct few f = images_of(2, items, 2, false);

	expect(&f, 2, 0, "");
	/* The first rank has the scalar, the second no entry at all. */
	f.im[1].present = false;
	expect(&f, 2, 0, "");
	f.im[0].present = false;
	f.im[1].present = true;
	expect(&f, 2, -ENODATA, "missing: step [] of rank 0");
	free_few(&f);
}

Test(coverage, a_job_of_nothing_is_complete)
{
	struct few f = images_of(2, NULL, 0, false);

	expect(&f, 2, 0, "");
	free_few(&f);
}

Test(coverage, local_blobs_are_each_ranks_own)
{
	struct sk_item items[] = { { .kind = SK_ITEM_BLOB_LOCAL, .spec = {
		.name = "rng", .dtype = SK_U8, .ndim = 1, .shape = { 8 } } } };
	struct few f = images_of(3, items, 1, false);

	expect(&f, 3, 0, "");
	f.im[1].present = false;
	expect(&f, 3, -ENODATA, "missing: rng [0:8] of rank 1");
	free_few(&f);
}

Test(coverage, ranks_must_agree_on_a_name)
{
	const struct sk_item a = tensor("w", NULL, 4, SK_REPLICATE);

	for (int which = 0; which < 3; which++) {
		struct few f = { .n = 0 };
		struct sk_item b = a;

		if (which == 0)
			b.spec.dtype = SK_BF16;
		else if (which == 1)
			b.spec.shape[1] = 5;
		else
			b.spec.ndim = 1;
		add_layout(&f, 0, 2, SK_IMAGE_PRIMARY, &a, 1);
		add_layout(&f, 1, 2, SK_IMAGE_PRIMARY, &b, 1);
		expect(&f, 2, -EINVAL, "ranks 0 and 1 disagree on the dtype "
		       "or shape of \"w\"");
		free_few(&f);
	}
}
