/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Meshes, placements and plans: the boxes of all ranks of a small tensor are
 * counted cell by cell, and what a plan finds of a target is held against
 * them.
 */
#include "fuzz/fuzz.h"

#include "tensor/plan.h"

#define SIDE 9			/* largest size of a dimension */
#define DIMS 3
#define CELLS (SIDE * SIDE * SIDE)
#define RANKS 24

struct world {
	struct sk_mesh *mesh;
	struct sk_spec spec;
	int32_t ranks;			/* of the job */
	uint8_t has[RANKS + 4][CELLS];
	uint8_t taken[CELLS];
};

static int cell_of(const struct sk_spec *s, const int64_t *at)
{
	int cell = 0;

	for (int d = 0; d < s->ndim; d++)
		cell = cell * SIDE + (int)at[d];
	return cell;
}

/* Adds 1 to each cell of the box. */
static void count_box(const struct sk_spec *s, const struct sk_box *b,
		      uint8_t *cells)
{
	int64_t at[SK_MAX_DIMS];
	int d;

	if (sk_box_empty(s->ndim, b))
		return;
	memcpy(at, b->offset, sizeof(at));
	do {
		cells[cell_of(s, at)]++;
		for (d = s->ndim - 1; d >= 0; d--) {
			if (++at[d] < b->offset[d] + b->size[d])
				break;
			at[d] = b->offset[d];
		}
	} while (d >= 0);
}

static struct sk_mesh *take_mesh(struct feed *f, int32_t *ret_ranks)
{
	int64_t shape[SK_MAX_DIMS], count = 1;
	int ndim = 1 + (int)feed_below(f, 3);
	struct sk_mesh *mesh = NULL;
	struct sk_err err = { "" };
	int32_t ranks[RANKS];
	bool listed = feed_byte(f) & 1;
	int r;

	for (int d = 0; d < ndim; d++) {
		shape[d] = feed_below(f, 6);
		count *= shape[d];
	}
	if (count > RANKS)
		return NULL;
	for (int i = 0; i < RANKS; i++)
		ranks[i] = listed ? (int32_t)feed_below(f, RANKS + 2) - 1 : i;
	r = sk_mesh_new(ndim, shape, listed ? ranks : NULL, NULL, &mesh, &err);
	FUZZ_CHECK(r == 0 || ((r == -EINVAL || r == -EOVERFLOW) &&
			      err.text[0]));
	*ret_ranks = RANKS + 2;
	return r == 0 ? mesh : NULL;
}

static bool take_spec(struct feed *f, struct world *w)
{
	struct sk_spec *s = &w->spec;
	struct sk_err err = { "" };
	int r;

	*s = (struct sk_spec){ .name = "w", .dtype = SK_F32,
			       .ndim = (int)feed_below(f, DIMS + 1) };
	for (int d = 0; d < s->ndim; d++)
		s->shape[d] = feed_below(f, SIDE + 1);
	s->mesh = w->mesh;
	for (int m = 0; w->mesh && m < sk_mesh_ndim(w->mesh); m++)
		s->placements[m] = (struct sk_placement){
			.kind = (enum sk_placement_kind)feed_below(f, 4),
			.dim = (int)feed_below(f, 5) - 2,
			.split_factor = feed_below(f, 6) };
	r = sk_spec_normalize(s, &err);
	FUZZ_CHECK(r == 0 || err.text[0]);
	return r == 0;
}

/* What each rank has; every element is somewhere. */
static void count_ranks(struct world *w)
{
	struct sk_box whole = sk_box_whole(w->spec.ndim, w->spec.shape);
	uint8_t all[CELLS] = { 0 }, in[CELLS] = { 0 };
	struct sk_err err = { "" };

	count_box(&w->spec, &whole, in);
	for (int32_t rank = 0; rank < w->ranks; rank++) {
		struct sk_box *boxes = NULL;
		int n = 0;

		FUZZ_CHECK(!sk_spec_boxes(&w->spec, rank, &boxes, &n, &err));
		for (int i = 0; i < n; i++) {
			FUZZ_CHECK(!sk_box_check(w->spec.ndim, w->spec.shape,
						 &boxes[i], &err));
			count_box(&w->spec, &boxes[i], w->has[rank]);
		}
		free(boxes);
		for (int c = 0; c < CELLS; c++) {
			FUZZ_CHECK(w->has[rank][c] <= 1);
			all[c] |= w->has[rank][c];
		}
	}
	FUZZ_CHECK(memcmp(all, in, sizeof(all)) == 0);
}

/* Who is said to hold a piece has all of it, and nobody else has. */
static int check_piece(const struct sk_piece *piece,
		       const struct sk_holders *holders, void *ctx)
{
	struct world *w = ctx;
	uint8_t cells[CELLS] = { 0 };
	int64_t n = sk_holders_count(holders), some = 0;

	count_box(&w->spec, &piece->box, cells);
	count_box(&w->spec, &piece->box, w->taken);
	for (int32_t rank = 0; rank < w->ranks; rank++) {
		int64_t i = sk_holders_find(holders, rank);
		bool has = true;

		for (int c = 0; c < CELLS; c++)
			has = has && (!cells[c] || w->has[rank][c]);
		FUZZ_CHECK(has == (i >= 0));
		FUZZ_CHECK(i < 0 || sk_holders_rank(holders, i) == rank);
		some += has;
	}
	FUZZ_CHECK(some == n);
	return 0;
}

static void try_target(struct feed *f, struct world *w)
{
	uint8_t want[CELLS] = { 0 };
	struct sk_box target = { 0 };

	for (int d = 0; d < w->spec.ndim; d++) {
		int64_t n = w->spec.shape[d];

		target.offset[d] = n ? feed_below(f, (unsigned)n + 1) : 0;
		target.size[d] = feed_below(f, (unsigned)(n -
						target.offset[d]) + 1);
	}
	memset(w->taken, 0, sizeof(w->taken));
	FUZZ_CHECK(sk_plan_box(&w->spec, w->ranks, &target, check_piece,
			       w) == 0);
	count_box(&w->spec, &target, want);
	FUZZ_CHECK(memcmp(want, w->taken, sizeof(want)) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct feed f = { data, size };
	struct world *w = calloc(1, sizeof(*w));

	FUZZ_CHECK(w);
	w->ranks = RANKS + 2;
	w->mesh = take_mesh(&f, &w->ranks);
	if (take_spec(&f, w)) {
		count_ranks(w);
		for (int i = 0; i < 3; i++)
			try_target(&f, w);
	}
	sk_mesh_unref(w->mesh);
	free(w);
	return 0;
}
