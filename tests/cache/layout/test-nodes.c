/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks share a node: told, asked, written and read back. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "layout/layout.h"
#include "support/random.h"

#define WORLD_MAX 60

static uint64_t seed = 11;

static int32_t pick(int32_t n)
{
	return (int32_t)draw(&seed, (uint64_t)n);
}

/* Numbers that not all need be used; in blocks, in turn, or anyhow. */
static void random_nodes(int32_t *node_of, int32_t world)
{
	int32_t n = 1 + pick(world), how = pick(3);

	for (int32_t i = 0; i < world; i++)
		node_of[i] = how == 2 ? pick(n) :
			     how ? i % n : i / (world / n + 1);
}

static bool share_one(const int32_t *node_of, int32_t world)
{
	for (int32_t i = 1; i < world; i++)
		if (node_of[i] != node_of[0])
			return false;
	return true;
}

static void check_rank(const struct sk_nodes *nodes, const int32_t *node_of,
		       int32_t world, int32_t rank)
{
	int64_t n = 0;

	for (int32_t i = 0; i < world; i++)
		if (node_of[i] == node_of[rank])
			cr_assert_eq(sk_nodes_rank(nodes, rank, n++), i);
	cr_assert_eq(sk_nodes_count(nodes, rank), n);
}

Test(nodes, each_rank_has_those_of_its_node)
{
	for (int round = 0; round < 500; round++) {
		int32_t world = 1 + pick(WORLD_MAX), node_of[WORLD_MAX];
		struct sk_nodes *nodes = NULL;

		random_nodes(node_of, world);
		cr_assert_eq(sk_nodes_new(node_of, world, &nodes, NULL), 0);
		cr_assert_eq(!nodes, share_one(node_of, world));
		for (int32_t i = 0; nodes && i < world; i++)
			check_rank(nodes, node_of, world, i);
		sk_nodes_unref(nodes);
	}
}

static bool same_nodes(const int32_t *a, const int32_t *b, int32_t world)
{
	for (int32_t i = 0; i < world; i++)
		for (int32_t k = 0; k < i; k++)
			if ((a[i] == a[k]) != (b[i] == b[k]))
				return false;
	return true;
}

Test(nodes, are_the_same_by_whatever_numbers)
{
	for (int round = 0; round < 500; round++) {
		int32_t world = 1 + pick(5), a[WORLD_MAX], b[WORLD_MAX];
		struct sk_nodes *x = NULL, *y = NULL;

		random_nodes(a, world);
		random_nodes(b, world);
		cr_assert_eq(sk_nodes_new(a, world, &x, NULL), 0);
		cr_assert_eq(sk_nodes_new(b, world, &y, NULL), 0);
		cr_assert_eq(sk_nodes_equal(x, y), same_nodes(a, b, world));
		sk_nodes_unref(x);
		sk_nodes_unref(y);
	}
}

/* ---- in a header ---- */

static struct sk_layout *lay_out(int32_t rank, int32_t world,
				 struct sk_nodes *nodes)
{
	struct sk_item item = { .spec = { .name = "w", .dtype = SK_F32,
					  .ndim = 1, .shape = { 8 } } };
	struct sk_layout *l = NULL;
	struct sk_err err = { "" };

	cr_assert_eq(sk_layout_new_over("job", rank, world, SK_IMAGE_REPLICA,
					nodes, &item, 1, &l, &err), 0, "%s",
		     err.text);
	return l;
}

static void check_read_back(const struct sk_layout *l)
{
	struct sk_layout *back = NULL;
	struct sk_err err = { "" };

	cr_assert_eq(sk_layout_parse(l->header, l->header_bytes,
				     l->image_bytes, &back, &err), 0, "%s",
		     err.text);
	cr_assert(sk_nodes_equal(l->nodes, back->nodes));
	cr_assert(sk_digest_equal(&l->digest, &back->digest));
	cr_assert_eq(l->description, back->description);
	sk_layout_free(back);
}

Test(nodes, are_read_back)
{
	for (int round = 0; round < 300; round++) {
		int32_t world = 1 + pick(WORLD_MAX), node_of[WORLD_MAX];
		struct sk_nodes *nodes = NULL;
		struct sk_layout *l, *without;

		random_nodes(node_of, world);
		cr_assert_eq(sk_nodes_new(node_of, world, &nodes, NULL), 0);
		l = lay_out(pick(world), world, nodes);
		without = lay_out(l->rank, world, NULL);
		check_read_back(l);
		cr_assert_eq(l->description == without->description, !nodes);
		cr_assert_eq(sk_digest_equal(&l->digest, &without->digest),
			     !nodes);
		sk_nodes_unref(nodes);
		sk_layout_free(without);
		sk_layout_free(l);
	}
}

/* What a program does not know that reads no nodes has a version of its own;
 * all else has the one that it had. */
Test(nodes, have_a_version_of_their_own)
{
	struct sk_nodes *nodes = NULL;
	struct sk_layout *l[2];

	cr_assert_eq(sk_nodes_new((int32_t[]){ 0, 1 }, 2, &nodes, NULL), 0);
	for (int k = 0; k < 2; k++) {
		const char *version = k ? "version\\\":4" : "version\\\":3";

		l[k] = lay_out(0, 2, k ? nodes : NULL);
		cr_assert(memmem(l[k]->header, l[k]->header_bytes, version,
				 strlen(version)));
		cr_assert_eq(!memmem(l[k]->header, l[k]->header_bytes,
				     "nodes", 5), !k);
		sk_layout_free(l[k]);
	}
	sk_nodes_unref(nodes);
}

/* However many there are. */
Test(nodes, of_one_size_are_a_few_words)
{
	int32_t world = 16384, *node_of = calloc(16384, sizeof(*node_of));

	for (int turns = 0; turns < 2; turns++) {
		struct sk_nodes *nodes = NULL;

		for (int32_t i = 0; i < world; i++)
			node_of[i] = turns ? i % 2048 : i / 8;
		cr_assert_eq(sk_nodes_new(node_of, world, &nodes, NULL), 0);
		cr_assert_eq(sk_nodes_meshes(nodes), 1);
		cr_assert_not_null(sk_mesh_steps(sk_nodes_mesh(nodes, 0)));
		cr_assert_eq(sk_nodes_count(nodes, 77), 8);
		sk_nodes_unref(nodes);
	}
	free(node_of);
}

/* The header with @from in place of @to, which is as long. */
static void refuse(const struct sk_layout *l, const char *from, const char *to,
		   const char *sentence)
{
	_cleanup_free_ char *header = malloc(l->header_bytes);
	struct sk_layout *back = NULL;
	struct sk_err err = { "" };
	char *at;

	cr_assert_eq(strlen(from), strlen(to));
	memcpy(header, l->header, l->header_bytes);
	at = memmem(header, l->header_bytes, from, strlen(from));
	cr_assert_not_null(at, "%s", from);
	memcpy(at, to, strlen(to));
	cr_assert_eq(sk_layout_parse(header, l->header_bytes, 0, &back, &err),
		     -EBADMSG);
	cr_assert(strstr(err.text, sentence), "%s: %s", to, err.text);
}

Test(nodes, that_are_none_are_refused)
{
	struct sk_nodes *nodes = NULL;
	struct sk_layout *l;

	cr_assert_eq(sk_nodes_new((int32_t[]){ 0, 1, 1, 0 }, 4, &nodes, NULL),
		     0);
	l = lay_out(0, 4, nodes);
	refuse(l, "nodes", "modes", "no table of nodes");
	refuse(l, "\\\"shape\\\":[2,2]", "\\\"shape\\\":[004]",
	       "not JSON");
	refuse(l, "\\\"shape\\\":[2,2]", "\\\"shape\\\":[ 4 ]",
	       "tells no nodes");
	refuse(l, "\\\"shape\\\":[2,2]", "\\\"shape\\\":[2,9]",
	       "other ranks than its shape");
	refuse(l, "\\\"ranks\\\":[0,3,1,2]", "\\\"ranks\\\":[0,9,1,2]",
	       "up to rank 9 tells no nodes of 4 ranks");
	refuse(l, "\\\"ranks\\\":[0,3,1,2]", "\\\"ranks\\\":[0,2,1,3]",
	       "damaged");
	refuse(l, "version\\\":4", "version\\\":3", "damaged");
	sk_nodes_unref(nodes);
	sk_layout_free(l);
}
