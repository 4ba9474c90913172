/* SPDX-License-Identifier: Apache-2.0 */
#include "catalogue/kept.h"

#include "catalogue/private.h"

bool sk_cat_kept(const struct sk_cat_snapshot *s)
{
	const struct sk_staying *st = &s->job->staying;

	return sk_staying_has(st, s->run, s->run_id, s->step) ||
	       (sk_cat_is_begun(s) &&
		(st->run < s->job->begun.by || st->steps[0] < 0));
}

bool sk_cat_written_here(const struct sk_cat_snapshot *s)
{
	const struct sk_cat_run *run = sk_cat_run_of(s);
	const struct sk_cat_image *image;
	const struct sk_cat_state *state;
	bool any = false;

	if (!run)
		return false;
	sk_link_each(state, &run->states, link) {
		s->job->catalogue->visits++;
		if (!state->living)
			continue;
		any = true;
		image = sk_cat_image_find(s, state->rank, SK_IMAGE_PRIMARY);
		if (!image || !image->stored.dir[0] || image->bad_disk)
			return false;
	}
	return any;
}
