/* SPDX-License-Identifier: Apache-2.0 */
/* One look at the store, a portion at a time. */
#include "disk/scan.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "agent.h"
#include "base/array.h"
#include "disk/histories.h"
#include "disk/ignored.h"
#include "disk/passed.h"
#include "disk/scan-job.h"

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

bool scan_has_room(const struct scan *scan)
{
	return scan->spent < SCAN_PORTION;
}

/* Of all jobs, none that was over when the portion began. */
static bool is_to_come(const struct scan *scan, const char *job)
{
	int order = strcmp(job, scan->from);

	return order > 0 || (order == 0 && scan->again);
}

bool scan_has_reached(const struct scan *scan, const char *job)
{
	return scan->job[0] ||
	       (is_to_come(scan, job) &&
		(!scan->partial || strcmp(job, scan->to) <= 0));
}

/* One job that cannot be looked at hides no other one. */
static int scan_one_of_all(struct scan *scan, const char *job)
{
	int r = scan_job(scan, job, scan->again &&
				    strcmp(job, scan->from) == 0);
	struct found *f = r < 0 ? scan_add(scan, job) : NULL;

	if (!f)
		return r;
	f->result = r;
	f->err = scan->err;
	return scan_note(scan, f);
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

static void scan_next(struct scan *scan, const char *job)
{
	scan->partial = !scan_has_room(scan);
	if (scan->partial)
		return;
	scan->result = scan_one_of_all(scan, job);
	scan->spent++;
	scan->partial = scan->cut;
	(void)snprintf(scan->to, sizeof(scan->to), "%s", job);
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
		if (scan->result == 0 && !scan->partial &&
		    is_to_come(scan, jobs[i]))
			scan_next(scan, jobs[i]);
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

/* What the catalogue has is done with; what is wrong with the rest is told. */
static void keep_troubles(struct scan *scan)
{
	size_t n = 0;

	for (size_t i = 0; i < scan->n_found; i++) {
		struct found *f = &scan->found[i];

		f->layout = sk_layout_free(f->layout);
		if (f->known)
			continue;
		/* That is ignored by now. */
		if (f->result < 0 && !found_unreadable(f))
			f->result = 0;
		f->told = true;
		f->step = NULL;		/* another look may have moved it */
		scan->found[n++] = *f;
	}
	scan->n_found = n;
}

static void begin_portion(struct scan *scan)
{
	keep_troubles(scan);
	memcpy(scan->from, scan->to, sizeof(scan->from));
	scan->again = scan->resumed && scan->cut;
	scan->place = scan->end;
	scan->partial = scan->cut = false;
	scan->spent = 0;
}

void scan_run(struct work *work)
{
	struct scan *scan = sk_link_object(work, struct scan, work);

	begin_portion(scan);
	ignored_sort(scan->agent);
	passed_sort(scan->agent);
	if (scan->restores && !scan->resumed)
		scan->told = sk_store_restoring(scan->agent->store, scan->job,
						&scan->untold);
	if (scan->job[0]) {
		scan->result = scan_job(scan, scan->job, scan->resumed);
		scan->partial = scan->cut;
	} else {
		scan_all(scan);
	}
	/* Whatever it was: the store cannot be read, and the sentence says
	 * why. */
	if (scan->result < 0)
		scan->result = -EIO;
	scan->partial &= scan->result == 0;
	if (scan->n_found)
		qsort(scan->found, scan->n_found, sizeof(*scan->found),
		      found_compare);
	if (scan->partial)
		return;
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
