/* SPDX-License-Identifier: Apache-2.0 */
/* Catalogue, the rules: what stays, what goes to disk, what is in use. */
#include "catalogue-private.h"

struct sk_cat_snapshot *sk_cat_newest(const struct sk_cat_job *job)
{
	struct sk_cat_snapshot *s;

	sk_link_each(s, &job->snapshots, link) {
		if (s->complete || s->local)
			return s;
	}
	return NULL;
}

static bool is_newer(const struct sk_cat_snapshot *s,
		     const struct sk_cat_snapshot *than)
{
	return !than || sk_cat_order(s->run, s->step, than) > 0;
}

static bool awaits_disk(const struct sk_cat_snapshot *s)
{
	return s->job->catalogue->has_store && s->wanted && !s->on_disk &&
	       !s->hopeless_on_disk;
}

const char *sk_cat_protected(const struct sk_cat_snapshot *s)
{
	const struct sk_cat_snapshot *newest = sk_cat_newest(s->job);

	if (s->leases)
		return "in use by a restore";
	if (s->flushing)
		return "being flushed";
	if (s->pinned)
		return "pinned";
	if (s == newest)
		return "the newest complete snapshot";
	if (awaits_disk(s) && (s->complete || s->local))
		return "not durable yet";
	if (is_newer(s, newest) && !sk_cat_hopeless(s))
		return "newer than the newest complete snapshot, and may "
		       "still become complete";
	return NULL;
}

bool sk_cat_flushable(const struct sk_cat_snapshot *s)
{
	return awaits_disk(s) && !s->flushing && (s->complete || s->local);
}

void sk_cat_image_bad(struct sk_cat_image *image, bool disk)
{
	if (disk)
		image->bad_disk = true;
	else
		image->bad_memory = true;
	(void)sk_cat_update(image->snapshot);
}

void sk_cat_lease(struct sk_cat_image *image, int count)
{
	struct sk_cat_snapshot *s = image->snapshot;

	image->leases = (unsigned)((int)image->leases + count);
	s->leases = (unsigned)((int)s->leases + count);
	sk_cat_image_trim(image);
	(void)sk_cat_snapshot_trim(s);
}
