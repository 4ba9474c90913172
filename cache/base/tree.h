/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trees: objects in an order, of which the first, and what comes after a place
 * whether or not anything is there, are found without a look at the others.
 *
 * A node is embedded in its object, as a link is. It has a weight that nobody
 * can choose, and those below it are lighter: so the tree is as deep as if they
 * had come in any order, about twice the logarithm of their number, whoever
 * chooses the keys. Zeroes are an empty tree, and a node in none.
 *
 * The owner says what order there is, of keys: those of nodes, no two alike,
 * stay as they are while the nodes are in the tree. Thread-safety: the owner's.
 */
#ifndef SK_CACHE_BASE_TREE_H
#define SK_CACHE_BASE_TREE_H

#include <stdbool.h>
#include <stdint.h>

struct sk_tree_node {
	struct sk_tree_node *left, *right;
	uint64_t weight;		/* 0: in no tree */
};

struct sk_tree {
	struct sk_tree_node *root;
};

/** Whether what has @key comes before the node (< 0), or after it (> 0); 0: it
 * is the node's own key. */
typedef int sk_tree_order(const void *key, const struct sk_tree_node *node);

static inline bool sk_tree_has(const struct sk_tree_node *node)
{
	return node->weight;
}

/** The node is in no tree; @key is its own. */
void sk_tree_add(struct sk_tree *tree, struct sk_tree_node *node,
		 const void *key, sk_tree_order *order);
/** It is in that one. */
void sk_tree_remove(struct sk_tree *tree, struct sk_tree_node *node,
		    const void *key, sk_tree_order *order);
/** NULL: it is empty. */
struct sk_tree_node *sk_tree_first(const struct sk_tree *tree);
/** The first that comes after @key, which need not be a node's; NULL: none. */
struct sk_tree_node *sk_tree_after(const struct sk_tree *tree, const void *key,
				   sk_tree_order *order);

#endif
