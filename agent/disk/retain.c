/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent.h"
#include "catalogue/pins.h"
#include "disk/flush.h"
#include "disk/leftover.h"
#include "disk/merge.h"
#include "disk/retaining.h"
#include "disk/watch.h"
#include "memory/record.h"

/* Who writes faster than can be deleted waits: for each that comes one goes
 * first, and two where so many are to. */
#define BEHIND 16u

static struct kept *kept_of(struct sk_cat_job *job)
{
	struct kept *kept = job->owner;

	if (kept)
		return kept;
	kept = calloc(1, sizeof(*kept));
	if (!kept)
		return NULL;
	kept->job = job;
	sk_link_init(&kept->due);
	return job->owner = kept;
}

void retain_job_gone(struct sk_cat_job *job)
{
	struct kept *kept = job->owner;

	if (kept)
		sk_link_remove(&kept->due);
	if (kept)
		pins_free(&kept->pins);
	free(kept);
	job->owner = NULL;
}

/* ---- what is said ---- */

enum sk_retention_from retain_choose(const struct agent *a, bool said,
				     enum sk_retention_from from,
				     struct sk_retention *retention,
				     const struct sk_retention *by_job)
{
	if (from == SK_RETENTION_OPERATOR || (from == SK_RETENTION_JOB &&
					      !said))
		return from;
	if (said) {
		*retention = *by_job;
		return SK_RETENTION_JOB;
	}
	*retention = a->now.retention;
	if (a->now.retention_said)
		return SK_RETENTION_AGENT;
	if (from == SK_RETENTION_NONE)
		*retention = (struct sk_retention){ 0 };
	return from;
}

enum sk_retention_from
retain_in_force(const struct agent *a, const struct sk_cat_job *job,
		enum sk_retention_from from, struct sk_retention *retention)
{
	const struct kept *kept = job->owner;
	const struct sk_retention none = { 0 };

	return retain_choose(a, kept && kept->said, from, retention,
			     kept ? &kept->retention : &none);
}

void retain_by_job(struct agent *a, struct sk_cat_job *job,
		   const struct sk_retention *retention)
{
	struct kept *kept = kept_of(job);

	if (!kept)
		return;		/* the next rank says it again */
	kept->said = true;
	kept->retention = *retention;
	retain_due(a, job);
}

bool retain_holds(const struct agent *a, const struct sk_cat_job *job)
{
	const struct retain_pass *p = a->retain ? a->retain->pass : NULL;
	const struct kept *kept = job->owner;
	unsigned going;

	if (!p || !kept || !retain_pass_is_of(p, job))
		return false;
	going = retain_pass_going(p, kept);
	return going && kept->gone < (going > BEHIND ? 2 : 1);
}

bool retain_deletes(const struct agent *a, const struct sk_cat_snapshot *s)
{
	const struct retain_pass *p = a->retain ? a->retain->pass : NULL;

	return p && retain_pass_deletes(p, s);
}

/* Some job's steps are looked at soon. One whose ranks restore may be held for
 * minutes. */
static bool is_any_due(const struct agent *a)
{
	const struct kept *kept;

	sk_link_each(kept, &a->retain->due, due) {
		struct hold hold = kept->hold;

		if (!hold_stands(&hold, kept->job, agent_now(a)))
			return true;
	}
	return false;
}

bool retain_makes_room(const struct agent *a)
{
	return a->leftover || (a->retain && (a->retain->pass ||
					     is_any_due(a)));
}

void retain_flush_begins(struct sk_cat_job *job)
{
	struct kept *kept = job->owner;

	if (kept)
		kept->gone = 0;
}

/* ---- what is gone ---- */

/* What memory has of it stays, is written no more, and pinned no more: only a
 * word that went over the pin had it deleted. One that came since, of what
 * memory alone was known to have, is no such pin: for it the step is written
 * anew. */
static void lose_pin(struct sk_cat_snapshot *s, unsigned pins)
{
	s->wanted = s->wanted_by_pin = s->pin_stored = false;
	s->was_pinned = s->pinned && s->pins != pins && !s->pinning;
	s->pinned = s->pinning > 0 || s->was_pinned;
	s->pin_failed &= s->pinned;
	sk_cat_wake(s->job);
}

void retain_forget(struct agent *a, const char *name, uid_t uid,
		   const struct sk_store_run *run, int64_t step,
		   const char *dir, unsigned pins)
{
	struct sk_cat_job *job = sk_cat_job_find(&a->cat, name, uid);
	struct sk_cat_snapshot *s;
	struct sk_cat_image *image;
	bool pinned;

	watch_soon(a);
	/* A look that is being taken over may have seen it. */
	merge_deleted(a, name, dir);
	s = job ? sk_cat_snapshot_find(job, run->number, run->id, step) : NULL;
	if (!s)
		return;
	lose_pin(s, pins);
	pinned = s->pinned;
	record_snapshot(a, s);
	/* The last image may take the snapshot with it. */
	s->filling++;
	sk_link_each(image, &s->images, link) {
		if (strcmp(image->stored.dir, dir) == 0)
			sk_cat_stored_remove(image);
	}
	s->filling--;
	if (pinned && sk_cat_want_pinned(s))
		agent_changed(a);
	(void)sk_cat_snapshot_trim(s);
}

void retain_unpinned(struct sk_cat_job *job, uint64_t run_id, int64_t step)
{
	struct kept *kept = job->owner;

	if (kept)
		pins_forget(&kept->pins, run_id, step);
}

/* ---- which job ---- */

bool retain_ends(struct agent *a)
{
	return a->quit || (a->stopping && !flush_pending(a));
}

bool retain_is_held(struct agent *a, struct sk_cat_job *job)
{
	struct kept *kept = kept_of(job);

	return kept && hold_stands(&kept->hold, job, agent_now(a));
}

static struct sk_cat_job *job_due(struct agent *a)
{
	uint64_t now = agent_now(a), soonest = UINT64_MAX;
	struct kept *kept;

	sk_link_each(kept, &a->retain->due, due) {
		a->cat.visits++;
		if (retain_is_held(a, kept->job))
			continue;
		if (kept->again_ns <= now)
			return kept->job;
		if (kept->again_ns < soonest)
			soonest = kept->again_ns;
	}
	if (soonest != UINT64_MAX)
		timer_set(&a->loop.timers, &a->retain->again, soonest);
	return NULL;
}

void retain_next(struct agent *a)
{
	struct sk_cat_job *job;

	if (a->retain->pass || retain_ends(a))
		return;
	job = job_due(a);
	if (job)
		retain_pass_begin(a, job);
}

static void due_again(struct timer *timer)
{
	retain_next(sk_link_object(timer, struct retain, again)->agent);
}

void retain_go_on(struct agent *a, const char *name)
{
	struct sk_cat_jobs jobs = sk_cat_jobs_named(&a->cat, name);
	struct sk_cat_job *job;

	while ((job = sk_cat_jobs_next(&jobs))) {
		struct kept *kept = job->owner;

		if (kept)
			kept->again_ns = 0;
	}
	if (a->retain)
		retain_next(a);
}

void retain_line_up(struct agent *a, struct kept *kept)
{
	if (sk_link_empty(&kept->due))
		sk_link_insert(&a->retain->due, &kept->due);
}

static void job_is_due(struct agent *a, struct sk_cat_job *job)
{
	struct kept *kept = kept_of(job);

	if (kept)
		retain_line_up(a, kept);
}

void retain_due(struct agent *a, struct sk_cat_job *only)
{
	struct sk_cat_job *job;

	if (!a->retain)
		return;
	if (only) {
		job_is_due(a, only);
	} else {
		sk_link_each(job, &a->cat.jobs, link)
			job_is_due(a, job);
	}
	retain_next(a);
}

int retain_open(struct agent *a, struct sk_err *err)
{
	int r;

	a->retain = calloc(1, sizeof(*a->retain));
	if (!a->retain)
		return sk_err_set(err, -ENOMEM, "out of memory");
	a->retain->agent = a;
	a->retain->again.fire = due_again;
	sk_link_init(&a->retain->due);
	r = sk_pool_new(1, -1, "sk-keep", &a->keeping, err);
	return r;
}

void retain_close(struct agent *a)
{
	struct retain_pass *p = a->retain ? a->retain->pass : NULL;

	a->keeping = sk_pool_free(a->keeping);
	leftover_close(a);
	if (p)
		retain_pass_free(p);	/* it rests, or counts */
	if (a->retain)
		timer_clear(&a->loop.timers, &a->retain->again);
	free(a->retain);
	a->retain = NULL;
}
