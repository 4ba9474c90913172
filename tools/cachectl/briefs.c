/* SPDX-License-Identifier: Apache-2.0 */
#include "briefs.h"

#include <errno.h>
#include <stdlib.h>

#include "base/array.h"

static int add_first(struct briefs *b, struct sk_layout *layout)
{
	if (sk_layout_says_boxes(layout))
		return 0;
	if (sk_array_fit(b->firsts, b->room, b->n_firsts + 1) < 0)
		return -ENOMEM;
	b->firsts[b->n_firsts++] = sk_layout_ref(layout);
	return 0;
}

int briefs_add(struct briefs *b, struct sk_layout **layout)
{
	struct sk_layout *l = *layout, *outline;

	for (size_t i = 0; i < b->n_firsts; i++) {
		int r;

		if (b->firsts[i]->description != l->description)
			continue;
		/* Its digest says whether it does: a hash may be another's. */
		r = sk_layout_outline(b->firsts[i], l->rank, l->kind,
				      &l->digest, NULL, NULL, &outline);
		if (r == -ENOENT)
			continue;
		if (r < 0)
			return r;
		sk_layout_free(l);
		*layout = outline;
		return 0;
	}
	return add_first(b, l);
}

void briefs_release(struct briefs *b)
{
	for (size_t i = 0; i < b->n_firsts; i++)
		sk_layout_free(b->firsts[i]);
	free(b->firsts);
	*b = (struct briefs){ 0 };
}
