/* SPDX-License-Identifier: Apache-2.0 */
#include "disk/merge.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "agent.h"
#include "disk/ignored.h"

static void ignore(struct agent *a, const struct found *f)
{
	if (f->stored.rank < 0) {
		a->counts.unreadable++;
		log_warning(a, "passing over %s", f->err.text);
		return;
	}
	a->counts.ignored_files++;
	log_warning(a, "ignoring %s/%s, rank %" PRId32 " of %" PRId32 ": %s",
		    f->stored.job, f->stored.dir, f->stored.rank,
		    f->stored.world, f->err.text);
	/* A failed read may do better next time. */
	if (found_unreadable(f))
		a->counts.unreadable++;
	else
		ignored_add(a, f);
}

/* Into the catalogue, which takes what was found over. */
static void merge(struct agent *a, struct scan *scan, struct found *f)
{
	const struct sk_cat_found found = {
		.run = f->stamp.run, .run_id = f->stamp.run_id,
		.step = (int64_t)f->stamp.step, .dir = f->stored.dir,
		.file = f->stored.file,
	};
	struct sk_cat_snapshot *s;
	struct sk_cat_layout *layout;
	struct sk_cat_job *job;

	assert(f->layout && f->result == 0);
	job = sk_cat_job_get(&a->cat, f->stored.job, f->owner);
	layout = sk_cat_layout_take(&a->cat, sk_take_ptr(f->layout));
	if (!job || !layout) {
		sk_cat_layout_unref(layout);
		free(f->stamp.sums);
		/* Who asked must not take what is left out for all. */
		scan->result = sk_err_set(&scan->err, -ENOMEM, "no memory for "
					  "what the store has");
		return;
	}
	f->result = sk_cat_stored_add(job, &found, layout, f->stamp.sums,
				      &f->err);
	if (f->result == -ESTALE || f->result == -EINVAL)
		f->result = -EBADMSG;
	if (f->result < 0)
		ignore(a, f);
	/* Its agent may have died since. */
	s = f->result == 0 && f->stored.pinned ?
	    sk_cat_snapshot_find(job, found.run, found.run_id, found.step) :
	    NULL;
	if (s)
		s->pinned = true;
}

static const struct found *find_found(const struct scan *scan,
				      const struct found *key)
{
	const struct file_key names = file_key_of(&key->stored);

	return found_find(scan, &names);
}

/* Whether the image's directory, or its whole job, was passed over. */
static bool was_passed_over(const struct scan *scan, const struct found *key)
{
	struct found dir = { .stored = key->stored };

	dir.stored.rank = -1;
	dir.stored.world = 0;
	if (find_found(scan, &dir))
		return true;
	dir.stored.dir[0] = 0;
	return find_found(scan, &dir);
}

/* Whether what was seen may still be what the image knows. What could not be
 * looked at is not gone. */
static bool still_there(const struct scan *scan,
			const struct sk_cat_image *image)
{
	const struct sk_cat_snapshot *s = image->snapshot;
	const struct sk_store_run run = { s->run, s->run_id };
	struct sk_store_run theirs = { 0 };
	struct found key = { 0 };
	const struct found *f;
	enum scan_seen seen;

	stored_name(image, &key.stored);
	if (was_passed_over(scan, &key))
		return true;
	seen = scan_seen(scan, s->job->name, image->stored.dir, &theirs);
	f = seen == SCAN_INSIDE ? find_found(scan, &key) : NULL;
	if (f && f->result < 0)
		return found_unreadable(f);
	/* The name may be another run's by now, or the file another one. */
	if (f && f->layout)
		return f->stamp.run == s->run && f->stamp.run_id == s->run_id &&
		       sk_cat_same_content(image, f->layout, f->stamp.sums);
	if (f)
		theirs = f->stored.run;
	return (f || seen == SCAN_NAMED) &&
	       (!theirs.number || sk_store_run_equal(&theirs, &run));
}

/* What somebody deleted of an old step is not written once more. */
static void want_no_more(struct sk_cat_snapshot *s)
{
	struct sk_cat_snapshot *newer;

	sk_link_each(newer, &s->job->snapshots, link) {
		if (newer == s)
			return;
		if (sk_cat_on_disk(newer))
			break;
	}
	s->wanted = false;
}

/* What the disk had and has no more; but not what came since the look. */
static void forget_gone(struct scan *scan, struct sk_cat_job *job)
{
	struct sk_cat_snapshot *s;
	struct sk_cat_image *image;

	sk_link_each(s, &job->snapshots, link) {
		bool lost = false;

		s->filling++;	/* keeps it while its images go */
		sk_link_each(image, &s->images, link) {
			if (!image->stored.dir[0] ||
			    image->stored.serial > scan->serial ||
			    still_there(scan, image))
				continue;
			sk_cat_stored_remove(image);
			lost = true;
		}
		if (lost && s->wanted)
			want_no_more(s);
		s->filling--;
		(void)sk_cat_snapshot_trim(s);
	}
}

void merge_scan(struct agent *a, struct scan *scan)
{
	struct sk_cat_job *job;

	if (scan->result == 0) {
		sk_link_each(job, &a->cat.jobs, link) {
			if (scan_covers(scan, job))
				forget_gone(scan, job);
		}
	}
	ignored_forget(a, scan);
	for (size_t i = 0; i < scan->n_found; i++) {
		struct found *f = &scan->found[i];

		/* Deleted between two looks is nothing to speak of. */
		if (f->layout && f->result == 0)
			merge(a, scan, f);
		else if (f->result < 0 && f->result != -ENOENT)
			ignore(a, f);
	}
	ignored_done(a);
}
