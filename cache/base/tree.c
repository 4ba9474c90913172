/* SPDX-License-Identifier: Apache-2.0 */
#include "base/tree.h"

#include <assert.h>
#include <stddef.h>

#include "base/table.h"

/* Where it lies is no secret; what is made of it is. */
static uint64_t weight_of(const struct sk_tree_node *node)
{
	return sk_hash_bytes(sk_hash_seed(), &node, sizeof(node)) | 1;
}

/* What comes before @key, and after it, of what is below. */
static void split(struct sk_tree_node *below, const void *key,
		  sk_tree_order *order, struct sk_tree_node **before,
		  struct sk_tree_node **after)
{
	while (below) {
		if (order(key, below) < 0) {
			*after = below;
			after = &below->left;
			below = below->left;
		} else {
			*before = below;
			before = &below->right;
			below = below->right;
		}
	}
	*before = *after = NULL;
}

void sk_tree_add(struct sk_tree *tree, struct sk_tree_node *node,
		 const void *key, sk_tree_order *order)
{
	struct sk_tree_node **at = &tree->root;

	assert(!sk_tree_has(node));
	node->weight = weight_of(node);
	while (*at && (*at)->weight >= node->weight)
		at = order(key, *at) < 0 ? &(*at)->left : &(*at)->right;
	split(*at, key, order, &node->left, &node->right);
	*at = node;
}

void sk_tree_remove(struct sk_tree *tree, struct sk_tree_node *node,
		    const void *key, sk_tree_order *order)
{
	struct sk_tree_node **at = &tree->root;
	struct sk_tree_node *before = node->left, *after = node->right;

	assert(sk_tree_has(node));
	while (*at != node)
		at = order(key, *at) < 0 ? &(*at)->left : &(*at)->right;
	/* The heavier of the two is above the other. */
	while (before && after) {
		if (before->weight >= after->weight) {
			*at = before;
			at = &before->right;
			before = before->right;
		} else {
			*at = after;
			at = &after->left;
			after = after->left;
		}
	}
	*at = before ? before : after;
	*node = (struct sk_tree_node){ .weight = 0 };
}

struct sk_tree_node *sk_tree_first(const struct sk_tree *tree)
{
	struct sk_tree_node *at = tree->root;

	while (at && at->left)
		at = at->left;
	return at;
}

struct sk_tree_node *sk_tree_after(const struct sk_tree *tree, const void *key,
				   sk_tree_order *order)
{
	struct sk_tree_node *at = tree->root, *best = NULL;

	while (at) {
		if (order(key, at) < 0) {
			best = at;
			at = at->left;
		} else {
			at = at->right;
		}
	}
	return best;
}
