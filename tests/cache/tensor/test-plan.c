/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans against a reference that knows no arithmetic: it keeps, per rank and
 * tensor dimension, the list of global indices, and cuts lists as
 * torch.chunk does.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "tensor/plan.h"
#include "base/util.h"
#include "support/random.h"

#define SIDE 14			/* largest size of a dimension */
#define DIMS 3
#define CELLS (SIDE * SIDE * SIDE)
#define RANKS 24		/* largest mesh */

/* ---- the reference ---- */

struct list {
	int n, v[SIDE];
};

/* Piece @i of @k of elements [from, from + n) of a list, appended. */
static void chunk_into(const struct list *in, int from, int n, int k, int i,
		       struct list *out)
{
	int c = (n + k - 1) / k;

	for (int e = i * c; e < n && e < i * c + c; e++)
		out->v[out->n++] = in->v[from + e];
}

static struct list cut_list(const struct list *in, int split, int k, int i)
{
	int c = (in->n + split - 1) / split;
	struct list out = { 0 };

	for (int s = 0; s < split; s++) {
		int from = s * c < in->n ? s * c : in->n;
		int to = from + c < in->n ? from + c : in->n;

		chunk_into(in, from, to - from, k, i, &out);
	}
	return out;
}

struct cut {
	int mesh_dim, split;
};

/* Left to right, but that a strided cut whose factor is what the later ones
 * make together comes after them. */
static int cut_order(const struct sk_spec *s, int d, struct cut *cuts)
{
	int n = 0, later = 1;

	for (int m = sk_mesh_ndim(s->mesh) - 1; m >= 0; m--) {
		const struct sk_placement *p = &s->placements[m];
		struct cut cut = { m, 1 };

		if (p->kind == SK_PLACEMENT_REPLICATE || p->dim != d)
			continue;
		if (p->kind == SK_PLACEMENT_STRIDED_SHARD)
			cut.split = (int)p->split_factor;
		if (cut.split > 1 && n && cut.split == later) {
			cut.split = 1;
			cuts[n++] = cut;
		} else {
			memmove(cuts + 1, cuts, (size_t)n * sizeof(*cuts));
			cuts[0] = cut;
			n++;
		}
		later *= (int)sk_mesh_dim(s->mesh, m);
	}
	return n;
}

/* What the rank at these coordinates has of dimension @d. */
static struct list owned(const struct sk_spec *s, int d, const int64_t *at)
{
	struct list all = { .n = (int)s->shape[d] };
	struct cut cuts[SK_MAX_DIMS];
	int n = cut_order(s, d, cuts);

	for (int i = 0; i < all.n; i++)
		all.v[i] = i;
	for (int c = 0; c < n; c++) {
		int m = cuts[c].mesh_dim;

		all = cut_list(&all, cuts[c].split,
			       (int)sk_mesh_dim(s->mesh, m), (int)at[m]);
	}
	return all;
}

/* ---- a test: a spec, and who has which element of it ---- */

struct test {
	struct sk_spec spec;
	int world;
	struct sk_box target;
	bool has[RANKS + 8][CELLS];	/* by rank */
	int taken[CELLS];
};

static int cell_of(const struct sk_spec *s, const int64_t *at)
{
	int cell = 0;

	for (int d = 0; d < s->ndim; d++)
		cell = cell * SIDE + (int)at[d];
	return cell;
}

/* The next index of a box; false behind the last. */
static bool step_in(int ndim, const struct sk_box *b, int64_t *at)
{
	for (int d = ndim - 1; d >= 0; d--) {
		if (++at[d] < b->offset[d] + b->size[d])
			return true;
		at[d] = b->offset[d];
	}
	return false;
}

static void fill_owned(struct test *t, int rank)
{
	const struct sk_spec *s = &t->spec;
	struct sk_box whole = sk_box_whole(s->ndim, s->shape);
	int64_t at[SK_MAX_DIMS] = { 0 }, coords[SK_MAX_DIMS];
	bool in[DIMS][SIDE] = { { 0 } };

	memset(t->has[rank], s->mesh ? 0 : 1, sizeof(t->has[rank]));
	if (!s->mesh || sk_mesh_coords(s->mesh, rank, coords) < 0 ||
	    sk_box_empty(s->ndim, &whole))
		return;
	for (int d = 0; d < s->ndim; d++) {
		struct list l = owned(s, d, coords);

		for (int i = 0; i < l.n; i++)
			in[d][l.v[i]] = true;
	}
	do {
		bool all = true;

		for (int d = 0; d < s->ndim; d++)
			all &= in[d][at[d]];
		t->has[rank][cell_of(s, at)] = all;
	} while (step_in(s->ndim, &whole, at));
}

/* ---- random ones ---- */

static uint64_t seed = 20;

static int pick(int n)
{
	return (int)draw(&seed, (uint64_t)n);
}

/* Some ranks of the world, in any order. */
static const struct sk_mesh *random_mesh(int *ret_world)
{
	int64_t shape[3] = { 1 + pick(3), 1 + pick(4), 1 + pick(2) };
	int ndim = 1 + pick(3), n = 1;
	struct sk_mesh *m = NULL;
	int32_t ranks[RANKS + 8];

	for (int d = 0; d < ndim; d++)
		n *= (int)shape[d];
	*ret_world = n + pick(8);
	for (int i = 0; i < *ret_world; i++)
		ranks[i] = i;
	for (int i = *ret_world - 1; i > 0; i--) {
		int k = pick(i + 1);
		int32_t swap = ranks[i];

		ranks[i] = ranks[k];
		ranks[k] = swap;
	}
	cr_assert_eq(sk_mesh_new(ndim, shape, ranks, NULL, &m, NULL), 0);
	return m;
}

static struct sk_placement random_placement(int ndim)
{
	int kind = ndim ? pick(4) : 0;

	if (kind == 0)
		return SK_REPLICATE;
	if (kind == 1)
		return SK_STRIDED_SHARD(pick(ndim), 1 + pick(4));
	return SK_SHARD(pick(ndim));
}

/* Nested left to right, tensor parallelism first, a literal strided cut. */
enum pattern { NESTED, TP_FIRST, LITERAL };

static void place(struct sk_spec *s, enum pattern pattern)
{
	int ndim = sk_mesh_ndim(s->mesh), d = pick(s->ndim);
	int64_t later = 1;

	for (int m = ndim - 1; m >= 0; m--) {
		s->placements[m] = SK_SHARD(d);
		if (pattern == TP_FIRST && m < ndim - 1)
			s->placements[m] = SK_STRIDED_SHARD(d, later);
		if (pattern == LITERAL && m == ndim - 1)
			s->placements[m] = SK_STRIDED_SHARD(d, 2 + pick(3));
		later *= sk_mesh_dim(s->mesh, m);
	}
}

static void random_test(struct test *t, int round)
{
	struct sk_spec *s = &t->spec;

	*s = (struct sk_spec){ .name = "w", .dtype = SK_F32,
			       .ndim = pick(DIMS + 1) };
	for (int d = 0; d < s->ndim; d++)
		s->shape[d] = pick(SIDE + 1);
	t->world = 1 + pick(RANKS);
	if (round % 16)
		s->mesh = random_mesh(&t->world);
	for (int m = 0; s->mesh && m < sk_mesh_ndim(s->mesh); m++)
		s->placements[m] = random_placement(s->ndim);
	if (s->mesh && s->ndim && round % 4)
		place(s, (enum pattern)(round % 4 - 1));
	cr_assert_eq(sk_spec_normalize(s, NULL), 0);
	for (int d = 0; d < s->ndim; d++) {
		int n = (int)s->shape[d];

		t->target.offset[d] = pick(n + 1);
		t->target.size[d] = pick(n + 1 - (int)t->target.offset[d]);
		if (pick(2)) {
			t->target.offset[d] = 0;
			t->target.size[d] = n;
		}
	}
	memset(t->taken, 0, sizeof(t->taken));
	for (int r = 0; r < t->world; r++)
		fill_owned(t, r);
}

/* ---- comparing ---- */

static bool rank_has(const struct test *t, int rank, const struct sk_box *b)
{
	int64_t at[SK_MAX_DIMS];

	memcpy(at, b->offset, sizeof(at));
	do {
		if (!t->has[rank][cell_of(&t->spec, at)])
			return false;
	} while (step_in(t->spec.ndim, b, at));
	return true;
}

/* Named are all ranks that have the source box, each once, and no other. */
static void check_holders(const struct test *t, const struct sk_piece *p,
			  const struct sk_holders *h)
{
	bool named[RANKS + 8] = { 0 };

	for (int64_t i = 0; i < sk_holders_count(h); i++) {
		int32_t rank = sk_holders_rank(h, i);

		cr_assert(rank >= 0 && rank < t->world && !named[rank]);
		named[rank] = true;
		cr_assert_eq(sk_holders_find(h, rank), i);
	}
	cr_assert_eq(sk_holders_find(h, -1), -1);
	cr_assert_eq(sk_holders_find(h, t->world), -1);
	for (int r = 0; r < t->world; r++)
		if (!named[r])
			cr_assert_eq(sk_holders_find(h, r), -1);
	for (int r = 0; r < t->world; r++)
		cr_assert_eq(rank_has(t, r, &p->source), named[r],
			     "rank %d", r);
}

/* The source is a box that the library says the holder has. */
static void check_box(const struct test *t, const struct sk_piece *p,
		      int32_t rank)
{
	struct sk_box *boxes = NULL;
	bool found = false;
	int n = 0;

	cr_assert_eq(sk_spec_boxes(&t->spec, rank, &boxes, &n, NULL), 0);
	for (int b = 0; b < n; b++)
		found |= sk_box_equal(t->spec.ndim, &boxes[b], &p->source);
	cr_assert(found);
	free(boxes);
}

static int take(const struct sk_piece *p, const struct sk_holders *h,
		void *ctx)
{
	int64_t at[SK_MAX_DIMS];
	struct test *t = ctx;
	struct sk_box common;

	cr_assert_not(sk_box_empty(t->spec.ndim, &p->box));
	cr_assert(sk_box_intersect(t->spec.ndim, &p->box, &p->source,
				   &common) &&
		  sk_box_equal(t->spec.ndim, &p->box, &common));
	check_holders(t, p, h);
	check_box(t, p, sk_holders_rank(h, 0));
	memcpy(at, p->box.offset, sizeof(at));
	do
		t->taken[cell_of(&t->spec, at)]++;
	while (step_in(t->spec.ndim, &p->box, at));
	return 0;
}

static void check_taken(const struct test *t, int round)
{
	int64_t wanted = 0, taken = 0;
	int n = t->spec.ndim;

	if (!sk_box_empty(n, &t->target)) {
		int64_t at[SK_MAX_DIMS];

		memcpy(at, t->target.offset, sizeof(at));
		do
			cr_assert_eq(t->taken[cell_of(&t->spec, at)], 1,
				     "round %d", round);
		while (step_in(n, &t->target, at));
		wanted = sk_box_volume(n, &t->target);
	}
	for (int i = 0; i < CELLS; i++)
		taken += t->taken[i];
	cr_assert_eq(taken, wanted, "round %d: %lld of %lld", round,
		     (long long)taken, (long long)wanted);
}

Test(plan, is_what_marking_every_element_says, .timeout = 300)
{
	static struct test t;

	for (int round = 0; round < 2000; round++) {
		random_test(&t, round);
		cr_assert_eq(sk_plan_box(&t.spec, t.world, &t.target, take,
					 &t), 0);
		check_taken(&t, round);
		sk_mesh_unref((struct sk_mesh *)t.spec.mesh);
	}
}

/* The boxes of a rank are its elements, each in one box. */
static void check_boxes(const struct test *t, int rank)
{
	int have[CELLS] = { 0 }, n = 0, ndim = t->spec.ndim;
	struct sk_box *boxes = NULL;

	cr_assert_eq(sk_spec_boxes(&t->spec, rank, &boxes, &n, NULL), 0);
	for (int b = 0; b < n; b++) {
		int64_t at[SK_MAX_DIMS];

		if (sk_box_empty(ndim, &boxes[b])) {
			cr_assert_eq(n, 1);
			break;
		}
		memcpy(at, boxes[b].offset, sizeof(at));
		do
			have[cell_of(&t->spec, at)]++;
		while (step_in(ndim, &boxes[b], at));
	}
	free(boxes);
	for (int i = 0; i < CELLS && t->spec.mesh; i++)
		cr_assert_eq(have[i], t->has[rank][i], "rank %d", rank);
}

Test(plan, boxes_are_what_cutting_lists_says, .timeout = 300)
{
	static struct test t;

	for (int round = 0; round < 1000; round++) {
		random_test(&t, round);
		for (int r = 0; r < t.world; r++)
			check_boxes(&t, r);
		sk_mesh_unref((struct sk_mesh *)t.spec.mesh);
	}
}

/* ---- by hand ---- */

static struct sk_mesh *line(int64_t n, const int32_t *ranks)
{
	struct sk_mesh *m = NULL;

	cr_assert_eq(sk_mesh_new(1, &n, ranks, NULL, &m, NULL), 0);
	return m;
}

static int note(const struct sk_piece *p, const struct sk_holders *h,
		void *ctx)
{
	char **at = ctx, box[64], source[64];

	*at += sprintf(*at, "%s of %s by %d, ",
		       sk_box_format(1, &p->box, box, sizeof(box)),
		       sk_box_format(1, &p->source, source, sizeof(source)),
		       sk_holders_rank(h, 0));
	return 0;
}

/* A literal strided cut alone: two boxes per rank. */
Test(plan, literal_strided_shard_is_several_boxes)
{
	_cleanup_mesh_ struct sk_mesh *m = line(2, (int32_t[]){ 5, 3 });
	struct sk_spec s = { .name = "w", .dtype = SK_F32, .ndim = 1,
			     .shape = { 10 }, .mesh = m,
			     .placements = { SK_STRIDED_SHARD(0, 2) } };
	struct sk_box target = { { 2 }, { 8 } };
	char text[400], *at = text;

	cr_assert_eq(sk_plan_box(&s, 6, &target, note, &at), 0);
	/* Two halves of 5, each 3 and 2: rank 5 has 0-2 and 5-7. */
	cr_assert(strstr(text, "[2:3] of [0:3] by 5"), "%s", text);
	cr_assert(strstr(text, "[5:8] of [5:8] by 5"), "%s", text);
	cr_assert(strstr(text, "[3:5] of [3:5] by 3"), "%s", text);
	cr_assert(strstr(text, "[8:10] of [8:10] by 3"), "%s", text);
}

static int refuse_second(const struct sk_piece *p, const struct sk_holders *h,
			 void *ctx)
{
	int *calls = ctx;

	(void)p;
	(void)h;
	return ++*calls == 2 ? -ECANCELED : 0;
}

Test(plan, ends_with_what_the_callback_says)
{
	_cleanup_mesh_ struct sk_mesh *m = line(8, NULL);
	struct sk_spec s = { .name = "w", .dtype = SK_F32, .ndim = 1,
			     .shape = { 16 }, .mesh = m,
			     .placements = { SK_SHARD(0) } };
	struct sk_box target = { { 0 }, { 16 } };
	int calls = 0;

	cr_assert_eq(sk_plan_box(&s, 8, &target, refuse_second, &calls),
		     -ECANCELED);
	cr_assert_eq(calls, 2);
}

static int count(const struct sk_piece *p, const struct sk_holders *h,
		 void *ctx)
{
	int *calls = ctx;

	(void)p;
	cr_assert_eq(sk_holders_count(h), 1);
	cr_assert_eq(sk_holders_rank(h, 0), 3 * 4096 + 7);
	++*calls;
	return 0;
}

/* Of four million ranks, each with a square of 2^20, one holds the target. */
Test(plan, large_worlds_have_few_pieces)
{
	const int64_t one = (int64_t)1 << 20;
	struct sk_box target = { { 3 * one + 5, 7 * one }, { 9, 11 } };
	struct sk_mesh *m = NULL;
	int calls = 0;
	struct sk_spec s = { .name = "w", .dtype = SK_U8, .ndim = 2,
			     .shape = { 1024 * one, 4096 * one },
			     .placements = { SK_SHARD(0), SK_SHARD(1) } };

	cr_assert_eq(sk_mesh_new(2, (int64_t[]){ 1024, 4096 }, NULL, NULL, &m,
				 NULL), 0);
	s.mesh = m;
	cr_assert_eq(sk_plan_box(&s, 1 << 22, &target, count, &calls), 0);
	cr_assert_eq(calls, 1);
	sk_mesh_unref(m);
}
