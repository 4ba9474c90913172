/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent.h"
#include "catalogue/kept.h"
#include "catalogue/pins.h"
#include "disk/census.h"
#include "disk/flush.h"
#include "disk/index.h"
#include "disk/retaining.h"
#include "disk/stored.h"
#include "memory/record.h"
#include "disk/tally.h"

/* Step directories that are looked into at first, beyond those that stay. */
#define LOOK_BEYOND 8u
#define LOOK_MOST 24u
/* Deleting takes at most a fifth of the time, unless there is much to do. */
#define REST_TIMES 4u
#define REST_LEAST_NS UINT64_C(1000000)
#define MUCH 4u
/* Images that are counted in one turn. */
#define PORTION 512u
/* Of who restores at another agent nobody hears that they are done. */
#define AGAIN_NS (5 * UINT64_C(1000000000))

/* A look at one job, and the deletions that follow. While its work is out,
 * the background has from, file, result and err, then census, tally, newest
 * and short, and of what is deleted the answer. */
struct retain_pass {
	struct work work;
	struct stored_wish wish;
	struct timer rest;
	struct agent *agent;
	char job[SK_JOB_MAX + 1];
	uid_t uid;
	bool said;
	struct sk_retention retention;	/* said; then the one in force */
	enum sk_retention_from from;	/* as the store's file says */
	struct sk_retention file;
	struct sk_staying staying;	/* as another of its files says */
	bool deleting;			/* the step at .at, in the background */
	struct census census;
	struct pins pins;
	struct chore chore;		/* while it is counted: */
	struct tally *tally;
	bool is_short;			/* more is to be looked into */
	size_t at;			/* of it: what is deleted */
	size_t left;			/* before it; the oldest go first */
	unsigned deleted;
	unsigned going;			/* that are to be, yet */
	bool judged;
	const struct sk_retain_step *newest;	/* complete one; NULL */
	uint64_t began_ns;
	uint32_t looks;			/* the agent's, then */
	unsigned pinned;		/* of the step, then */
	int result;
	struct sk_err err;
};

static struct sk_cat_job *job_of(const struct retain_pass *p)
{
	return sk_cat_job_find(&p->agent->cat, p->job, p->uid);
}

static void forget_census(struct retain_pass *p)
{
	census_free(&p->census);
	pins_free(&p->pins);
	p->tally = tally_free(p->tally);
}

void retain_pass_free(struct retain_pass *p)
{
	forget_census(p);
	sk_link_remove(&p->chore.link);
	timer_clear(&p->agent->loop.timers, &p->rest);
	free(p);
}

static void end_pass(struct retain_pass *p)
{
	struct agent *a = p->agent;

	assert(a->retain->pass == p);
	a->retain->pass = NULL;
	if (p->deleted)
		flush_room_came(a);
	retain_pass_free(p);
	retain_next(a);
	/* A flush may have waited for what there was not to delete. */
	agent_changed(a);
}

/* Ranks restore, here or elsewhere. */
static void end_for_now(struct retain_pass *p)
{
	struct sk_cat_job *job = job_of(p);
	struct kept *kept = job ? job->owner : NULL;

	if (kept) {
		retain_line_up(p->agent, kept);
		kept->again_ns = agent_now(p->agent) + AGAIN_NS;
	}
	end_pass(p);
}

static void delete_next(struct retain_pass *p);

static void rested(struct timer *timer)
{
	delete_next(sk_link_object(timer, struct retain_pass, rest));
}

static void delete_step(struct work *work)
{
	struct retain_pass *p = sk_link_object(work, struct retain_pass, work);
	const struct sk_retain_step *s = &p->census.steps[p->at];
	const struct sk_store_run run = { s->run, s->run_id };

	p->result = sk_store_retire(p->agent->store, p->job,
				    p->census.dirs[p->at], &run, &p->err);
}

static struct sk_cat_snapshot *snapshot_at(const struct retain_pass *p)
{
	const struct sk_retain_step *s = &p->census.steps[p->at];
	struct sk_cat_job *job = job_of(p);

	return job ? sk_cat_snapshot_find(job, s->run, s->run_id, s->step) :
		     NULL;
}

/* Another agent has pinned it, or this one before it was started. */
static void note_pinned(const struct retain_pass *p)
{
	const struct sk_cat_job *job = job_of(p);
	struct sk_cat_snapshot *s = snapshot_at(p);

	/* Its owner may have unpinned it since. */
	if (s && (s->unpinning || s->unpinned_at >= p->looks))
		return;
	if (s) {
		s->pinned = s->pin_stored = true;
		s->pin_stored_at = p->agent->looks;
		(void)sk_cat_want_pinned(s);
		record_snapshot(p->agent, s);
	} else if (job && job->owner) {
		pins_note(&((struct kept *)job->owner)->pins,
			  &p->census.steps[p->at]);
	}
}

static void note_deleted(struct retain_pass *p)
{
	const struct sk_retain_step *s = &p->census.steps[p->at];
	const struct sk_store_run run = { s->run, s->run_id };
	struct agent *a = p->agent;
	struct sk_cat_job *job = job_of(p);

	if (job && job->owner)
		((struct kept *)job->owner)->gone++;
	index_changed(a, p->job);
	if (p->result == 0) {
		retain_forget(a, p->job, p->uid, &run, s->step,
			      p->census.dirs[p->at], p->pinned);
		p->deleted++;
		a->counts.retired++;
		log_info(a, "job \"%s\" run %" PRIu64 " step %" PRId64
			 " is deleted from disk, as what stays is said by %s",
			 p->job, s->run, s->step,
			 sk_retention_from_name(p->from));
	} else if (p->result == -EBUSY) {
		note_pinned(p);
	} else if (p->result != -ENOENT && p->result != -ESTALE &&
		   p->result != -EAGAIN) {
		a->counts.retire_errors++;
		log_error(a, "%s", p->err.text);
	}
	agent_changed(a);
}

static void step_deleted(struct work *work)
{
	struct retain_pass *p = sk_link_object(work, struct retain_pass, work);
	struct agent *a = p->agent;
	uint64_t took = agent_now(a) - p->began_ns;

	p->deleting = false;
	note_deleted(p);
	if (retain_ends(a) || p->result == -EAGAIN) {
		end_for_now(p);
		return;
	}
	p->rest.fire = rested;
	timer_set(&a->loop.timers, &p->rest, agent_now(a) + REST_LEAST_NS +
		  (p->going < MUCH ? REST_TIMES * took : 0));
}

/* Its ranks have said so since. */
static bool is_to_stay(const struct retain_pass *p,
		       const struct sk_cat_snapshot *s)
{
	return sk_cat_kept(s) &&
	       (!p->newest || &p->census.steps[p->at] < p->newest);
}

/* Whether somebody has come to need it since it was judged. */
static bool has_become_busy(const struct retain_pass *p)
{
	struct sk_cat_snapshot *s = snapshot_at(p);

	return s && (s->leases || s->flushing || s->pinned || s->filling ||
		     s == sk_cat_newest(s->job) || sk_cat_begun_with(s) ||
		     is_to_stay(p, s));
}

/* What the others go for must still be there. */
static bool is_still_so(const struct retain_pass *p)
{
	const struct sk_retain_step *newest = p->newest;
	struct sk_cat_job *job = job_of(p);
	const struct sk_cat_snapshot *s;

	if (!newest)
		return true;
	s = job ? sk_cat_snapshot_find(job, newest->run, newest->run_id,
				       newest->step) : NULL;
	return s && sk_cat_on_disk(s);
}

static bool next_victim(struct retain_pass *p)
{
	while (p->left) {
		p->at = --p->left;
		if (!p->census.steps[p->at].goes)
			continue;
		p->going--;
		if (!has_become_busy(p))
			return true;
	}
	return false;
}

static void delete_next(struct retain_pass *p)
{
	const struct sk_cat_snapshot *s;
	struct agent *a = p->agent;

	if (!next_victim(p) || retain_ends(a) || !is_still_so(p)) {
		end_pass(p);
		return;
	}
	p->began_ns = agent_now(a);
	p->looks = a->looks;
	s = snapshot_at(p);
	p->pinned = s ? s->pins : 0;
	p->deleting = true;
	p->work.run = delete_step;
	p->work.finish = step_deleted;
	work_submit(&a->loop.works, a->keeping, &p->work);
}

static void judge(struct work *work)
{
	struct retain_pass *p = sk_link_object(work, struct retain_pass, work);
	struct census *c = &p->census;

	census_join(c, p->tally);
	for (size_t i = 0; i < c->n; i++) {
		struct sk_retain_step *s = &c->steps[i];

		s->kept |= sk_staying_has(&p->staying, s->run, s->run_id,
					  s->step);
	}
	pins_mark(&p->pins, c->steps, c->n);
	p->result = sk_retain(c->steps, c->n, &p->retention);
	p->newest = NULL;
	for (size_t i = 0; i < c->n && !p->newest; i++) {
		if (c->steps[i].complete && c->steps[i].looked)
			p->newest = &c->steps[i];
	}
	p->is_short = p->wish.range.most != SIZE_MAX &&
		      sk_retain_is_short(c->steps, c->n, &p->retention);
}

static void look(struct retain_pass *p, size_t most);

static void judged(struct work *work)
{
	struct retain_pass *p = sk_link_object(work, struct retain_pass, work);
	struct sk_cat_job *job = job_of(p);
	struct kept *kept = job ? job->owner : NULL;
	struct agent *a = p->agent;

	if (p->result < 0 || !job || retain_ends(a)) {
		end_pass(p);
		return;
	}
	p->going = (unsigned)p->result;
	if (kept)
		kept->were_going = p->going;
	if (p->is_short) {
		look(p, SIZE_MAX);
		return;
	}
	p->judged = true;
	p->left = p->census.n;
	delete_next(p);
}

/* What the catalogue knows of what was seen. */
static void count(struct chore *chore)
{
	struct retain_pass *p = sk_link_object(chore, struct retain_pass,
					       chore);
	const struct sk_cat_job *job = job_of(p);
	struct agent *a = p->agent;
	int r = tally_go_on(p->tally, PORTION);

	if (r < 0 || retain_ends(a)) {
		end_pass(p);
	} else if (r > 0) {
		loop_queue(&a->loop, chore);
	} else {
		if (job && job->owner)
			p->pins = pins_copy(&((struct kept *)job->owner)->pins);
		p->work.run = judge;
		p->work.finish = judged;
		work_submit(&a->loop.works, a->keeping, &p->work);
	}
}

static void looked(struct stored_wish *wish, int r, const struct sk_err *err)
{
	struct retain_pass *p = sk_link_object(wish, struct retain_pass, wish);
	struct sk_cat_job *job = job_of(p);

	(void)err;	/* who needs the store says it */
	if (r == 0 && job)
		p->tally = tally_begin(job);
	if (!p->tally) {
		end_pass(p);
		return;
	}
	p->chore.run = count;
	loop_queue(&p->agent->loop, &p->chore);
}

static void look(struct retain_pass *p, size_t most)
{
	forget_census(p);
	p->wish = (struct stored_wish){
		.granted = looked, .uid = p->uid, .census = &p->census,
		.range = { .most = most, .step = -1 },
	};
	memcpy(p->wish.job, p->job, sizeof(p->job));
	stored_scan(p->agent, &p->wish);
}

/* The newest; where those do not suffice, all. */
static size_t look_first(const struct sk_retention *r)
{
	return LOOK_BEYOND + (r->keep_last < LOOK_MOST ? r->keep_last :
							 LOOK_MOST);
}

/* ---- what the store says of the job ---- */

/* The trainer's word is written down where it is another one. */
static void read_retention(struct retain_pass *p)
{
	struct sk_store *store = p->agent->store;
	uid_t owner;

	p->result = sk_store_retention(store, p->job, &p->from, &p->file,
				       &p->err);
	if (p->result < 0 || !p->said || p->from == SK_RETENTION_OPERATOR ||
	    (p->from == SK_RETENTION_JOB &&
	     sk_retention_equal(&p->file, &p->retention)))
		return;
	/* Another user may have come to have the name there. */
	if (sk_store_owner(store, p->job, &owner, NULL) == 0 && owner != p->uid)
		return;
	p->result = sk_store_set_retention(store, p->job, SK_RETENTION_JOB,
					   &p->retention, &p->err);
}

/* -EAGAIN: nothing is to go now, for ranks restore. */
static void read_job(struct work *work)
{
	struct retain_pass *p = sk_link_object(work, struct retain_pass, work);
	int r;

	read_retention(p);
	if (p->result < 0)
		return;
	p->result = sk_store_staying(p->agent->store, p->job, &p->staying,
				     &p->err);
	if (p->result < 0)
		return;
	r = sk_store_is_restoring(p->agent->store, p->job);
	if (r < 0)
		p->result = sk_err_errno(&p->err, r, "cannot tell whether "
					 "ranks of job \"%s\" restore", p->job);
	else if (r)
		p->result = -EAGAIN;
}

static void complain(struct retain_pass *p)
{
	struct sk_cat_job *job = job_of(p);
	struct kept *kept = job ? job->owner : NULL;

	if (p->result == -ENOENT || !kept || kept->complained)
		return;
	kept->complained = true;
	log_error(p->agent, "%s", p->err.text);
}

static void job_read(struct work *work)
{
	struct retain_pass *p = sk_link_object(work, struct retain_pass, work);
	struct sk_retention by_job = p->retention;
	struct agent *a = p->agent;

	if (p->result == -EAGAIN) {
		end_for_now(p);
		return;
	}
	if (p->result < 0)
		complain(p);
	if (p->result < 0 || retain_ends(a)) {
		end_pass(p);
		return;
	}
	p->retention = p->file;
	p->from = retain_choose(a, p->said, p->from, &p->retention, &by_job);
	if (sk_retention_limits(&p->retention))
		look(p, look_first(&p->retention));
	else
		end_pass(p);
}

void retain_pass_begin(struct agent *a, const struct sk_cat_job *job)
{
	struct kept *kept = job->owner;
	struct retain_pass *p = calloc(1, sizeof(*p));

	if (!p)
		return;		/* what is due stays so */
	sk_link_remove(&kept->due);
	p->agent = a;
	p->uid = job->uid;
	p->said = kept->said;
	p->retention = kept->retention;
	memcpy(p->job, job->name, sizeof(p->job));
	sk_link_init(&p->chore.link);
	p->work.run = read_job;
	p->work.finish = job_read;
	a->retain->pass = p;
	work_submit(&a->loop.works, a->keeping, &p->work);
}

bool retain_pass_is_of(const struct retain_pass *p,
		       const struct sk_cat_job *job)
{
	return p->uid == job->uid && strcmp(p->job, job->name) == 0;
}

bool retain_pass_deletes(const struct retain_pass *p,
			 const struct sk_cat_snapshot *s)
{
	const struct sk_retain_step *step;

	if (!p->deleting || !retain_pass_is_of(p, s->job))
		return false;
	step = &p->census.steps[p->at];
	return step->run == s->run && step->run_id == s->run_id &&
	       step->step == s->step;
}

unsigned retain_pass_going(const struct retain_pass *p, const struct kept *kept)
{
	return p->judged ? p->going : kept->were_going;
}
