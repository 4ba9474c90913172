/* SPDX-License-Identifier: Apache-2.0 */
#include "disk/faults.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "agent.h"
#include "base/size.h"
#include "disk/flush.h"
#include "disk/watch.h"

#define FILES_BESIDE 3u		/* images: their directories, and its run */

static bool is_of(const struct sk_cat_job *job, enum degraded_id id)
{
	return job->fault.no_room == (id == DEGRADED_STORE_FULL);
}

static void note(struct sk_cat_snapshot *s)
{
	struct sk_cat_fault *f = &s->job->fault;
	uint64_t bytes = flush_left(s);

	sk_cat_fault_set(s->job, s->step, sk_cat_failure(s));
	/* How short the store was is known of what was short of it. */
	f->is_short &= s->no_room && bytes <= f->bytes;
	f->no_room = s->no_room;
	f->bytes = bytes;
	f->files = s->n_images + FILES_BESIDE;
}

static bool is_flushing(const struct agent *a, const struct sk_cat_job *job)
{
	const struct sk_cat_snapshot *s;

	if (!a->flush)
		return false;
	sk_link_each(s, &job->live, live) {
		if (s->flushing)
			return true;
	}
	return false;
}

static bool has_to_write(const struct agent *a, const struct sk_cat_job *job)
{
	return is_flushing(a, job) || flush_has_more(a, job);
}

void faults_mended(struct agent *a)
{
	struct sk_cat_job *job;

	sk_link_each(job, &a->cat.faults, fault.link) {
		if (!has_to_write(a, job))
			sk_cat_fault_end(job);
	}
	faults_look(a);
}

/* Where a quota was met there was room by these numbers all the time: then
 * trying alone tells. */
static bool has_come(const struct agent *a, struct sk_cat_fault *f)
{
	bool was_short = f->is_short;

	f->is_short = a->store_free < f->bytes || a->store_files < f->files;
	return was_short && !f->is_short;
}

void faults_see_room(struct agent *a)
{
	struct sk_cat_job *job;

	sk_link_each(job, &a->cat.faults, fault.link) {
		if (!job->fault.no_room || !has_come(a, &job->fault))
			continue;
		if (has_to_write(a, job))
			flush_room_came_for(a, job);
		else
			sk_cat_fault_end(job);
	}
	faults_look(a);
}

/* What could not be written may have become void: it was evicted, or
 * superseded. That proves nothing while the next is awaited, of ranks that
 * are here, or where another job has something to write: until it was tried. */
static bool is_void(struct agent *a, const struct sk_cat_job *job)
{
	return !job->n_living && !has_to_write(a, job) &&
	       (!a->store_failed || !flush_pending(a));
}

static void tell(struct agent *a, enum degraded_id id, bool on)
{
	struct sk_err why = { "" };

	if (on)
		faults_why(a, id, NULL, &why);
	degraded_is(a, id, on, why.text);
}

/* Another step of the job's that is tried again. */
static struct sk_cat_snapshot *still_failing(struct agent *a,
					     const struct sk_cat_job *job)
{
	struct sk_cat_snapshot *s;

	sk_link_each(s, &job->live, live) {
		a->cat.visits++;
		if (s->store_failed && sk_cat_flushable(s))
			return s;
	}
	return NULL;
}

/* What failed is well, or nobody's wish any more: another one's may be left. */
static void go_on(struct agent *a, struct sk_cat_job *job)
{
	struct sk_cat_snapshot *s = still_failing(a, job);

	if (s)
		note(s);
	else
		sk_cat_fault_end(job);
}

/* It is there, and not to be written: a pin that had it so is gone, or it was
 * deleted. */
static bool is_withdrawn(struct agent *a, const struct sk_cat_job *job)
{
	const struct sk_cat_snapshot *s;

	sk_link_each(s, &job->live, live) {
		a->cat.visits++;
		if (s->store_failed && s->step == job->fault.step)
			return !s->wanted && !s->flushing;
	}
	return false;
}

void faults_withdrawn(struct agent *a, struct sk_cat_job *job)
{
	if (!sk_link_empty(&job->fault.link) && is_withdrawn(a, job))
		go_on(a, job);
}

void faults_no_more(struct agent *a, struct sk_cat_job *job, int64_t step)
{
	if (sk_link_empty(&job->fault.link) || job->fault.step != step)
		return;
	go_on(a, job);
	faults_look(a);
}

void faults_look(struct agent *a)
{
	bool full = false, error = a->store_denied;
	struct sk_cat_job *job;

	sk_link_each(job, &a->cat.faults, fault.link) {
		if (is_void(a, job)) {
			sk_cat_fault_end(job);
			continue;
		}
		full |= job->fault.no_room;
		error |= !job->fault.no_room;
	}
	tell(a, DEGRADED_STORE_FULL, full);
	tell(a, DEGRADED_STORE_ERROR, error);
}

/* ---- one job's ---- */

/* Of many that fail at once each is not gone through for each: how many they
 * are the next look tells. */
void faults_met(struct agent *a, struct sk_cat_snapshot *s)
{
	enum degraded_id id = s->no_room ? DEGRADED_STORE_FULL :
					   DEGRADED_STORE_ERROR;

	a->store_failed = true;
	note(s);
	if (!degraded_on(&a->degraded, id))
		tell(a, id, true);
	watch_soon(a);
}

void faults_over(struct agent *a, struct sk_cat_job *job)
{
	if (sk_link_empty(&job->fault.link))
		return;
	go_on(a, job);
	if (sk_link_empty(&a->cat.faults))
		faults_look(a);
}

/* ---- whose it is ---- */

/* Whose, how much it takes, and how much there is. */
static void say_whose(const struct agent *a, const struct sk_cat_job *job,
		      char *buf, size_t size)
{
	const struct sk_cat_fault *f = &job->fault;
	char needs[SK_SIZE_TEXT], left[SK_SIZE_TEXT];
	int n = snprintf(buf, size, "step %" PRId64 " of job \"%s\"", f->step,
			 job->name);

	if (!f->no_room || n < 0 || (size_t)n >= size)
		return;
	(void)sk_size_format(f->bytes, needs, sizeof(needs));
	(void)sk_size_format(a->store_free, left, sizeof(left));
	(void)snprintf(buf + n, size - (size_t)n, " needs %s, and %s are free",
		       needs, left);
}

/* The first, and how many more. */
static void say_first(const struct agent *a, const struct sk_cat_job *job,
		      unsigned more, struct sk_err *ret)
{
	const struct sk_cat_fault *f = &job->fault;
	char whose[200], others[48] = "";

	say_whose(a, job, whose, sizeof(whose));
	if (more)
		(void)snprintf(others, sizeof(others), "; so it is with %u "
			       "more job%s", more, more == 1 ? "" : "s");
	(void)sk_err_set(ret, 0, "%s%s: %s", whose, others, f->text ? f->text :
			 "it could not be flushed");
}

void faults_why(const struct agent *a, enum degraded_id id, const uid_t *user,
		struct sk_err *ret_why)
{
	const struct sk_cat_job *job, *first = NULL;
	unsigned n = 0, hidden = 0;

	if (id == DEGRADED_STORE_ERROR && a->store_denied) {
		(void)sk_err_errno(ret_why, -EACCES, "%s",
				   sk_store_path(a->store));
		return;
	}
	sk_link_each(job, &a->cat.faults, fault.link) {
		if (!is_of(job, id))
			continue;
		if (user && job->uid != *user) {
			hidden++;
			continue;
		}
		if (!n++)
			first = job;
	}
	if (first)
		say_first(a, first, n + hidden - 1, ret_why);
	else
		(void)sk_err_set(ret_why, 0, "%s", hidden ?
				 "a job of another user" : "");
}
