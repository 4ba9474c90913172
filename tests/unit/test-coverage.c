/* SPDX-License-Identifier: Apache-2.0 */
/* Coverage against counting every element. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "coverage.h"
#include "layout.h"
#include "util.h"

#define WORLD 6
#define TENSORS 3

static uint64_t seed = 77;

static int pick(int n)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (int)((seed >> 33) % (unsigned)n);
}

struct world {
	struct sk_spec specs[TENSORS];
	struct sk_mesh *meshes[TENSORS];
	struct sk_layout *layouts[2][WORLD];	/* NULL: no replica */
	int world;
};

static struct sk_placement random_placement(int ndim)
{
	switch (pick(4)) {
	case 0: return SK_REPLICATE;
	case 1: return SK_STRIDED_SHARD(pick(ndim), 1 + pick(3));
	default: return SK_SHARD(pick(ndim));
	}
}

static void random_spec(struct world *w, int i)
{
	static const char *const names[] = { "wq", "wk", "bias" };
	struct sk_spec *s = &w->specs[i];
	int32_t ranks[WORLD];
	int n = 1 + pick(w->world), first = pick(w->world);

	*s = (struct sk_spec){ .name = names[i], .dtype = SK_F32,
			       .ndim = 1 + pick(2) };
	for (int d = 0; d < s->ndim; d++)
		s->shape[d] = pick(12);
	w->meshes[i] = NULL;
	if (!pick(6))
		return;
	for (int k = 0; k < n; k++)
		ranks[k] = (first + k) % w->world;
	cr_assert_eq(sk_mesh_new(2, (int64_t[]){ n % 2 ? 1 : 2,
						 n % 2 ? n : n / 2 },
				 ranks, NULL, &w->meshes[i], NULL), 0);
	s->mesh = w->meshes[i];
	s->placements[0] = random_placement(s->ndim);
	s->placements[1] = random_placement(s->ndim);
}

static struct sk_layout *layout_of(const struct world *w, int rank, int kind)
{
	struct sk_item items[TENSORS];
	struct sk_layout *l = NULL;
	struct sk_err err = { "" };

	for (int i = 0; i < TENSORS; i++) {
		items[i] = (struct sk_item){ .spec = w->specs[i] };
		cr_assert_eq(sk_spec_boxes(&w->specs[i], rank, &items[i].boxes,
					   &items[i].n_boxes, &err), 0);
	}
	cr_assert_eq(sk_layout_new("job", rank, w->world,
				   (enum sk_image_kind)kind, items, TENSORS,
				   &l, &err), 0, "%s", err.text);
	for (int i = 0; i < TENSORS; i++)
		free(items[i].boxes);
	return l;
}

static void world_open(struct world *w)
{
	w->world = 1 + pick(WORLD);
	for (int i = 0; i < TENSORS; i++)
		random_spec(w, i);
	for (int k = 0; k < 2; k++)
		for (int r = 0; r < w->world; r++)
			w->layouts[k][r] = layout_of(w, r, k);
}

static void world_close(struct world *w)
{
	for (int k = 0; k < 2; k++)
		for (int r = 0; r < w->world; r++)
			sk_layout_free(w->layouts[k][r]);
	for (int i = 0; i < TENSORS; i++)
		sk_mesh_unref(w->meshes[i]);
}

/* Whether every element of the tensor lies in a present image. */
static bool naive(const struct world *w, int tensor,
		  bool present[2][WORLD])
{
	const struct sk_spec *s = &w->specs[tensor];
	int64_t n0 = s->shape[0], n1 = s->ndim > 1 ? s->shape[1] : 1;
	bool seen[12][12] = { { false } };
	bool all = true;

	for (int k = 0; k < 2; k++)
	for (int r = 0; r < w->world; r++) {
		const struct sk_layout *l = w->layouts[k][r];

		if (!present[k][r])
			continue;
		for (uint32_t e = 0; e < l->n_entries; e++) {
			struct sk_box b = l->entries[e].box;

			if ((int)l->entries[e].item != tensor)
				continue;
			if (s->ndim == 1)
				b.size[1] = 1;
			for (int64_t i = 0; i < b.size[0]; i++)
				for (int64_t j = 0; j < b.size[1]; j++)
					seen[b.offset[0] + i]
					    [b.offset[1] + j] = true;
		}
	}
	for (int64_t i = 0; i < n0; i++)
		for (int64_t j = 0; j < n1; j++)
			all &= seen[i][j];
	return all;
}

Test(coverage, is_every_element)
{
	int complete = 0, incomplete = 0;

	for (int round = 0; round < 2000; round++) {
		struct sk_coverage_image images[2 * WORLD];
		bool present[2][WORLD] = { { false } };
		struct sk_err err = { "" };
		bool want = true;
		struct world w;
		size_t n = 0;
		int r;

		world_open(&w);
		for (int i = 0; i < w.world; i++)
			for (int k = 0; k < 2; k++) {
				present[k][i] = pick(8) != 0;
				images[n++] = (struct sk_coverage_image){
					w.layouts[k][i], present[k][i] };
			}
		for (int t = 0; t < TENSORS; t++)
			want &= naive(&w, t, present);
		r = sk_coverage_check(images, n, w.world, &err);
		cr_assert_eq(r, want ? 0 : -ENODATA, "round %d: %d, %s", round,
			     r, err.text);
		cr_assert(want || err.text[0]);
		complete += want;
		incomplete += !want;
		world_close(&w);
	}
	cr_assert(complete > 200 && incomplete > 200, "%d and %d", complete,
		  incomplete);
}

static struct sk_layout *rows(int rank, int world, const struct sk_mesh *mesh,
			      enum sk_dtype dtype)
{
	struct sk_spec spec = { .name = "wq", .dtype = dtype, .ndim = 2,
				.shape = { 8, 5 }, .mesh = mesh,
				.placements = { SK_SHARD(0) } };
	struct sk_item item = { .spec = spec };
	struct sk_layout *l = NULL;

	cr_assert_eq(sk_spec_boxes(&spec, rank, &item.boxes, &item.n_boxes,
				   NULL), 0);
	cr_assert_eq(sk_layout_new("job", rank, world, SK_IMAGE_PRIMARY,
				   &item, 1, &l, NULL), 0);
	free(item.boxes);
	return l;
}

Test(coverage, names_what_is_missing)
{
	struct sk_coverage_image images[4];
	struct sk_err err = { "" };
	struct sk_mesh *m = NULL;

	cr_assert_eq(sk_mesh_new(1, (int64_t[]){ 4 }, NULL, NULL, &m, NULL),
		     0);
	for (int r = 0; r < 4; r++)
		images[r] = (struct sk_coverage_image){
			rows(r, 4, m, SK_F32), r != 2 };
	cr_assert_eq(sk_coverage_check(images, 4, 4, &err), -ENODATA);
	cr_assert(strstr(err.text, "wq") && strstr(err.text, "[4:6, 0:5]") &&
		  strstr(err.text, "rank 2"), "%s", err.text);
	/* A rank that nobody has heard of: what it held is not known. */
	cr_assert_eq(sk_coverage_check(images, 2, 4, &err), -ENODATA);
	images[2].present = true;
	cr_assert_eq(sk_coverage_check(images, 4, 4, &err), 0);
	cr_assert_eq(sk_coverage_check(images, 4, 5, &err), -ENODATA);
	cr_assert(strstr(err.text, "4"), "%s", err.text);
	for (int r = 0; r < 4; r++)
		sk_layout_free((struct sk_layout *)images[r].layout);
	sk_mesh_unref(m);
}

Test(coverage, one_name_one_tensor)
{
	struct sk_coverage_image images[2];
	struct sk_err err = { "" };
	struct sk_mesh *m = NULL;

	cr_assert_eq(sk_mesh_new(1, (int64_t[]){ 2 }, NULL, NULL, &m, NULL),
		     0);
	images[0] = (struct sk_coverage_image){ rows(0, 2, m, SK_F32), true };
	images[1] = (struct sk_coverage_image){ rows(1, 2, m, SK_BF16), true };
	cr_assert_eq(sk_coverage_check(images, 2, 2, &err), -EINVAL);
	cr_assert(strstr(err.text, "wq"), "%s", err.text);
	for (int r = 0; r < 2; r++)
		sk_layout_free((struct sk_layout *)images[r].layout);
	sk_mesh_unref(m);
}
