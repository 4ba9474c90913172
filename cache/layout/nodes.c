/* SPDX-License-Identifier: Apache-2.0 */
#include "layout/nodes.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/util.h"

struct sk_nodes {
	atomic_uint extra_refs;	/* beyond the first */
	size_t n;
	struct sk_mesh *meshes[];
};

static int no_memory(struct sk_err *err)
{
	return sk_err_set(err, -ENOMEM, "no memory for which ranks share a "
			  "node");
}

static struct sk_nodes *nodes_new(size_t room)
{
	return calloc(1, sizeof(struct sk_nodes) +
			 room * sizeof(struct sk_mesh *));
}

/* ---- from numbers ---- */

/* A node while they are sorted. */
struct node {
	int32_t first;		/* the lowest rank */
	int32_t n;
	int64_t at;		/* where its ranks begin */
};

static int by_size_and_rank(const void *a, const void *b)
{
	const struct node *x = a, *y = b;

	if (x->n != y->n)
		return x->n > y->n ? -1 : 1;
	return (x->first > y->first) - (x->first < y->first);
}

/* Who is on which, by number; how many there are. */
static int32_t count(const int32_t *node_of, int32_t world, struct node *nodes)
{
	int32_t n = 0;

	for (int32_t i = 0; i < world; i++) {
		struct node *node = &nodes[node_of[i]];

		assert(node_of[i] >= 0 && node_of[i] < world);
		if (!node->n++) {
			node->first = i;
			n++;
		}
	}
	return n;
}

/* The largest first, and of one size by their lowest ranks; @order is where
 * each number has come to. */
static void place(struct node *nodes, int32_t world, const int32_t *node_of,
		  int32_t n, int32_t *order)
{
	int64_t at = 0;

	qsort(nodes, (size_t)world, sizeof(*nodes), by_size_and_rank);
	for (int32_t i = 0; i < n; i++) {
		nodes[i].at = at;
		at += nodes[i].n;
		order[node_of[nodes[i].first]] = i;
	}
}

static void put_ranks(const struct node *nodes, const int32_t *node_of,
		      int32_t world, const int32_t *order, int32_t *filled,
		      int32_t *ranks)
{
	for (int32_t i = 0; i < world; i++) {
		int32_t k = order[node_of[i]];

		ranks[nodes[k].at + filled[k]++] = i;
	}
}

/* One mesh for all nodes of one size. */
static int make_meshes(struct sk_nodes *to, const struct node *nodes,
		       int32_t n, const int32_t *ranks, struct sk_err *err)
{
	int r = 0;

	for (int32_t i = 0, end; i < n && r >= 0; i = end) {
		int64_t shape[2];

		for (end = i + 1; end < n && nodes[end].n == nodes[i].n; end++)
			;
		shape[0] = end - i;
		shape[1] = nodes[i].n;
		r = sk_mesh_new(2, shape, ranks + nodes[i].at, NULL,
				&to->meshes[to->n], err);
		to->n += r >= 0;
	}
	return r;
}

static size_t count_sizes(const struct node *nodes, int32_t n)
{
	size_t sizes = 1;

	for (int32_t i = 1; i < n; i++)
		sizes += nodes[i].n != nodes[i - 1].n;
	return sizes;
}

static int from_sorted(const struct node *nodes, int32_t n,
		       const int32_t *ranks, struct sk_nodes **ret,
		       struct sk_err *err)
{
	struct sk_nodes *made = nodes_new(count_sizes(nodes, n));
	int r;

	if (!made)
		return no_memory(err);
	r = make_meshes(made, nodes, n, ranks, err);
	if (r < 0) {
		sk_nodes_unref(made);
		return r;
	}
	*ret = made;
	return 0;
}

int sk_nodes_new(const int32_t *node_of, int32_t world, struct sk_nodes **ret,
		 struct sk_err *err)
{
	size_t room = (uint32_t)world;
	_cleanup_free_ struct node *nodes = calloc(room, sizeof(*nodes));
	_cleanup_free_ int32_t *words = calloc(room, 3 * sizeof(*words));
	int32_t n;

	assert(world > 0);
	if (!nodes || !words)
		return no_memory(err);
	*ret = NULL;
	n = count(node_of, world, nodes);
	if (n == 1)
		return 0;
	place(nodes, world, node_of, n, words);
	put_ranks(nodes, node_of, world, words, words + room,
		  words + 2 * room);
	return from_sorted(nodes, n, words + 2 * room, ret, err);
}

/* ---- from meshes ---- */

static int check_mesh(const struct sk_mesh *mesh, int32_t world,
		      struct sk_err *err)
{
	if (sk_mesh_ndim(mesh) == 2 && sk_mesh_last_rank(mesh) < world)
		return 0;
	return sk_err_set(err, -EINVAL, "a mesh of %d dimensions up to rank "
			  "%d tells no nodes of %d ranks", sk_mesh_ndim(mesh),
			  sk_mesh_last_rank(mesh), world);
}

int sk_nodes_of_meshes(struct sk_mesh *const *meshes, size_t n, int32_t world,
		       struct sk_nodes **ret, struct sk_err *err)
{
	struct sk_nodes *nodes;
	int r = n ? 0 : sk_err_set(err, -EINVAL, "no mesh that tells nodes");

	for (size_t i = 0; i < n && r >= 0; i++)
		r = check_mesh(meshes[i], world, err);
	if (r < 0)
		return r;
	nodes = nodes_new(n);
	if (!nodes)
		return no_memory(err);
	for (; nodes->n < n; nodes->n++)
		nodes->meshes[nodes->n] = sk_mesh_ref(meshes[nodes->n]);
	*ret = nodes;
	return 0;
}

/* ---- references ---- */

struct sk_nodes *sk_nodes_ref(struct sk_nodes *nodes)
{
	if (nodes)
		atomic_fetch_add(&nodes->extra_refs, 1);
	return nodes;
}

struct sk_nodes *sk_nodes_unref(struct sk_nodes *nodes)
{
	/* 0 extra wraps to the largest value: that was the last one. */
	if (!nodes || atomic_fetch_sub(&nodes->extra_refs, 1) != 0)
		return NULL;
	for (size_t i = 0; i < nodes->n; i++)
		sk_mesh_unref(nodes->meshes[i]);
	free(nodes);
	return NULL;
}

/* ---- asking ---- */

bool sk_nodes_equal(const struct sk_nodes *a, const struct sk_nodes *b)
{
	if (!a || !b || a == b)
		return a == b;
	if (a->n != b->n)
		return false;
	for (size_t i = 0; i < a->n; i++)
		if (!sk_mesh_equal(a->meshes[i], b->meshes[i]))
			return false;
	return true;
}

size_t sk_nodes_meshes(const struct sk_nodes *nodes)
{
	return nodes->n;
}

const struct sk_mesh *sk_nodes_mesh(const struct sk_nodes *nodes, size_t i)
{
	assert(i < nodes->n);
	return nodes->meshes[i];
}

/* The mesh that has @rank, and in which row; NULL: none. */
static const struct sk_mesh *find(const struct sk_nodes *nodes, int32_t rank,
				  int64_t *ret_row)
{
	int64_t at[2];

	for (size_t i = 0; i < nodes->n; i++)
		if (sk_mesh_coords(nodes->meshes[i], rank, at) >= 0) {
			*ret_row = at[0];
			return nodes->meshes[i];
		}
	return NULL;
}

int64_t sk_nodes_count(const struct sk_nodes *nodes, int32_t rank)
{
	int64_t row;
	const struct sk_mesh *mesh = find(nodes, rank, &row);

	return mesh ? sk_mesh_dim(mesh, 1) : 1;
}

int32_t sk_nodes_rank(const struct sk_nodes *nodes, int32_t rank, int64_t i)
{
	int64_t row;
	const struct sk_mesh *mesh = find(nodes, rank, &row);

	if (!mesh)
		return rank;
	assert(i >= 0 && i < sk_mesh_dim(mesh, 1));
	return sk_mesh_rank_at(mesh, row * sk_mesh_dim(mesh, 1) + i);
}
