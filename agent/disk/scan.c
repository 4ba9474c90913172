/* SPDX-License-Identifier: Apache-2.0 */
/* One look at the store: names first, then the newest directories, then those
 * headers in them that are new. */
#include "disk/scan.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "agent.h"
#include "base/array.h"
#include "disk/histories.h"
#include "disk/ignored.h"
#include "disk/passed.h"
#include "disk/scan-file.h"

int file_key_compare(const void *a, const void *b)
{
	const struct file_key *x = a, *y = b;
	int order = strcmp(x->job, y->job);

	order = order ? order : strcmp(x->dir, y->dir);
	order = order ? order : (x->rank > y->rank) - (x->rank < y->rank);
	return order ? order : (x->world > y->world) - (x->world < y->world);
}

struct file_key file_key_of(const struct sk_stored *stored)
{
	struct file_key key = { .rank = stored->rank,
				.world = stored->world,
				.file = stored->file };

	memcpy(key.job, stored->job, sizeof(key.job));
	memcpy(key.dir, stored->dir, sizeof(key.dir));
	return key;
}

/* ---- the answer ---- */

/* Another one in the answer, of the job. */
static struct found *add_found(struct scan *scan, const char *job)
{
	struct found *f;

	if (sk_array_fit(scan->found, scan->room, scan->n_found + 1) < 0)
		return NULL;
	f = &scan->found[scan->n_found++];
	*f = (struct found){ .stored.rank = -1 };
	(void)snprintf(f->stored.job, sizeof(f->stored.job), "%s", job);
	return f;
}

static void note_damaged(struct scan *scan, const struct found *f)
{
	const struct sk_stored *stored = &f->stored;

	if (!scan->unreadable++)
		(void)sk_err_set(&scan->first, -EBADMSG, "%s/%s/%s, rank %"
				 PRId32 " of %" PRId32 ", is damaged: %s",
				 sk_store_path(scan->agent->store),
				 stored->job, stored->dir, stored->rank,
				 stored->world, f->err.text[0] ? f->err.text :
				 "the log says how");
}

/* -EMFILE and its like are this process's trouble: all else would fail for
 * it too, and look as if it were not there. */
static int note_result(struct scan *scan, const struct found *f)
{
	if (f->result == -EMFILE || f->result == -ENFILE ||
	    f->result == -ENOMEM) {
		scan->err = f->err;
		return f->result;
	}
	if (found_damaged(f))
		note_damaged(scan, f);
	else if (found_unreadable(f) && !scan->unreadable++)
		scan->first = f->err;
	return 0;
}

static int owner_of(struct scan *scan, const char *job, bool exists,
		    uid_t *ret_owner)
{
	struct agent *a = scan->agent;
	int r;

	*ret_owner = a->uid;
	r = sk_store_owner(a->store, job, ret_owner, &scan->err);
	if (r < 0 && r != -ENOENT)
		return r;
	if (r == 0 || exists)
		scan->owner = *ret_owner;
	return 0;
}

enum scan_seen scan_seen(const struct scan *scan, const char *job,
			 const char *dir, struct sk_store_run *ret_run)
{
	const struct sk_history *h = histories_find(scan->agent, job);
	const struct sk_history_step *s = h ? sk_history_find(h, dir) : NULL;

	if (!s)
		return SCAN_GONE;
	/* What is not proved contradicts nobody. */
	*ret_run = s->unproved ? (struct sk_store_run){ 0 } : s->run;
	return s->mark == scan->mark ? SCAN_INSIDE : SCAN_NAMED;
}

/* ---- one job ---- */

static bool is_asked(const struct stored_range *range,
		     const struct sk_history_step *s)
{
	return (range->step < 0 || s->step == (uint64_t)range->step) &&
	       (!range->run || !s->run.number || s->run.number == range->run);
}

/* Those that are looked into, marked; NULL: no memory. */
static struct sk_history_step **choose(struct scan *scan,
				       const struct sk_history *h,
				       size_t *ret_n)
{
	size_t all = sk_history_count(h), left = scan->range.most, n = 0;
	struct sk_history_step **steps = calloc(all + 1, sizeof(*steps));

	for (size_t i = 0; i < all && steps && !scan->end.more; i++) {
		struct sk_history_step *s = sk_history_at(h, i);

		if (!is_asked(&scan->range, s))
			continue;
		/* What nobody knows the run of may be the newest. */
		scan->end.more = s->run.number && !left;
		if (scan->end.more)
			continue;
		left -= s->run.number > 0;
		s->mark = scan->mark;
		steps[n++] = s;
		scan->end.run = s->run;
		scan->end.step = s->step;
	}
	*ret_n = n;
	return steps;
}

/* That could not be read whose it is, though what is in it, or nothing, may
 * have been read since. */
static void note_nobodys(struct scan *scan, const char *job,
			 const struct sk_history_step *s)
{
	char dir[SK_STEP_DIR_MAX];

	if (scan->unreadable)
		return;
	sk_history_name(s, dir);
	(void)sk_err_errno(&scan->first, s->error, "cannot tell the run of "
			   "%s/%s/%s", sk_store_path(scan->agent->store), job,
			   dir);
	scan->unreadable = 1;
}

/* Runs are known of directories that are not looked into, too. One of which it
 * is not may be the newest. */
static void note_newest(struct scan *scan, const struct sk_history *h)
{
	for (size_t i = 0; i < sk_history_count(h); i++) {
		const struct sk_history_step *s = sk_history_at(h, i);

		if (s->error)
			note_nobodys(scan, sk_history_job(h), s);
		if (s->run.number > scan->newest_run)
			scan->newest_run = s->run.number;
		if (s->run.number)
			return;		/* the others' are older */
	}
}

/* The same, when each is known to be what it is taken for; a look goes wrong
 * as one that is too short. */
static int choose_proved(struct scan *scan, struct sk_history *h,
			 struct sk_history_step ***ret_steps, size_t *ret_n)
{
	struct stored_end none = scan->end;
	bool others = true;
	int r = 0;

	while (others && r == 0) {
		struct sk_history_step **steps;

		scan->end = none;
		steps = choose(scan, h, ret_n);
		if (!steps)
			return sk_err_set(&scan->err, -ENOMEM, "no memory to "
					  "look at job \"%s\"",
					  sk_history_job(h));
		r = sk_history_prove(h, scan->agent->store, steps, *ret_n,
				     &others, &scan->err);
		for (size_t i = 0; i < *ret_n && others; i++)
			steps[i]->mark = 0;
		if (others || r < 0)
			free(steps);
		else
			*ret_steps = steps;
	}
	return r;
}

static int look_into(struct scan *scan, struct sk_history *h, uid_t owner)
{
	_cleanup_free_ struct sk_history_step **steps = NULL;
	_cleanup_free_ struct sk_stored *images = NULL;
	const char *job = sk_history_job(h);
	struct sk_history_step *step = NULL;
	size_t n_steps = 0, n = 0;
	int r;

	r = choose_proved(scan, h, &steps, &n_steps);
	if (r < 0)
		return r;
	r = sk_history_scan(h, scan->agent->store, steps, n_steps, &images, &n,
			    &scan->err);
	for (size_t i = 0; i < n && r == 0; i++) {
		struct found *f = add_found(scan, job);

		if (!f)
			return sk_err_set(&scan->err, -ENOMEM, "no memory for "
					  "%zu images", n);
		f->stored = images[i];
		f->owner = owner;
		/* They come directory by directory. */
		if (!i || strcmp(images[i].dir, images[i - 1].dir) != 0)
			step = sk_history_find(h, images[i].dir);
		f->step = step;
		scan_look_at(scan, h, f);
		r = note_result(scan, f);
	}
	return r;
}

/* Of so many steps, and so many files, what was noted is kept. */
#define NOTED_STEPS 64u
#define NOTED_FILES 65536u

/* Of the newest, and of those that somebody has just asked for. */
static void trim_noted(const struct scan *scan, const struct sk_history *h)
{
	size_t files = 0;

	for (size_t i = 0; i < sk_history_count(h); i++) {
		struct sk_history_step *s = sk_history_at(h, i);

		if (s->mark == scan->mark)
			sk_history_briefs_forget(s);
		else if (i >= NOTED_STEPS ||
			 files + s->n_files > NOTED_FILES)
			sk_history_files_forget(s);
		files += s->n_files;
	}
}

static int scan_job(struct scan *scan, const char *job)
{
	struct sk_history *h = histories_get(scan->agent, job);
	uid_t owner;
	int r;

	if (!h)
		return sk_err_set(&scan->err, -ENOMEM, "no memory to look at "
				  "job \"%s\"", job);
	wrote_doubt(&scan->wrote, h);
	r = sk_history_look(h, scan->agent->store, &scan->err);
	if (r == 0)
		r = owner_of(scan, job, sk_history_count(h), &owner);
	if (r == 0) {
		wrote_note(&scan->wrote, h);
		r = look_into(scan, h, owner);
		note_newest(scan, h);
		if (r == 0 && scan->counts && census_names(h, &scan->census))
			r = sk_err_set(&scan->err, -ENOMEM, "no memory to "
				       "count the steps of job \"%s\"", job);
		if (r == 0)
			trim_noted(scan, h);
	}
	scan->learnt |= sk_history_unsaved(h);
	scan->unproved |= sk_history_unproved(h) > 0;
	histories_trim(scan->agent, h);
	return r;
}

/* One job that cannot be looked at hides no other one. */
static int scan_one_of_all(struct scan *scan, const char *job)
{
	int r = scan_job(scan, job);
	struct found *f = r < 0 ? add_found(scan, job) : NULL;

	if (!f)
		return r;
	f->result = r;
	f->err = scan->err;
	return note_result(scan, f);
}

struct missing {
	char **jobs;			/* that the store has, by name */
	size_t n_jobs;
	struct sk_history **v;		/* of those that it has no more */
	size_t n, room;
	int result;
};

static int compare_jobs(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static void note_missing(void *ctx, struct sk_history *h)
{
	struct missing *m = ctx;
	const char *job = sk_history_job(h);

	if (m->n_jobs && bsearch(&job, m->jobs, m->n_jobs, sizeof(job),
				 compare_jobs))
		return;
	if (sk_array_fit(m->v, m->room, m->n + 1) < 0)
		m->result = -ENOMEM;
	else
		m->v[m->n++] = h;
}

/* Of a job whose directory is gone all is: no look at the others tells. */
static void scan_missing(struct scan *scan, char **jobs, size_t n_jobs)
{
	struct missing m = { .jobs = jobs, .n_jobs = n_jobs };
	char job[SK_JOB_MAX + 1];

	histories_each(scan->agent, note_missing, &m);
	if (m.result < 0)
		scan->result = sk_err_set(&scan->err, m.result, "no memory to "
					  "look for jobs that are gone");
	for (size_t i = 0; i < m.n && scan->result == 0; i++) {
		(void)snprintf(job, sizeof(job), "%s", sk_history_job(m.v[i]));
		scan->result = scan_one_of_all(scan, job);
	}
	free(m.v);
}

static void scan_all(struct scan *scan)
{
	char **jobs = NULL;
	size_t n = 0;

	scan->result = sk_store_jobs(scan->agent->store, &jobs, &n,
				     &scan->err);
	if (scan->result == 0)
		scan_missing(scan, jobs, n);
	for (size_t i = 0; i < n; i++) {
		if (scan->result == 0)
			scan->result = scan_one_of_all(scan, jobs[i]);
		free(jobs[i]);
	}
	free(jobs);
}

/* By the names alone, as found_find() looks. */
static int found_compare(const void *a, const void *b)
{
	const struct found *x = a, *y = b;
	struct file_key kx = file_key_of(&x->stored);
	struct file_key ky = file_key_of(&y->stored);

	return file_key_compare(&kx, &ky);
}

void scan_run(struct work *work)
{
	struct scan *scan = sk_link_object(work, struct scan, work);

	ignored_sort(scan->agent);
	passed_sort(scan->agent);
	if (scan->restores)
		scan->told = sk_store_restoring(scan->agent->store, scan->job,
						&scan->untold);
	if (scan->job[0])
		scan->result = scan_job(scan, scan->job);
	else
		scan_all(scan);
	/* Whatever it was: the store cannot be read, and the sentence says
	 * why. */
	if (scan->result < 0)
		scan->result = -EIO;
	if (scan->n_found)
		qsort(scan->found, scan->n_found, sizeof(*scan->found),
		      found_compare);
	ignored_forget(scan->agent, scan);
	passed_forget(scan->agent, scan);
}

void scan_drop(struct scan *scan)
{
	assert(sk_link_empty(&scan->wishes));
	for (size_t i = 0; i < scan->n_found; i++)
		sk_layout_free(scan->found[i].layout);
	wrote_free(&scan->wrote);
	census_free(&scan->census);
	free(scan->found);
}
