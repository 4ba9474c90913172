/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <string.h>

#include "tensor/mesh.h"
#include "tensor/name.h"
#include "base/util.h"

static const char *const dp_tp[] = { "dp", "tp" };
static const char *const dp_cp_tp[] = { "dp", "cp", "tp" };

static struct sk_mesh *make(int ndim, const int64_t *shape,
			    const int32_t *ranks, const char *const *names)
{
	struct sk_mesh *m = NULL;
	struct sk_err err = { "" };

	cr_assert_eq(sk_mesh_new(ndim, shape, ranks, names, &m, &err), 0,
		     "%s", err.text);
	return m;
}

Test(mesh, any_ranks_in_any_order)
{
	const int32_t ranks[] = { 7, 1, 4, 100, 3, 0 };
	struct sk_mesh *m = make(2, (int64_t[]){ 3, 2 }, ranks, NULL);
	int64_t at[2];

	cr_assert_eq(sk_mesh_ndim(m), 2);
	cr_assert_eq(sk_mesh_dim(m, 0), 3);
	cr_assert_eq(sk_mesh_count(m), 6);
	cr_assert(!sk_mesh_is_dense(m));
	cr_assert_null(sk_mesh_name(m, 0));
	for (int i = 0; i < 6; i++) {
		cr_assert_eq(sk_mesh_rank_at(m, i), ranks[i]);
		cr_assert_eq(sk_mesh_coords(m, ranks[i], at), 0);
		cr_assert(at[0] == i / 2 && at[1] == i % 2);
	}
	cr_assert_eq(sk_mesh_coords(m, 2, at), -ENOENT);
	cr_assert_eq(sk_mesh_coords(m, -1, at), -ENOENT);
	sk_mesh_unref(m);
}

Test(mesh, dense_from_zero)
{
	struct sk_mesh *m = make(3, (int64_t[]){ 2, 3, 4 }, NULL, dp_cp_tp);
	int64_t at[3];

	cr_assert(sk_mesh_is_dense(m));
	cr_assert_eq(sk_mesh_coords(m, 17, at), 0);
	cr_assert(at[0] == 1 && at[1] == 1 && at[2] == 1);
	cr_assert_eq(sk_mesh_coords(m, 24, at), -ENOENT);
	cr_assert_eq(sk_mesh_find_dim(m, "cp"), 1);
	cr_assert_eq(sk_mesh_find_dim(m, "pp"), -ENOENT);
	sk_mesh_unref(m);
}

static void expect_slice(const struct sk_mesh *m, int32_t rank,
			 const char *const *names, int n, int n_ranks,
			 const int32_t *ranks)
{
	struct sk_mesh *child = NULL;
	struct sk_err err = { "" };

	cr_assert_eq(sk_mesh_slice(m, rank, names, n, &child, &err), 0, "%s",
		     err.text);
	cr_assert_eq(sk_mesh_ndim(child), n);
	cr_assert_eq(sk_mesh_count(child), n_ranks);
	for (int i = 0; i < n_ranks; i++)
		cr_assert_eq(sk_mesh_rank_at(child, i), ranks[i]);
	for (int d = 0; d < n; d++)
		cr_assert_str_eq(sk_mesh_name(child, d), names[d]);
	sk_mesh_unref(child);
}

Test(mesh, has_as_many_dimensions_as_a_tensor)
{
	const int64_t shape[SK_MAX_DIMS] = { 2, 1, 2, 1, 2, 1, 1, 3 };
	struct sk_mesh *m = make(SK_MAX_DIMS, shape, NULL, NULL);
	int64_t at[SK_MAX_DIMS];

	cr_assert_eq(sk_mesh_ndim(m), SK_MAX_DIMS);
	cr_assert_eq(sk_mesh_coords(m, 23, at), 0);
	for (int d = 0; d < SK_MAX_DIMS; d++)
		cr_assert_eq(at[d], shape[d] - 1);
	sk_mesh_unref(m);
}

Test(mesh, slices_by_name)
{
	struct sk_mesh *m = make(2, (int64_t[]){ 2, 4 }, NULL, dp_tp);

	for (int32_t l = 0; l < 4; l++) {
		expect_slice(m, l, dp_tp, 1, 2, (int32_t[]){ l, l + 4 });
		expect_slice(m, l + 4, dp_tp, 1, 2, (int32_t[]){ l, l + 4 });
	}
	expect_slice(m, 6, dp_tp + 1, 1, 4, (int32_t[]){ 4, 5, 6, 7 });
	expect_slice(m, 6, dp_tp, 2, 8,
		     (int32_t[]){ 0, 1, 2, 3, 4, 5, 6, 7 });
	sk_mesh_unref(m);
	m = make(3, (int64_t[]){ 2, 2, 2 }, NULL, dp_cp_tp);
	expect_slice(m, 5, (const char *const[]){ "dp", "tp" }, 2, 4,
		     (int32_t[]){ 0, 1, 4, 5 });
	sk_mesh_unref(m);
}

Test(mesh, refuses_slices)
{
	static const char *const reversed[] = { "tp", "dp" };
	static const char *const unknown[] = { "pp" };
	struct sk_mesh *m = make(2, (int64_t[]){ 2, 4 }, NULL, dp_tp);
	struct sk_mesh *plain = make(2, (int64_t[]){ 2, 4 }, NULL, NULL);
	struct sk_mesh *child = NULL;
	struct sk_err err = { "" };

	cr_assert_eq(sk_mesh_slice(m, 0, reversed, 2, &child, &err), -EINVAL);
	cr_assert(strstr(err.text, "order"), "%s", err.text);
	cr_assert_eq(sk_mesh_slice(m, 0, unknown, 1, &child, &err), -EINVAL);
	cr_assert(strstr(err.text, "pp"), "%s", err.text);
	cr_assert_eq(sk_mesh_slice(plain, 0, dp_tp, 1, &child, &err),
		     -EINVAL);
	cr_assert_eq(sk_mesh_slice(m, 8, dp_tp, 1, &child, &err), -ENOENT);
	cr_assert_null(child, "outputs are set on success only");
	sk_mesh_unref(m);
	sk_mesh_unref(plain);
}

Test(mesh, equal_means_shape_ranks_order_and_names)
{
	static const int32_t ranks[] = { 0, 1, 3, 2 };
	static const char *const other[] = { "dp", "cp" };
	const int64_t shape[] = { 2, 2 };
	struct sk_mesh *all[] = {
		make(2, shape, NULL, NULL),
		make(2, shape, ranks, NULL),
		make(2, shape, NULL, dp_tp),
		make(2, shape, NULL, other),
		make(2, (int64_t[]){ 4, 1 }, NULL, NULL),
		make(1, (int64_t[]){ 4 }, NULL, NULL),
	};
	struct sk_mesh *same = make(2, shape, (int32_t[]){ 0, 1, 2, 3 }, NULL);

	for (size_t i = 0; i < SK_ARRAY_SIZE(all); i++)
		for (size_t j = 0; j < SK_ARRAY_SIZE(all); j++)
			cr_assert_eq(sk_mesh_equal(all[i], all[j]), i == j,
				     "%zu and %zu", i, j);
	cr_assert(sk_mesh_equal(all[0], same), "written out or not");
	for (size_t i = 0; i < SK_ARRAY_SIZE(all); i++)
		sk_mesh_unref(all[i]);
	sk_mesh_unref(same);
}

/* A child made by hand is the child by name, but for the root it came from. */
Test(mesh, a_child_has_no_parent)
{
	struct sk_mesh *m = make(2, (int64_t[]){ 2, 4 }, NULL, dp_tp);
	struct sk_mesh *hand = make(1, (int64_t[]){ 2 },
				    (int32_t[]){ 1, 5 }, dp_tp);
	struct sk_mesh *child = NULL;

	cr_assert_eq(sk_mesh_slice(m, 5, dp_tp, 1, &child, NULL), 0);
	sk_mesh_unref(m);
	cr_assert(sk_mesh_equal(child, hand));
	sk_mesh_unref(child);
	sk_mesh_unref(hand);
}

Test(mesh, refuses_nonsense)
{
	static const char *const twice[] = { "dp", "dp" };
	static const char *const empty[] = { "dp", "" };
	struct {
		int ndim;
		int64_t shape[2];
		const int32_t *ranks;
		const char *const *names;
		const char *word;
	} cases[] = {
		{ 0, { 0 }, NULL, NULL },
		{ 9, { 1, 1 }, NULL, NULL },
		{ 2, { 2, 0 }, NULL, NULL, "has size 0" },
		{ 2, { 2, -1 }, NULL, NULL, "has size -1" },
		{ 2, { 1ll << 40, 1ll << 40 }, NULL, NULL },
		{ 1, { 2 }, (const int32_t[]){ 1, 1 }, NULL },
		{ 1, { 2 }, (const int32_t[]){ 1, -1 }, NULL },
		{ 2, { 1, 1 }, NULL, twice },
		{ 2, { 1, 1 }, NULL, empty },
	};

	for (size_t i = 0; i < SK_ARRAY_SIZE(cases); i++) {
		struct sk_mesh *m = NULL;
		struct sk_err err = { "" };

		cr_assert_eq(sk_mesh_new(cases[i].ndim, cases[i].shape,
					 cases[i].ranks, cases[i].names, &m,
					 &err), -EINVAL, "case %zu", i);
		cr_assert(err.text[0], "case %zu has no sentence", i);
		cr_assert(!cases[i].word || strstr(err.text, cases[i].word),
			  "%s", err.text);
		cr_assert_null(m);
	}
}

Test(name, has_so_many_bytes)
{
	char name[1026];
	struct sk_err err = { "" };

	memset(name, 'n', sizeof(name));
	for (size_t n = 0; n < sizeof(name); n++) {
		name[n] = 0;
		cr_assert_eq(sk_name_check(name, "thing", &err),
			     n >= 1 && n <= 1023 ? 0 : -EINVAL, "%zu", n);
		name[n] = 'n';
	}
	cr_assert_eq(sk_name_check(NULL, "thing", &err), -EINVAL);
	cr_assert_str_eq(err.text, "a thing has no name");
}

/* What older builds stored is read; nobody describes it any more. */
Test(name, that_is_stored_may_have_what_none_may_that_is_said)
{
	const char *const old[] = { "w\xc2\x9b", "\xc2\x80", "a\xc2\x85z" };
	const char *const never[] = { "a\nb", "\x1b[2J", "x\x7f", "\xc2",
				      "\xff" };
	struct sk_err err = { "" };

	for (size_t i = 0; i < SK_ARRAY_SIZE(old); i++) {
		cr_expect_eq(sk_name_check(old[i], "thing", &err), 0, "%zu",
			     i);
		cr_expect_eq(sk_name_check_said(old[i], "thing", &err),
			     -EINVAL, "%zu", i);
	}
	for (size_t i = 0; i < SK_ARRAY_SIZE(never); i++) {
		cr_expect_eq(sk_name_check(never[i], "thing", &err), -EINVAL);
		cr_expect_eq(sk_name_check_said(never[i], "thing", &err),
			     -EINVAL);
	}
	cr_expect_eq(sk_name_check_said("größer\xc2\xa0", "thing", &err), 0);
}

Test(mesh, copies_what_it_is_given)
{
	int32_t ranks[] = { 3, 1 };
	char name[] = "dp";
	const char *const names[] = { name };
	int64_t shape[] = { 2 };
	struct sk_mesh *m = make(1, shape, ranks, names);

	ranks[0] = 7;
	shape[0] = 9;
	name[0] = 'x';
	cr_assert_eq(sk_mesh_count(m), 2);
	cr_assert_eq(sk_mesh_rank_at(m, 0), 3);
	cr_assert_str_eq(sk_mesh_name(m, 0), "dp");
	sk_mesh_unref(m);
}

Test(mesh, outsiders_have_no_coordinates)
{
	static const int32_t outside[] = { INT32_MIN, -1, 0, 2, 3, 5, 7,
					   INT32_MAX };
	struct sk_mesh *m = make(1, (int64_t[]){ 3 },
				 (int32_t[]){ 1, 4, 6 }, NULL);
	struct sk_mesh *dense = make(1, (int64_t[]){ 3 }, NULL, NULL);
	int64_t at[1] = { 77 };

	for (size_t i = 0; i < SK_ARRAY_SIZE(outside); i++)
		cr_assert_eq(sk_mesh_coords(m, outside[i], at), -ENOENT);
	cr_assert_eq(sk_mesh_coords(dense, -1, at), -ENOENT);
	cr_assert_eq(sk_mesh_coords(dense, 3, at), -ENOENT);
	cr_assert_eq(at[0], 77, "outputs are set on success only");
	sk_mesh_unref(m);
	sk_mesh_unref(dense);
}

Test(mesh, references_are_counted)
{
	struct sk_mesh *m = make(1, (int64_t[]){ 2 }, NULL, NULL);

	cr_assert_eq(sk_mesh_ref(m), m);
	cr_assert_null(sk_mesh_unref(m));
	cr_assert_eq(sk_mesh_count(m), 2);
	cr_assert_null(sk_mesh_unref(m));
	cr_assert_null(sk_mesh_unref(NULL));
	cr_assert_null(sk_mesh_ref(NULL));
}

/* A slice of a slice, of ranks that do not count from zero. */
Test(mesh, slices_nest)
{
	static const int32_t ranks[] = { 7, 6, 5, 4, 3, 2, 1, 0 };
	struct sk_mesh *m = make(3, (int64_t[]){ 2, 2, 2 }, ranks, dp_cp_tp);
	struct sk_mesh *two = NULL;

	cr_assert_eq(sk_mesh_slice(m, 1, dp_cp_tp + 1, 2, &two, NULL), 0);
	sk_mesh_unref(m);
	expect_slice(two, 1, dp_cp_tp + 1, 2, 4, (int32_t[]){ 3, 2, 1, 0 });
	expect_slice(two, 1, dp_cp_tp + 1, 1, 2, (int32_t[]){ 3, 1 });
	sk_mesh_unref(two);
}

static void expect_words(const struct sk_mesh *m, int32_t rank,
			 const char *const *names, int n, const char *words)
{
	struct sk_mesh *child = NULL;
	struct sk_err err = { "" };

	cr_assert_lt(sk_mesh_slice(m, rank, names, n, &child, &err), 0);
	cr_assert(strstr(err.text, words), "\"%s\" lacks \"%s\"", err.text,
		  words);
	cr_assert_null(child);
}

Test(mesh, refusals_say_what_is_wrong)
{
	static const char *const twice[] = { "dp", "dp" };
	static const char *const reversed[] = { "tp", "dp" };
	struct sk_mesh *m = make(2, (int64_t[]){ 2, 4 }, NULL, dp_tp);

	expect_words(m, 0, twice, 2, "name dimensions in its order");
	expect_words(m, 0, reversed, 2,
		     "\"dp\" stands before \"tp\" in the mesh");
	expect_words(m, 0, dp_tp, 0, "a slice of 0 of the 2 dimensions");
	expect_words(m, 0, dp_tp, 3, "a slice of 3 of the 2 dimensions");
	expect_words(m, 8, dp_tp, 1, "rank 8 is not in the mesh");
	expect_words(m, -1, dp_tp, 1, "rank -1 is not in the mesh");
	sk_mesh_unref(m);
}
