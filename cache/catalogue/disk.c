/* SPDX-License-Identifier: Apache-2.0 */
/* Catalogue, the disk: images that are found there, and that go. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "base/util.h"
#include "bytes/checksum.h"
#include "catalogue/private.h"

void sk_cat_hash_sums(const struct sk_layout *layout, const uint64_t *sums,
		      uint64_t ret[2])
{
	uint8_t hash[16];

	assert(!layout->n_sums || sums);
	sk_xxh3_128(sums, layout->n_sums * sizeof(*sums), hash);
	memcpy(ret, hash, sizeof(hash));
}

bool sk_cat_same_content(const struct sk_cat_image *image,
			 const struct sk_layout *layout,
			 const uint64_t content[2])
{
	return sk_digest_equal(&image->layout->layout->digest,
			       &layout->digest) &&
	       image->content[0] == content[0] &&
	       image->content[1] == content[1];
}

static int check_run(const struct sk_cat_job *job,
		     const struct sk_cat_found *found, struct sk_err *err)
{
	if (!found->run || found->run > SK_RUN_MAX)
		return sk_err_set(err, -EINVAL, "run %" PRIu64 " of job "
				  "\"%.40s\" cannot be; runs are 1 to %"
				  PRIu64, found->run, job->name, SK_RUN_MAX);
	if (!found->run_id)
		return sk_err_set(err, -EINVAL, "run %" PRIu64 " of job "
				  "\"%.40s\" has no id", found->run,
				  job->name);
	return 0;
}

/* Finds or makes the image: 1 it is new and has the layout. */
static int stored_image(struct sk_cat_job *job,
			const struct sk_cat_found *found,
			struct sk_cat_layout *layout,
			struct sk_cat_image **ret_image, struct sk_err *err)
{
	const struct sk_layout *l = layout->layout;
	struct sk_cat_snapshot *s;
	struct sk_cat_image *image;
	int r = check_run(job, found, err);

	if (r < 0)
		return r;
	s = sk_cat_snapshot_get(job, found->run, found->run_id, found->step,
				l->world);
	if (!s)
		return sk_err_set(err, -ENOMEM, "no memory for a snapshot");
	if (s->world != l->world)
		return sk_err_set(err, -EINVAL, "step %" PRId64 " of run %"
				  PRIu64 " has %" PRId32 " ranks, this image "
				  "says %" PRId32, s->step, s->run, s->world,
				  l->world);
	image = sk_cat_image_find(s, l->rank, l->kind);
	if (image && !sk_cat_same_content(image, l, found->content))
		return sk_err_set(err, -ESTALE, "rank %" PRId32 " of step %"
				  PRId64 " of run %" PRIu64 " is another image "
				  "than the one in memory", l->rank, s->step,
				  s->run);
	*ret_image = image;
	if (image)
		return 0;
	image = sk_cat_image_new(s, layout);
	if (!image) {
		(void)sk_cat_snapshot_trim(s);
		return sk_err_set(err, -ENOMEM, "no memory for an image");
	}
	memcpy(image->content, found->content, sizeof(image->content));
	*ret_image = image;
	return 1;
}

int sk_cat_stored_add(struct sk_cat_job *job, const struct sk_cat_found *found,
		      struct sk_cat_layout *layout, struct sk_err *err)
{
	struct sk_cat_image *image = NULL;
	struct sk_cat_snapshot *s;
	int r;

	r = stored_image(job, found, layout, &image, err);
	if (r <= 0)	/* known, or refused: ours is not needed */
		sk_cat_layout_unref(layout);
	if (r < 0)
		return r;
	s = image->snapshot;
	(void)snprintf(image->stored.dir, sizeof(image->stored.dir), "%s",
		       found->dir);
	image->stored.serial = ++job->catalogue->serial;
	image->stored.file = found->file;
	image->bad_disk = false;
	if (!s->created_ns)
		s->created_ns = found->file.mtime_ns;
	sk_cat_run_seen(job, found->run);
	sk_cat_touch_disk(s);
	return 0;
}

void sk_cat_stored_remove(struct sk_cat_image *image)
{
	struct sk_cat_snapshot *s = image->snapshot;

	assert(image->stored.dir[0]);
	image->stored.dir[0] = 0;
	image->bad_disk = false;
	sk_cat_image_trim(image);
	if (!sk_cat_snapshot_trim(s))
		sk_cat_touch_disk(s);
}

/* ---- what is left to the disk ---- */

/* Where the step stands, or would. */
static size_t kept_place(const struct sk_cat_run *run, int64_t step)
{
	return sk_count_before(run->n_kept, i, run->kept[i] < step);
}

bool sk_cat_run_kept(const struct sk_cat_run *run, int64_t step)
{
	size_t at = kept_place(run, step);

	return at < run->n_kept && run->kept[at] == step;
}

/* Its ranks may not take the step again. -ENOMEM. Oldest first, it is always
 * the last one. */
static int keep_step(struct sk_cat_run *run, int64_t step)
{
	size_t at = kept_place(run, step);

	if (at < run->n_kept && run->kept[at] == step)
		return 0;
	if (sk_array_fit(run->kept, run->room_kept, run->n_kept + 1) < 0)
		return -ENOMEM;
	memmove(&run->kept[at + 1], &run->kept[at],
		(run->n_kept++ - at) * sizeof(*run->kept));
	run->kept[at] = step;
	return 0;
}

/* Whether this agent's ranks have nothing to add any more: other agents' parts
 * are found on the disk, or nowhere. */
static bool is_all_of_ours(const struct sk_cat_snapshot *s)
{
	const struct sk_cat_run *run = sk_cat_run_of(s);
	const struct sk_cat_image *image;
	const struct sk_cat_state *state;
	bool any = false;

	if (!run)
		return true;
	sk_link_each(state, &run->states, link) {
		s->job->catalogue->visits++;
		if (state->replaced)
			continue;
		image = sk_cat_image_find(s, state->rank, SK_IMAGE_PRIMARY);
		if (!image || !sk_cat_on_store(image))
			return false;
		any = true;
	}
	return any || sk_cat_hopeless(s);
}

static bool can_leave(const struct sk_cat_snapshot *s)
{
	struct sk_cat_image *image;

	if (s->filling || s->sealed || s->leases || s->flushing || s->pinned ||
	    s->failed)
		return false;
	if (!sk_cat_on_disk(s) && !is_all_of_ours(s))
		return false;
	/* That a file is damaged is known here alone. */
	sk_link_each(image, &s->images, link) {
		if (image->bad_disk || image->slot)
			return false;
	}
	return true;
}

static void leave(struct sk_cat_snapshot *s)
{
	struct sk_cat_image *image;

	s->filling++;	/* keeps it while its images go */
	sk_link_each(image, &s->images, link) {
		image->stored.dir[0] = 0;
		sk_cat_image_trim(image);
	}
	s->filling--;
	(void)sk_cat_snapshot_trim(s);
}

/* The oldest of the @most newest, of which there are as many. */
static const struct sk_cat_snapshot *
last_that_stays(const struct sk_cat_job *job, size_t most)
{
	const struct sk_link *at = &job->snapshots;

	for (size_t i = 0; i < most; i++, job->catalogue->visits++)
		at = at->next;
	return most ? sk_link_object(at, struct sk_cat_snapshot, link) : NULL;
}

/* The next that is older, from where the last call ended; NULL: all have had
 * their turn. */
static struct sk_cat_snapshot *next_to_leave(const struct sk_cat_job *job,
					     const struct sk_cat_snapshot *last)
{
	struct sk_link *at = job->leaves ? : job->snapshots.prev;
	struct sk_cat_snapshot *s;

	if (at == &job->snapshots)
		return NULL;
	s = sk_link_object(at, struct sk_cat_snapshot, link);
	return !last || sk_cat_order(last->run, last->run_id, last->step,
				     s) > 0 ? s : NULL;
}

unsigned sk_cat_stored_leave(struct sk_cat_job *job, size_t most,
			     unsigned at_once)
{
	const struct sk_cat_snapshot *last;
	struct sk_cat_snapshot *s;
	unsigned left = 0, seen = 0;

	if (job->n_snapshots <= most) {
		job->leaves = NULL;
		return 0;
	}
	last = last_that_stays(job, most);
	while (seen++ < 4 * at_once && left < at_once &&
	       (s = next_to_leave(job, last))) {
		struct sk_cat_run *run = sk_cat_run_of(s);

		job->leaves = s->link.prev;
		job->catalogue->visits++;
		if (!can_leave(s) || (run && keep_step(run, s->step) < 0))
			continue;
		leave(s);
		left++;
	}
	if (!next_to_leave(job, last))
		job->leaves = NULL;
	return left;
}
