/* SPDX-License-Identifier: Apache-2.0 */
#include "catalogue/kept.h"

#include "catalogue/private.h"

void sk_cat_run_keeps(const struct sk_cat_run *run, const int64_t steps[2])
{
	struct sk_cat_job *job = run->job;

	if (run->number < job->keep.run)
		return;
	job->keep = (struct sk_cat_keep){ run->number, run->id,
					  { steps[0], steps[1] } };
}

bool sk_cat_kept(const struct sk_cat_snapshot *s)
{
	const struct sk_cat_keep *k = &s->job->keep;

	if (k->run == s->run && k->run_id == s->run_id &&
	    (s->step == k->steps[0] || s->step == k->steps[1]))
		return true;
	return sk_cat_is_begun(s) &&
	       (k->run < s->job->begun.by || k->steps[0] < 0);
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
