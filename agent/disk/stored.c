/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From what a look at the store has found to what the catalogue says, and
 * from wishes to looks.
 */
#include "disk/stored.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "agent.h"
#include "disk/histories.h"
#include "disk/ignored.h"
#include "disk/index.h"
#include "disk/scan.h"

/* Of a job, in memory and on disk. */
#define KNOWN_MOST 64u
/* Who was told of older ones may come back to them so long. */
#define ASKED_NS (UINT64_C(30) * 1000000000)
#define LEAVE_AT_ONCE 64u

void stored_name(const struct sk_cat_image *image, struct sk_stored *ret)
{
	const struct sk_cat_snapshot *s = image->snapshot;
	struct sk_stored stored = {
		.step = (uint64_t)s->step, .rank = image->rank,
		.world = s->world,
		.run = { s->run, s->run_id }, .file = image->stored.file,
	};

	memcpy(stored.job, s->job->name, sizeof(stored.job));
	memcpy(stored.dir, image->stored.dir, sizeof(stored.dir));
	*ret = stored;
}

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

/* What the disk had and has no more; but not what came since the look. */
static void forget_gone(struct scan *scan, struct sk_cat_job *job)
{
	struct sk_cat_snapshot *s;
	struct sk_cat_image *image;

	sk_link_each(s, &job->snapshots, link) {
		s->filling++;	/* keeps it while its images go */
		sk_link_each(image, &s->images, link) {
			if (image->stored.dir[0] &&
			    image->stored.serial <= scan->serial &&
			    !still_there(scan, image))
				sk_cat_stored_remove(image);
		}
		s->filling--;
		(void)sk_cat_snapshot_trim(s);
	}
}

static bool is_of(const struct scan *scan, const struct sk_cat_job *job)
{
	return !scan->job[0] || strcmp(job->name, scan->job) == 0;
}

static void merge_all(struct agent *a, struct scan *scan)
{
	struct sk_cat_job *job;

	if (scan->result == 0) {
		sk_link_each(job, &a->cat.jobs, link) {
			if (is_of(scan, job))
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

/* The wish may be gone after it. */
static void grant(const struct scan *scan, struct stored_wish *w)
{
	struct sk_err err = scan->err;
	int r = scan->result;

	if (r == 0 && w->enters && scan->owner != (uid_t)-1 &&
	    scan->owner != w->uid)
		r = sk_err_set(&err, -EACCES, "the store holds a job \"%s\" of "
			       "another user; choose another name", w->job);
	if (w->range.most)
		scan->agent->asked_ns = agent_now(scan->agent);
	w->end = scan->end;
	w->newest_run = scan->newest_run;
	w->unreadable = scan->unreadable;
	w->first = scan->first;
	w->granted(w, r, &err);
}

/* One by one off the list: what is granted may wish anew. */
static void grant_all(struct scan *scan)
{
	while (!sk_link_empty(&scan->wishes)) {
		struct stored_wish *w = sk_link_object(scan->wishes.next,
						       struct stored_wish,
						       link);

		sk_link_remove(&w->link);
		grant(scan, w);
	}
}

static void scan_finished(struct work *work)
{
	struct scan *scan = sk_link_object(work, struct scan, work);
	struct agent *a = scan->agent;

	assert(a->scanning);
	a->scanning = false;
	merge_all(a, scan);
	grant_all(scan);
	if (scan->learnt)
		index_changed(a, NULL);
	scan_free(scan);
	agent_changed(a);
	stored_go_on(a);
}

/* ---- the next look ---- */

static size_t count_known(const struct agent *a, const struct scan *scan)
{
	const struct sk_cat_snapshot *s;
	const struct sk_cat_job *job;
	size_t n = a->n_ignored;

	sk_link_each(job, &a->cat.jobs, link) {
		if (!is_of(scan, job))
			continue;
		sk_link_each(s, &job->snapshots, link)
			n += s->n_images;
	}
	return n;
}

static void add_known(struct scan *scan, const struct sk_cat_job *job)
{
	const struct sk_cat_snapshot *s;
	const struct sk_cat_image *image;
	struct sk_stored stored;

	sk_link_each(s, &job->snapshots, link)
	sk_link_each(image, &s->images, link) {
		if (!image->stored.dir[0])
			continue;
		stored_name(image, &stored);
		scan->known[scan->n_known++] = file_key_of(&stored);
	}
}

/* What need not be read. */
static int list_known(struct agent *a, struct scan *scan)
{
	const struct sk_cat_job *job;

	scan->known = calloc(count_known(a, scan) + 1, sizeof(*scan->known));
	if (!scan->known)
		return -ENOMEM;
	if (a->n_ignored)
		memcpy(scan->known, a->ignored,
		       a->n_ignored * sizeof(*scan->known));
	scan->n_known = a->n_ignored;
	sk_link_each(job, &a->cat.jobs, link) {
		if (is_of(scan, job))
			add_known(scan, job);
	}
	return 0;
}

static bool same_range(const struct stored_range *a,
		       const struct stored_range *b)
{
	return a->most == b->most && a->run == b->run && a->step == b->step;
}

/* All that wish the same are served by one look. */
static void take_wishes(struct agent *a, struct scan *scan)
{
	const struct stored_wish *first;
	struct stored_wish *w;

	first = sk_link_object(a->wishes.next, struct stored_wish, link);
	memcpy(scan->job, first->job, sizeof(scan->job));
	scan->range = first->range;
	sk_link_each(w, &a->wishes, link) {
		if (strcmp(w->job, scan->job) != 0 ||
		    !same_range(&w->range, &scan->range))
			continue;
		sk_link_remove(&w->link);
		sk_link_insert(&scan->wishes, &w->link);
	}
}

static void scan_init(struct agent *a, struct scan *scan)
{
	*scan = (struct scan){
		.agent = a, .serial = a->cat.serial, .owner = (uid_t)-1,
		.mark = ++a->looks,
		.work = { .run = scan_run, .finish = scan_finished },
	};
	sk_link_init(&scan->wishes);
	take_wishes(a, scan);
}

/* Those that the look was for are told; the others' turn comes. */
static void refuse_scan(struct agent *a)
{
	struct scan scan;

	scan_init(a, &scan);
	scan.result = sk_err_set(&scan.err, -ENOMEM, "no memory to look at "
				 "the store");
	grant_all(&scan);
}

static void scan_begin(struct agent *a)
{
	struct scan *scan = malloc(sizeof(*scan));

	if (!scan) {
		refuse_scan(a);
		return;
	}
	scan_init(a, scan);
	a->scanning = true;
	/* Without it more is read, and nothing goes wrong. */
	if (list_known(a, scan) < 0)
		scan->n_known = 0;
	work_submit(&a->loop.works, a->slow, &scan->work);
}

/* One at a time; the index is seldom due, and does not wait for all others. */
void stored_go_on(struct agent *a)
{
	while (!a->quit && !a->scanning &&
	       (index_is_due(a) || !sk_link_empty(&a->wishes))) {
		if (index_is_due(a))
			index_begin(a);
		else
			scan_begin(a);
	}
}

void stored_scan(struct agent *a, struct stored_wish *wish)
{
	struct sk_err err = { "" };

	assert(wish->granted);
	sk_link_init(&wish->link);
	if (!a->store) {
		wish->granted(wish, 0, &err);
		return;
	}
	sk_link_insert(&a->wishes, &wish->link);
	stored_go_on(a);
}

/* ---- what need not be known ---- */

static void time_to_leave(struct timer *timer)
{
	struct agent *a = sk_link_object(timer, struct agent, leave_timer);

	stored_leave(a);
}

void stored_leave(struct agent *a)
{
	uint64_t now = agent_now(a), due = a->asked_ns + ASKED_NS;
	struct sk_cat_job *job;
	bool more = false;

	if (!a->store || a->quit)
		return;
	sk_link_each(job, &a->cat.jobs, link) {
		if (job->n_snapshots <= KNOWN_MOST)
			continue;
		if (a->asked_ns && now < due)
			more = true;
		else
			more |= sk_cat_stored_leave(job, KNOWN_MOST,
						    LEAVE_AT_ONCE) > 0;
	}
	a->leave_timer.fire = time_to_leave;
	if (more)
		timer_set(&a->loop.timers, &a->leave_timer,
			  now < due ? due : now + 1);
}

static void foreseen(struct stored_wish *wish, int r, const struct sk_err *err)
{
	(void)r;
	(void)err;	/* who asks is told */
	free(wish);
}

void stored_foresee(struct agent *a, const struct sk_cat_job *job)
{
	struct stored_wish *w = calloc(1, sizeof(*w));

	if (!w)
		return;
	*w = (struct stored_wish){
		.granted = foreseen, .range.step = -1, .uid = job->uid,
	};
	memcpy(w->job, job->name, sizeof(w->job));
	stored_scan(a, w);
}

void stored_close(struct agent *a)
{
	struct sk_err err;

	(void)sk_err_set(&err, -ESHUTDOWN, "the agent ends");
	while (!sk_link_empty(&a->wishes)) {
		struct stored_wish *w = sk_link_object(a->wishes.next,
						       struct stored_wish,
						       link);

		sk_link_remove(&w->link);
		w->granted(w, -ESHUTDOWN, &err);
	}
	free(a->ignored);
	a->ignored = NULL;
	histories_free(a);
	timer_clear(&a->loop.timers, &a->leave_timer);
}
