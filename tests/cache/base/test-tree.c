/* SPDX-License-Identifier: Apache-2.0 */
/* The tree against a plain row of what is in it; and how deep it is. */
#include <criterion/criterion.h>

#include "base/link.h"
#include "base/tree.h"
#include "support/random.h"

#define KEYS 300
#define STEPS 6000
#define MANY 20000

struct thing {
	struct sk_tree_node node;
	unsigned key;
};

static unsigned asked;

static int order(const void *key, const struct sk_tree_node *node)
{
	const struct thing *thing = sk_link_object(node, struct thing, node);
	unsigned mine = *(const unsigned *)key;

	asked++;
	return (mine > thing->key) - (mine < thing->key);
}

static const struct thing *thing_of(const struct sk_tree_node *node)
{
	return node ? sk_link_object(node, struct thing, node) : NULL;
}

/* The first of the row that is in it, from there on. */
static const struct thing *naive_from(const struct thing row[KEYS],
				      unsigned key)
{
	while (key < KEYS && !sk_tree_has(&row[key].node))
		key++;
	return key < KEYS ? &row[key] : NULL;
}

Test(tree, is_a_row_in_order)
{
	struct thing row[KEYS] = { 0 };
	struct sk_tree tree = { 0 };
	uint64_t seed = 1;

	for (unsigned i = 0; i < KEYS; i++)
		row[i].key = i;
	for (int step = 0; step < STEPS; step++) {
		struct thing *one = &row[draw(&seed, KEYS)];
		unsigned at = (unsigned)draw(&seed, KEYS);

		if (sk_tree_has(&one->node))
			sk_tree_remove(&tree, &one->node, &one->key, order);
		else
			sk_tree_add(&tree, &one->node, &one->key, order);
		cr_assert_eq(thing_of(sk_tree_first(&tree)),
			     naive_from(row, 0));
		cr_assert_eq(thing_of(sk_tree_after(&tree, &at, order)),
			     naive_from(row, at + 1));
	}
}

Test(tree, all_of_it_in_order)
{
	struct thing row[KEYS] = { 0 };
	struct sk_tree tree = { 0 };
	unsigned n = 0;

	cr_assert_null(sk_tree_first(&tree));
	for (unsigned i = 0; i < KEYS; i++) {
		row[i].key = i * 7 % KEYS;
		sk_tree_add(&tree, &row[i].node, &row[i].key, order);
	}
	for (const struct thing *t = thing_of(sk_tree_first(&tree)); t;
	     t = thing_of(sk_tree_after(&tree, &t->key, order)))
		cr_assert_eq(t->key, n++);
	cr_assert_eq(n, KEYS);
	for (unsigned i = 0; i < KEYS; i++)
		sk_tree_remove(&tree, &row[i].node, &row[i].key, order);
	cr_assert_null(tree.root);
}

/* Also where they come in order, as names that count do. */
Test(tree, none_is_far)
{
	struct thing *row = calloc(MANY, sizeof(*row));
	struct sk_tree tree = { 0 };

	cr_assert(row);
	asked = 0;
	for (unsigned i = 0; i < MANY; i++) {
		row[i].key = i;
		sk_tree_add(&tree, &row[i].node, &row[i].key, order);
	}
	for (unsigned i = 0; i < MANY; i++)
		(void)sk_tree_after(&tree, &i, order);
	for (unsigned i = 0; i < MANY; i++)
		sk_tree_remove(&tree, &row[i].node, &row[i].key, order);
	/* Twice the natural logarithm of their number is 20. */
	cr_assert_lt(asked, 3 * MANY * 40, "%u", asked);
	free(row);
}
