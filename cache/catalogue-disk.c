/* SPDX-License-Identifier: Apache-2.0 */
/* Catalogue, the disk: images that are found there, and that go. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "catalogue-private.h"

static bool same_content(const struct sk_cat_image *image,
			 const struct sk_cat_layout *layout,
			 const uint64_t *sums)
{
	return image->layout == layout &&
	       (!layout->layout->n_sums ||
		memcmp(image->sums, sums,
		       layout->layout->n_sums * sizeof(*sums)) == 0);
}

static int stored_image(struct sk_cat_job *job, uint64_t run, int64_t step,
			struct sk_cat_layout *layout, uint64_t *sums,
			struct sk_cat_image **ret_image, struct sk_err *err)
{
	const struct sk_layout *l = layout->layout;
	struct sk_cat_snapshot *s;
	struct sk_cat_image *image;

	s = sk_cat_snapshot_get(job, run, step, l->world);
	if (!s)
		return sk_err_set(err, -ENOMEM, "no memory for a snapshot");
	if (s->world != l->world)
		return sk_err_set(err, -EINVAL, "step %" PRId64 " of run %"
				  PRIu64 " has %" PRId32 " ranks, this image "
				  "says %" PRId32, step, run, s->world,
				  l->world);
	image = sk_cat_image_find(s, l->rank, l->kind);
	if (image && !same_content(image, layout, sums))
		return sk_err_set(err, -ESTALE, "rank %" PRId32 " of step %"
				  PRId64 " of run %" PRIu64 " is another image "
				  "than the one in memory", l->rank, step, run);
	if (!image) {
		image = sk_cat_image_new(s, layout);
		if (!image) {
			(void)sk_cat_snapshot_trim(s);
			return sk_err_set(err, -ENOMEM,
					  "no memory for an image");
		}
		image->sums = sums;
		*ret_image = image;
		return 1;
	}
	*ret_image = image;
	return 0;
}

int sk_cat_stored_add(struct sk_cat_job *job, uint64_t run, int64_t step,
		      struct sk_cat_layout *layout, uint64_t *sums,
		      const char *dir, uint64_t mtime_ns, struct sk_err *err)
{
	struct sk_cat_image *image = NULL;
	struct sk_cat_snapshot *s;
	int r;

	r = stored_image(job, run, step, layout, sums, &image, err);
	if (r <= 0) {	/* known, or refused: ours are not needed */
		free(sums);
		sk_cat_layout_unref(layout);
	}
	if (r < 0)
		return r;
	s = image->snapshot;
	(void)snprintf(image->stored.dir, sizeof(image->stored.dir), "%s",
		       dir);
	image->stored.serial = ++job->catalogue->serial;
	image->stored.mtime_ns = mtime_ns;
	image->bad_disk = false;
	if (!s->created_ns)
		s->created_ns = mtime_ns;
	if (run > job->newest_run)
		job->newest_run = run;
	s->stale = true;
	return 0;
}

void sk_cat_stored_remove(struct sk_cat_image *image)
{
	struct sk_cat_snapshot *s = image->snapshot;

	image->stored.dir[0] = 0;
	image->bad_disk = false;
	sk_cat_image_trim(image);
	if (!sk_cat_snapshot_trim(s))
		s->stale = true;
}

void sk_cat_refresh(struct sk_cat_job *job)
{
	struct sk_cat_snapshot *s;

	sk_link_each(s, &job->snapshots, link) {
		if (s->stale)
			(void)sk_cat_update(s);
	}
}
