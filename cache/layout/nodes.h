/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes: which ranks of a job share one, where each node is to keep once what
 * its ranks have in common.
 *
 * Told as meshes of two dimensions, nodes by ranks, one for each number of
 * ranks that a node has: in a header 2,048 nodes of 8 ranks are as short as
 * two. Immutable; references are counted, and counting is atomic.
 */
#ifndef SK_CACHE_LAYOUT_NODES_H
#define SK_CACHE_LAYOUT_NODES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "tensor/mesh.h"

struct sk_nodes;

/**
 * Of @world ranks, @node_of[i] is the number of rank i's node: at most @world
 * of them, each of which has a rank. The same for whatever numbers.
 * *ret: a reference; NULL where all ranks share one node. Errors: -ENOMEM.
 */
int sk_nodes_new(const int32_t *node_of, int32_t world, struct sk_nodes **ret,
		 struct sk_err *err);
/** Of its meshes, as sk_nodes_mesh() gives them: they are not taken over.
 * Errors: -EINVAL such meshes tell no nodes of @world ranks; -ENOMEM. */
int sk_nodes_of_meshes(struct sk_mesh *const *meshes, size_t n, int32_t world,
		       struct sk_nodes **ret, struct sk_err *err);

/** NULL is fine, and stays NULL. */
struct sk_nodes *sk_nodes_ref(struct sk_nodes *nodes);
struct sk_nodes *sk_nodes_unref(struct sk_nodes *nodes);

/** The same ranks on each node; NULL is one node of all. */
bool sk_nodes_equal(const struct sk_nodes *a, const struct sk_nodes *b);

size_t sk_nodes_meshes(const struct sk_nodes *nodes);
const struct sk_mesh *sk_nodes_mesh(const struct sk_nodes *nodes, size_t i);

/** How many ranks @rank's node has, itself included: 1 where nothing is said
 * of it. @nodes is not NULL. */
int64_t sk_nodes_count(const struct sk_nodes *nodes, int32_t rank);
/** The @i-th of them. */
int32_t sk_nodes_rank(const struct sk_nodes *nodes, int32_t rank, int64_t i);

#endif
