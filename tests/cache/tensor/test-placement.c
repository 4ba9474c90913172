/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "tensor/cuts.h"
#include "tensor/placement.h"
#include "base/util.h"

static struct sk_mesh *mesh_of(int ndim, const int64_t *shape)
{
	struct sk_mesh *m = NULL;

	cr_assert_eq(sk_mesh_new(ndim, shape, NULL, NULL, &m, NULL), 0);
	return m;
}

static void expect(const struct sk_spec *spec, int rank, int64_t size,
		   int64_t offset)
{
	struct sk_box *boxes = NULL;
	int n = 0;

	cr_assert_eq(sk_spec_boxes(spec, rank, &boxes, &n, NULL), 0);
	cr_assert_eq(n, 1, "rank %d holds %d boxes", rank, n);
	cr_assert(boxes->size[0] == size && boxes->offset[0] == offset,
		  "size %lld, rank %d: %lld@%lld, expected %lld@%lld",
		  (long long)spec->shape[0], rank, (long long)boxes->size[0],
		  (long long)boxes->offset[0], (long long)size,
		  (long long)offset);
	free(boxes);
}

Test(placement, chunk_is_torch_chunk)
{
	static const struct {
		int64_t n, k, size[4];
	} cases[] = {
		{ 5, 4, { 2, 2, 1, 0 } }, { 6, 4, { 2, 2, 2, 0 } },
		{ 2, 4, { 1, 1, 0, 0 } }, { 0, 4, { 0, 0, 0, 0 } },
		{ 8, 4, { 2, 2, 2, 2 } },
	};

	for (size_t c = 0; c < SK_ARRAY_SIZE(cases); c++) {
		int64_t at = 0;

		for (int i = 0; i < 4; i++) {
			int64_t size, offset;

			sk_chunk(cases[c].n, cases[c].k, i, &size, &offset);
			cr_assert_eq(size, cases[c].size[i]);
			cr_assert_eq(offset, at);
			at += size;
		}
	}
}

/* Values that PyTorch gives. */
Test(placement, one_dimension_cut_twice)
{
	static const struct {
		int64_t n, split, mesh[2], value[8][2];
	} cases[] = {
		{ 7, 0, { 2, 2 }, { { 2, 0 }, { 2, 2 }, { 2, 4 }, { 1, 6 } } },
		{ 8, 2, { 2, 2 }, { { 2, 0 }, { 2, 4 }, { 2, 2 }, { 2, 6 } } },
		{ 6, 2, { 2, 2 }, { { 2, 0 }, { 2, 3 }, { 1, 2 }, { 1, 5 } } },
		{ 5, 2, { 2, 2 }, { { 2, 0 }, { 1, 3 }, { 1, 2 }, { 1, 4 } } },
		{ 3, 2, { 2, 2 }, { { 1, 0 }, { 1, 2 }, { 1, 1 }, { 0, 3 } } },
		{ 10, 2, { 2, 2 },
		  { { 3, 0 }, { 3, 5 }, { 2, 3 }, { 2, 8 } } },
		{ 30, 4, { 2, 4 },
		  { { 4, 0 }, { 4, 8 }, { 4, 16 }, { 3, 24 },
		    { 4, 4 }, { 4, 12 }, { 4, 20 }, { 3, 27 } } },
		/* Where DTensor's metadata is wrong, its data is this. */
		{ 9, 2, { 4, 2 },
		  { { 2, 0 }, { 1, 5 }, { 2, 2 }, { 1, 6 },
		    { 1, 4 }, { 1, 7 }, { 0, 9 }, { 1, 8 } } },
	};

	for (size_t c = 0; c < SK_ARRAY_SIZE(cases); c++) {
		struct sk_mesh *m = mesh_of(2, cases[c].mesh);
		struct sk_spec spec = {
			.name = "w", .dtype = SK_F32, .ndim = 1,
			.shape = { cases[c].n }, .mesh = m,
			.placements = { cases[c].split ?
				SK_STRIDED_SHARD(0, cases[c].split) :
				SK_SHARD(0), SK_SHARD(0) },
		};

		for (int r = 0; r < cases[c].mesh[0] * cases[c].mesh[1]; r++)
			expect(&spec, r, cases[c].value[r][0],
			       cases[c].value[r][1]);
		sk_mesh_unref(m);
	}
}

Test(placement, replicas_of_a_strided_shard)
{
	static const int64_t value[4][2] = { { 3, 0 }, { 3, 6 }, { 3, 3 },
					     { 3, 9 } };
	struct sk_mesh *m = mesh_of(3, (int64_t[]){ 2, 2, 2 });
	struct sk_spec spec = {
		.name = "w", .dtype = SK_F32, .ndim = 1, .shape = { 12 },
		.mesh = m, .placements = { SK_REPLICATE,
			SK_STRIDED_SHARD(0, 2), SK_SHARD(0) },
	};

	for (int r = 0; r < 8; r++)
		expect(&spec, r, value[r % 4][0], value[r % 4][1]);
	sk_mesh_unref(m);
}

Test(placement, none_is_told_from_one_that_nobody_knows)
{
	struct sk_mesh *m = mesh_of(1, (int64_t[]){ 2 });
	struct sk_spec spec = { .name = "w", .dtype = SK_F32, .ndim = 1,
				.shape = { 4 }, .mesh = m };
	struct sk_err err = { "" };

	cr_assert_eq(sk_spec_normalize(&spec, &err), -EINVAL);
	cr_assert(strstr(err.text, "has no placement"), "%s", err.text);
	for (int32_t kind = -1; kind <= 9; kind += 10) {
		spec.placements[0].kind = kind;
		cr_assert_eq(sk_spec_normalize(&spec, &err), -EINVAL);
		cr_assert(strstr(err.text, kind < 0 ? "of kind -1," :
						      "of kind 9,"),
			  "%s", err.text);
	}
	sk_mesh_unref(m);
}

Test(placement, refuses_partial_by_name)
{
	struct sk_mesh *m = mesh_of(1, (int64_t[]){ 2 });
	struct sk_spec spec = { .name = "grad", .dtype = SK_F32, .ndim = 1,
				.shape = { 4 }, .mesh = m,
				.placements = { SK_PARTIAL } };
	struct sk_err err = { "" };

	cr_assert_eq(sk_spec_normalize(&spec, &err), -EINVAL);
	cr_assert(strstr(err.text, "grad") && strstr(err.text, "Partial"));
	spec.placements[0] = SK_SHARD(-1);
	cr_assert_eq(sk_spec_normalize(&spec, &err), 0);
	cr_assert_eq(spec.placements[0].dim, 0);
	spec.placements[0] = SK_SHARD(1);
	cr_assert_eq(sk_spec_normalize(&spec, &err), -EINVAL);
	sk_mesh_unref(m);
}

/* Each names the tensor. */
Test(placement, refuses_shapes_that_cannot_be)
{
	static const struct {
		int ndim;
		int64_t shape[2];
		int r;
	} wrong[] = {
		{ 2, { 4, -1 }, -EINVAL },
		{ SK_MAX_DIMS + 1, { 0 }, -EINVAL },
		{ -1, { 0 }, -EINVAL },
		{ 2, { INT64_MAX, 2 }, -EOVERFLOW },
		/* So many elements, but not their bits. */
		{ 2, { (int64_t)1 << 31, (int64_t)1 << 31 }, -EOVERFLOW },
	};

	for (size_t i = 0; i < SK_ARRAY_SIZE(wrong); i++) {
		struct sk_spec spec = { .name = "emb", .dtype = SK_F64,
					.ndim = wrong[i].ndim };
		struct sk_err err = { "" };

		memcpy(spec.shape, wrong[i].shape, sizeof(wrong[i].shape));
		cr_assert_eq(sk_spec_normalize(&spec, &err), wrong[i].r,
			     "%zu: %s", i, err.text);
		cr_assert(strstr(err.text, "\"emb\""), "%s", err.text);
	}
}

Test(placement, refuses_a_tensor_without_a_name)
{
	static const char *const names[] = { NULL, "" };

	for (size_t i = 0; i < SK_ARRAY_SIZE(names); i++) {
		struct sk_spec spec = { .name = names[i], .dtype = SK_F32 };
		struct sk_err err = { "" };

		cr_assert_eq(sk_spec_normalize(&spec, &err), -EINVAL);
		cr_assert_str_eq(err.text, "a tensor has no name");
	}
}

/* Cut into so many pieces that no list of them is kept. */
Test(placement, refuses_more_boxes_than_can_be)
{
	struct sk_mesh *m = mesh_of(1, (int64_t[]){ 2 });
	struct sk_spec spec = {
		.name = "dust", .dtype = SK_U8, .ndim = 1,
		.shape = { 4 * (SK_INTERVALS_MAX + 1) }, .mesh = m,
		.placements = { SK_STRIDED_SHARD(0, SK_INTERVALS_MAX + 1) } };
	struct sk_box *boxes = NULL;
	struct sk_err err = { "" };
	int n = 0;

	cr_assert_eq(sk_spec_boxes(&spec, 1, &boxes, &n, &err), -E2BIG, "%s",
		     err.text);
	cr_assert(strstr(err.text, "\"dust\": rank 1"), "%s", err.text);
	cr_assert_null(boxes);
	spec.shape[0] -= 4;
	cr_assert_eq(sk_spec_boxes(&spec, 1, &boxes, &n, &err), 0, "%s",
		     err.text);
	cr_assert_eq(n, SK_INTERVALS_MAX);
	free(boxes);
	sk_mesh_unref(m);
}

Test(placement, rows_and_columns)
{
	static const int64_t value[4][4] = {
		{ 3, 4, 0, 0 }, { 3, 3, 0, 4 }, { 2, 4, 3, 0 }, { 2, 3, 3, 4 },
	};
	struct sk_mesh *m = mesh_of(2, (int64_t[]){ 2, 2 });
	struct sk_spec spec = {
		.name = "w", .dtype = SK_F32, .ndim = 2, .shape = { 5, 7 },
		.mesh = m, .placements = { SK_SHARD(0), SK_SHARD(1) },
	};

	for (int r = 0; r < 4; r++) {
		struct sk_box *b = NULL;
		int n = 0;

		cr_assert_eq(sk_spec_boxes(&spec, r, &b, &n, NULL), 0);
		cr_assert(n == 1 && b->size[0] == value[r][0] &&
			  b->size[1] == value[r][1] &&
			  b->offset[0] == value[r][2] &&
			  b->offset[1] == value[r][3], "rank %d", r);
		free(b);
	}
	sk_mesh_unref(m);
}

/* What FSDP2 over tensor parallelism really holds: chunks of the chunk. */
static void expect_tp_first(int64_t n, int64_t dp, int64_t tp)
{
	struct sk_mesh *m = mesh_of(2, (int64_t[]){ dp, tp });
	struct sk_spec spec = {
		.name = "w", .dtype = SK_F32, .ndim = 1, .shape = { n },
		.mesh = m, .placements = { SK_STRIDED_SHARD(0, tp),
					   SK_SHARD(0) },
	};

	for (int r = 0; r < dp * tp; r++) {
		int64_t size, offset, inner, at;

		sk_chunk(n, tp, r % tp, &size, &offset);
		sk_chunk(size, dp, r / tp, &inner, &at);
		expect(&spec, r, inner, inner ? offset + at : n);
	}
	sk_mesh_unref(m);
}

Test(placement, tensor_parallel_is_cut_first)
{
	static const int64_t meshes[][2] = { { 2, 2 }, { 3, 2 }, { 4, 2 },
					     { 2, 4 }, { 4, 4 }, { 8, 8 } };

	/* With 9 and 17 on (4,2), 7 and 13 on (3,2). */
	for (size_t i = 0; i < SK_ARRAY_SIZE(meshes); i++)
		for (int64_t n = 0; n <= 128; n++)
			expect_tp_first(n, meshes[i][0], meshes[i][1]);
}

/* The sizes where DTensor's metadata and its data part, by value. */
Test(placement, tensor_parallel_where_metadata_is_wrong)
{
	static const struct {
		int64_t n, dp, value[8][2];
	} cases[] = {
		{ 17, 4, { { 3, 0 }, { 2, 9 }, { 3, 3 }, { 2, 11 },
			   { 3, 6 }, { 2, 13 }, { 0, 17 }, { 2, 15 } } },
		{ 7, 3, { { 2, 0 }, { 1, 4 }, { 2, 2 }, { 1, 5 },
			  { 0, 7 }, { 1, 6 } } },
		{ 13, 3, { { 3, 0 }, { 2, 7 }, { 3, 3 }, { 2, 9 },
			   { 1, 6 }, { 2, 11 } } },
	};

	for (size_t c = 0; c < SK_ARRAY_SIZE(cases); c++) {
		struct sk_mesh *m = mesh_of(2, (int64_t[]){ cases[c].dp, 2 });
		struct sk_spec spec = {
			.name = "w", .dtype = SK_F32, .ndim = 1,
			.shape = { cases[c].n }, .mesh = m,
			.placements = { SK_STRIDED_SHARD(0, 2), SK_SHARD(0) },
		};
		int64_t sum = 0;

		for (int r = 0; r < 2 * cases[c].dp; r++) {
			expect(&spec, r, cases[c].value[r][0],
			       cases[c].value[r][1]);
			sum += cases[c].value[r][0];
		}
		cr_assert_eq(sum, cases[c].n);
		sk_mesh_unref(m);
	}
}

Test(placement, scalars_and_outsiders)
{
	struct sk_mesh *m = mesh_of(1, (int64_t[]){ 2 });
	struct sk_spec spec = { .name = "step", .dtype = SK_F32, .mesh = m,
				.placements = { SK_REPLICATE } };
	struct sk_box *boxes = NULL;
	int n = -1;

	for (int r = 0; r < 3; r++) {
		cr_assert_eq(sk_spec_boxes(&spec, r, &boxes, &n, NULL), 0);
		cr_assert_eq(n, r < 2, "rank %d holds %d boxes", r, n);
		if (n)
			cr_assert_eq(sk_box_volume(0, boxes), 1);
		free(boxes);
	}
	spec.placements[0] = SK_SHARD(0);
	cr_assert_eq(sk_spec_normalize(&spec, NULL), -EINVAL);
	sk_mesh_unref(m);
}

/* An empty shard stands behind the tensor, also where cuts are nested. */
Test(placement, empty_shards_have_the_full_size_as_offset)
{
	struct sk_mesh *m = mesh_of(2, (int64_t[]){ 2, 2 });
	struct sk_spec spec = {
		.name = "w", .dtype = SK_F32, .ndim = 1, .shape = { 2 },
		.mesh = m, .placements = { SK_SHARD(0), SK_SHARD(0) },
	};

	expect(&spec, 0, 1, 0);
	expect(&spec, 1, 0, 2);
	expect(&spec, 2, 1, 1);
	expect(&spec, 3, 0, 2);
	spec.shape[0] = 0;
	for (int r = 0; r < 4; r++)
		expect(&spec, r, 0, 0);
	sk_mesh_unref(m);
}
