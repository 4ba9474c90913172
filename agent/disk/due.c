/* SPDX-License-Identifier: Apache-2.0 */
/* Which snapshot is written next, and what is still to be. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "agent.h"
#include "catalogue/pins.h"
#include "catalogue/queue.h"
#include "disk/flush.h"
#include "disk/retain.h"
#include "memory/record.h"

/* A stopping agent does not wait for a disk that stays broken. */
#define TRIES_AT_STOP 3u

/* By what the disk is given: users take turns, and so do the jobs of each: who
 * writes much keeps nobody waiting for longer than one snapshot of each takes,
 * and nor do jobs that come one after the other. At the end newest first. What
 * is passed over comes after all that somebody may go back to. */
static struct sk_cat_queue_place place_of(const struct agent *a,
					  const struct sk_cat_snapshot *s)
{
	const struct sk_cat_job *job = s->job;
	uint64_t passed = sk_cat_passed_over(s);

	if (a->stopping)
		return (struct sk_cat_queue_place){
			.before = passed << 63 |
				  (INT64_MAX - s->created_ns % INT64_MAX) };
	return (struct sk_cat_queue_place){
		.before = passed,
		/* Behind all that waited when it came. */
		.turn = job->flush_turn ? job->flush_turn : job->flush_came,
		/* One has just been served, and the other came meanwhile. */
		.served = job->flush_turn,
	};
}

/* Of a job the oldest comes first, so that slots become free; at the end the
 * newest. Its own order counts: the wall clock may have been set. */
static bool goes_before(const struct agent *a, const struct sk_cat_snapshot *s,
			const struct sk_cat_snapshot *than)
{
	bool passed = sk_cat_passed_over(s);

	if (!than || passed != sk_cat_passed_over(than))
		return !than || !passed;
	return (sk_cat_order(s->run, s->run_id, s->step, than) > 0) ==
	       a->stopping;
}

static bool given_up(const struct agent *a, const struct sk_cat_snapshot *s)
{
	return a->stopping && s->failures >= TRIES_AT_STOP;
}

/* Whose time has not come yet is not looked at: jobs that fail at other times
 * do not wake each other. */
static void retry(struct timer *timer)
{
	struct agent *a = sk_link_object(timer, struct agent, flush_timer);
	uint64_t now_ns = agent_now(a);
	const struct sk_cat_snapshot *s;

	sk_link_each(s, &a->cat.failing, failing) {
		if (s->retry_ns <= now_ns)
			sk_cat_wake_for(s->job, SK_CAT_WRITE);
		else
			timer_set_by(&a->loop.timers, &a->flush_timer,
				     s->retry_ns);
	}
	agent_changed(a);
}

static bool can_be_written(struct agent *a, const struct sk_cat_snapshot *s,
			   uint64_t now_ns)
{
	if (!sk_cat_flushable(s) || given_up(a, s))
		return false;
	if (s->retry_ns <= now_ns)
		return true;
	timer_set_by(&a->loop.timers, &a->flush_timer, s->retry_ns);
	return false;
}

/* It stands in the queue with what can be written of it, before something
 * happens to it or the time of the next try has come. */
static void look_at_job(struct agent *a, struct sk_cat_job *job,
			uint64_t now_ns)
{
	struct sk_cat_snapshot *s, *best = NULL;
	struct sk_cat_queue_place place;

	a->cat.visits++;
	sk_link_each(s, &job->live, live) {
		if (can_be_written(a, s, now_ns) && goes_before(a, s, best))
			best = s;
	}
	if (!best) {
		sk_cat_queue_leave(job);
		return;
	}
	if (!job->flush_came)
		job->flush_came = a->flush_turns;
	place = place_of(a, best);
	sk_cat_queue_put(best, &place);
}

struct sk_cat_snapshot *flush_next(struct agent *a, uint64_t now_ns)
{
	struct sk_cat_snapshot *s;
	struct sk_cat_job *job;

	a->flush_timer.fire = retry;
	sk_link_each(job, &a->cat.awake[SK_CAT_WRITE], awake[SK_CAT_WRITE]) {
		sk_cat_sleep(job, SK_CAT_WRITE);
		look_at_job(a, job, now_ns);
	}
	while ((s = sk_cat_queue_first(&a->cat)) &&
	       (retain_holds(a, s->job) || !can_be_written(a, s, now_ns))) {
		/* It is looked at again the next time. */
		sk_cat_wake_for(s->job, SK_CAT_WRITE);
		sk_cat_queue_leave(s->job);
	}
	return s;
}

/* All of it that this node has in memory is on disk. */
static bool is_written(const struct sk_cat_snapshot *s)
{
	const struct sk_cat_image *image;

	if (sk_cat_on_disk(s) || !sk_cat_local(s))
		return sk_cat_on_disk(s);
	sk_link_each(image, &s->images, link) {
		if (image->kind == SK_IMAGE_PRIMARY && image->slot &&
		    (!image->stored.dir[0] || image->bad_disk))
			return false;
	}
	return true;
}

static void want(struct agent *a, struct sk_cat_snapshot *s)
{
	if (s->hopeless_on_disk || is_written(s))
		return;
	sk_cat_want(s);
	s->retry_ns = 0;
	record_snapshot(a, s);
	agent_changed(a);
}

/* One of several nodes' with what the others have, unless it was found not to
 * be. */
static bool may_be_whole(const struct sk_cat_snapshot *s)
{
	return sk_cat_complete(s) ||
	       (sk_cat_local(s) && !sk_cat_passed_over(s));
}

/* Also of a job that has nothing written: the agent ends. */
static void want_pinned(struct agent *a, struct sk_cat_job *job)
{
	struct sk_cat_snapshot *s;

	sk_link_each(s, &job->snapshots, link)
		if (s->pinned && !s->unpinning && may_be_whole(s))
			want(a, s);
}

/* Of a job on several nodes nobody here knows which step all of them have: the
 * others may be one behind the newest here, or as far as one that does not
 * count as that yet. */
void flush_newest(struct agent *a, struct sk_cat_job *job)
{
	struct sk_cat_snapshot *s, *newest = sk_cat_newest(job);
	bool complete = newest && sk_cat_complete(newest), passed = false;

	/* A newer one may turn out to be complete, or this one not to be on
	 * disk: both are known later, where they are asked now. */
	if (newest)
		(void)sk_cat_on_disk(newest);
	job->flush_due = !sk_link_empty(&job->undecided);
	if (job->flush_due)
		sk_cat_wake(job);
	if (a->store && a->stopping)
		want_pinned(a, job);
	if (!a->store || !newest)
		return;
	sk_link_each(s, &job->snapshots, link) {
		a->cat.visits++;
		if (s != newest && (!sk_cat_local(s) || sk_cat_passed_over(s)))
			continue;
		want(a, s);
		if (passed || (s == newest && complete))
			break;
		passed |= s == newest;
	}
}

/* Whenever that may be. */
bool flush_has_more(const struct agent *a, const struct sk_cat_job *job)
{
	const struct sk_cat_snapshot *s;

	if (job->flush_due && sk_cat_asking(job))
		return true;
	sk_link_each(s, &job->live, live) {
		if (sk_cat_flushable(s) && !given_up(a, s))
			return true;
	}
	return false;
}

bool flush_pending(struct agent *a)
{
	struct sk_cat_job *job;

	/* Nobody knows yet what there is of those. */
	if (a->flush || a->cat.n_unread)
		return true;
	/* The first that has something keeps its place, and is found again. */
	sk_link_each(job, &a->cat.awake[SK_CAT_FINISH], awake[SK_CAT_FINISH]) {
		a->cat.visits++;
		if (flush_has_more(a, job))
			return true;
		/* It may ask yet, of which nothing tells. */
		if (!job->flush_due)
			sk_cat_sleep(job, SK_CAT_FINISH);
	}
	return false;
}

void flush_try_anew(struct agent *a)
{
	struct sk_cat_snapshot *s;
	struct sk_cat_job *job;

	/* Only what memory has was tried. */
	sk_link_each(job, &a->cat.jobs, link) {
		sk_link_each(s, &job->live, live) {
			s->failures = 0;
			s->retry_ns = 0;
		}
		sk_cat_wake(job);
	}
	agent_changed(a);
}

/* What fails for another reason still has it, and its time. @job NULL: all. */
static void try_for_room(struct agent *a, const struct sk_cat_job *job)
{
	struct sk_cat_snapshot *s;

	sk_link_each(s, &a->cat.failing, failing) {
		a->cat.visits++;
		if (!s->no_room || (job && s->job != job))
			continue;
		s->failures = 0;
		s->retry_ns = 0;
		sk_cat_wake(s->job);
	}
	agent_changed(a);
}

void flush_room_came(struct agent *a)
{
	try_for_room(a, NULL);
}

void flush_room_came_for(struct agent *a, const struct sk_cat_job *job)
{
	try_for_room(a, job);
}

/* ---- what is lost ---- */

/* A newer run has the step's name on the store, and something to go on with:
 * nobody would go back to this one. */
static bool is_superseded(const struct sk_cat_snapshot *s,
			  const struct sk_cat_snapshot *newest)
{
	return s->hopeless_on_disk && newest && newest->run > s->run;
}

/* It was newer than what is the newest now, and is not what was sealed. */
static bool is_spoilt(const struct sk_cat_snapshot *s,
		      const struct sk_cat_snapshot *newest)
{
	const struct sk_cat_image *image;

	if (newest && sk_cat_order(s->run, s->run_id, s->step, newest) <= 0)
		return false;
	sk_link_each(image, &s->images, link)
		if (image->bad_memory && !image->stored.dir[0])
			return true;
	return false;
}

/* @newest: of its job. */
static bool is_lost(const struct agent *a, const struct sk_cat_snapshot *s,
		    const struct sk_cat_snapshot *newest)
{
	bool kept = (a->store && s->wanted && !is_superseded(s, newest)) ||
		    s == newest || s->pinned;

	if (is_spoilt(s, newest))
		return true;
	/* One that is undecided may be complete; so may one of several nodes,
	 * with what the others have, unless it was found not to be. */
	return !is_written(s) && (sk_cat_undecided(s) ||
				  (kept && may_be_whole(s)));
}

static const char *why_lost(const struct agent *a,
			    const struct sk_cat_snapshot *s)
{
	return is_spoilt(s, sk_cat_newest(s->job)) ? "it is damaged in memory" :
	       !a->store ? "the agent has no store" :
	       sk_cat_undecided(s) ? "no memory to tell whether it is complete" :
	       s->failed ? sk_cat_failure(s) : "the time was over";
}

/* "step 3 of job "a" (why), ..." as far as it goes. */
static void add_lost(const struct agent *a, const struct sk_cat_snapshot *s,
		     unsigned n, struct sk_err *err)
{
	size_t at = strlen(err->text), room = sizeof(err->text) - at;
	int most = snprintf(err->text + at, room, "%sstep %" PRId64
			    " of job \"%s\" (%s)", n ? ", " : "", s->step,
			    s->job->name, why_lost(a, s));

	if (most >= (int)room)
		strcpy(err->text + sizeof(err->text) - 4, "...");
}

unsigned flush_lost(const struct agent *a, struct sk_err *ret_err)
{
	struct sk_cat_snapshot *s, *newest;
	struct sk_err err = { "" };
	struct sk_cat_job *job;
	unsigned n = 0;

	sk_link_each(job, &a->cat.jobs, link) {
		newest = sk_cat_newest(job);
		sk_link_each(s, &job->snapshots, link) {
			if (is_lost(a, s, newest))
				add_lost(a, s, n++, &err);
		}
	}
	if (ret_err)
		*ret_err = err;
	return n;
}

static void log_lost(const struct agent *a, const struct sk_cat_snapshot *s)
{
	log_line(&a->log, a->store ? LOG_LEVEL_ERROR : LOG_LEVEL_WARNING,
		 "job \"%s\" run %" PRIu64 " step %" PRId64 " is lost with "
		 "this agent: %s", s->job->name, s->run, s->step,
		 why_lost(a, s));
}

bool flush_all_durable(const struct agent *a)
{
	struct sk_cat_snapshot *s, *newest;
	struct sk_cat_job *job;
	bool lost = a->cat.n_unread;

	if (lost)
		log_error(a, "what memory held of %u jobs was not read yet, "
			  "and is lost", a->cat.n_unread);
	sk_link_each(job, &a->cat.jobs, link) {
		newest = sk_cat_newest(job);
		sk_link_each(s, &job->snapshots, link) {
			if (!is_lost(a, s, newest))
				continue;
			log_lost(a, s);
			/* Which no flush could have helped. */
			lost |= !is_spoilt(s, newest);
		}
	}
	return !lost || !a->store;
}
