/* SPDX-License-Identifier: Apache-2.0 */
#include "briefs.h"

#include <errno.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/util.h"
#include "bytes/checksum.h"

/* Ranks' own objects often differ in size alone, and then no layout follows
 * from the other's: that is told before one is computed. */
static int hash_locals(const struct sk_layout *l, uint64_t *ret)
{
	size_t bytes = sk_layout_locals(l, NULL) * sizeof(int64_t);
	_cleanup_free_ int64_t *sizes = malloc(bytes + 1);

	if (!sizes)
		return -ENOMEM;
	(void)sk_layout_locals(l, sizes);
	*ret = sk_xxh3(sizes, bytes);
	return 0;
}

static int add_first(struct briefs *b, struct sk_layout *l, uint64_t locals)
{
	if (sk_layout_says_boxes(l))
		return 0;
	if (sk_array_fit(b->firsts, b->room, b->n_firsts + 1) < 0)
		return -ENOMEM;
	b->firsts[b->n_firsts++] = (struct brief_first){ sk_layout_ref(l),
							 locals };
	return 0;
}

static struct sk_layout *first_of(const struct briefs *b,
				  const struct sk_layout *l, uint64_t locals)
{
	for (size_t i = 0; i < b->n_firsts; i++)
		if (b->firsts[i].locals == locals &&
		    b->firsts[i].layout->description == l->description)
			return b->firsts[i].layout;
	return NULL;
}

int briefs_add(struct briefs *b, struct sk_layout **layout)
{
	struct sk_layout *l = *layout, *first, *outline;
	uint64_t locals;
	int r;

	r = hash_locals(l, &locals);
	if (r < 0)
		return r;
	first = first_of(b, l, locals);
	if (!first)
		return add_first(b, l, locals);
	/* A hash may be another's: its digest says what it is. */
	r = sk_layout_outline(first, l->rank, l->kind, &l->digest, NULL, NULL,
			      &outline);
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	sk_layout_free(l);
	*layout = outline;
	return 0;
}

void briefs_release(struct briefs *b)
{
	for (size_t i = 0; i < b->n_firsts; i++)
		sk_layout_free(b->firsts[i].layout);
	free(b->firsts);
	*b = (struct briefs){ 0 };
}
