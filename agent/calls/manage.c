/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PIN, UNPIN, EVICT, FLUSH, STOP. The pin of a step that is on disk stands
 * there as well, for all agents and times.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "calls/call.h"
#include "catalogue/kept.h"
#include "catalogue/pins.h"
#include "disk/faults.h"
#include "disk/flush.h"
#include "disk/index.h"
#include "disk/retain.h"
#include "memory/record.h"
#include "session/request.h"
#include "session/rights.h"
#include "session/stop.h"

static const char *stored_dir(const struct sk_cat_snapshot *s)
{
	struct sk_cat_image *image;

	sk_link_each(image, &s->images, link) {
		if (image->stored.dir[0])
			return image->stored.dir;
	}
	return NULL;
}

/* What another agent has left in memory and on disk: a pin stands on both, and
 * the disk was not looked at for it yet. */
static bool may_be_stored(const struct call *c,
			  const struct sk_cat_snapshot *s)
{
	return s->revived && !stored_dir(s) && c->in->type != SK_MSG_FLUSH &&
	       (c->in->type != SK_MSG_EVICT ||
		c->in->body.manage.flags & SK_EVICT_DISK);
}

static int snapshot_of(struct call *c, struct sk_cat_snapshot **ret)
{
	const struct sk_wire_id *id = &c->in->body.manage.id;
	struct sk_cat_job *job;
	int r;

	r = call_job_looked(c, id, &job);
	if (r)
		return r;
	*ret = sk_cat_snapshot_find(job, id->run, id->run_id, id->step);
	/* Which is the newest is not known yet, or what the rules say of it. */
	if (*ret && (id->step < 0 || sk_cat_undecided(*ret)) &&
	    sk_cat_asking(job))
		return call_when_told(c, job);
	if (*ret && may_be_stored(c, *ret))
		return call_step_looked(c, *ret);
	return *ret ? 0 : call_when_looked(c, job, id);
}

/* In use, and being read by the flusher, are no matter of force. */
static int may_evict(struct call *c, const struct sk_cat_snapshot *s,
		     const char *why)
{
	bool force = c->in->body.manage.flags & SK_EVICT_FORCE;

	if (!why || (force && !s->leases && !s->flushing))
		return 0;
	return sk_err_set(&c->err, -EBUSY, "step %" PRId64 " of job \"%s\" is "
			  "%s%s", s->step, s->job->name, why,
			  s->leases || s->flushing ? "" : "; --force evicts it "
			  "all the same");
}

static int evict_memory(struct call *c, struct sk_cat_snapshot *s)
{
	bool force = c->in->body.manage.flags & SK_EVICT_FORCE;
	int r = may_evict(c, s, sk_cat_protected(s));
	struct sk_cat_job *job = s->job;
	struct agent *a = c->agent;
	const uint64_t run = s->run;
	const int64_t step = s->step;
	unsigned n;

	if (r < 0)
		return r;
	n = sk_cat_evict_memory(s);
	if (n)
		log_info(a, "job \"%s\" run %" PRIu64 " step %" PRId64 " is "
			 "evicted from memory%s", job->name, run, step,
			 force ? " by force" : "");
	faults_no_more(a, job, step);
	a->counts.evictions += n;
	agent_changed(a);
	return n ? 0 : sk_err_set(&c->err, -ENOENT, "nothing of it is in "
				  "memory");
}

/* ---- disk ---- */

/* A step directory that is being deleted, or pinned, for one who asked. */
struct deletion {
	struct request request;
	struct lane_work work;
	char job[SK_JOB_MAX + 1];
	uid_t uid;
	struct sk_store_run run;
	int64_t step;
	char dir[SK_CAT_DIR_MAX];
	bool pin;			/* or unpin, that is */
	unsigned pins;			/* of the step, when it was asked for */
	int result;
	struct sk_err err;
};

static void deletion_release(struct request *q)
{
	free(sk_link_object(q, struct deletion, request));
}

static const struct request_kind deletion_kind = {
	.release = deletion_release,
};

static void delete_step(struct lane_work *work)
{
	struct deletion *d = sk_link_object(work, struct deletion, work);

	d->result = sk_store_delete(d->request.agent->store, d->job, d->dir,
				    &d->run, &d->err);
}

static void deleted(struct lane_work *work)
{
	struct deletion *d = sk_link_object(work, struct deletion, work);
	struct agent *a = d->request.agent;

	d->request.busy = false;
	index_changed(a, d->job);
	if (d->result == 0) {
		retain_forget(a, d->job, d->uid, &d->run, d->step, d->dir,
			      d->pins);
		log_info(a, "job \"%s\" run %" PRIu64 " step %" PRId64
			 " is deleted from disk", d->job, d->run.number,
			 d->step);
		flush_room_came(a);
	}
	agent_changed(a);
	request_answer(&d->request, d->result, NULL, NULL, 0, &d->err);
}

/* What is left if memory goes; where nothing is whole there, as on one of
 * several nodes' own disks, the newest of which it has anything. */
static const char *last_on_disk(const struct sk_cat_snapshot *s)
{
	const struct sk_cat_snapshot *newest, *part = NULL;

	sk_link_each(newest, &s->job->snapshots, link) {
		s->job->catalogue->visits++;
		if (sk_cat_on_disk(newest))
			return s == newest ? "the newest durable snapshot" :
					     NULL;
		if (!part && stored_dir(newest))
			part = newest;
	}
	return s == part ? "the newest on disk, where none is whole" : NULL;
}

static bool is_kept(const struct sk_cat_snapshot *s)
{
	const struct sk_cat_snapshot *newer;

	if (!sk_cat_kept(s))
		return false;
	sk_link_each(newer, &s->job->snapshots, link) {
		s->job->catalogue->visits++;
		if (newer == s)
			return true;
		if (sk_cat_on_disk(newer))
			return false;
	}
	return false;
}

/* On disk as well, the newest complete one is what a restart needs. */
static const char *disk_protected(const struct sk_cat_snapshot *s)
{
	return s->leases ? "in use by a restore" :
	       s->flushing ? "being flushed" :
	       s->pinned ? "pinned" :
	       sk_cat_undecided(s) ? "not known to be complete yet" :
	       s == sk_cat_newest(s->job) ? "the newest complete snapshot" :
	       sk_cat_begun_with(s) ? "what its job was restored from" :
	       is_kept(s) ? "what its ranks agree on, on several nodes" :
	       last_on_disk(s);
}

static int begin_on_disk(struct call *c, const struct sk_cat_snapshot *s,
			 const char *dir, void (*run)(struct lane_work *work),
			 void (*finish)(struct lane_work *work))
{
	struct deletion *d = calloc(1, sizeof(*d));
	int r;

	if (!d)
		return sk_err_set(&c->err, -ENOMEM, "no memory to change a "
				  "step");
	r = request_init(&d->request, &deletion_kind, c->session, c->in, 0,
			 &c->err);
	if (r < 0) {
		free(d);
		return r;
	}
	d->uid = s->job->uid;
	d->run = (struct sk_store_run){ s->run, s->run_id };
	d->step = s->step;
	memcpy(d->job, s->job->name, sizeof(d->job));
	(void)snprintf(d->dir, sizeof(d->dir), "%s", dir);
	d->pin = c->in->type == SK_MSG_PIN;
	d->pins = s->pins;
	d->work.run = run;
	d->work.finish = finish;
	d->request.busy = true;
	/* By the job's owner: what is done to a step keeps its order. */
	lanes_submit(&c->agent->deeds, d->uid, d->job, &d->work);
	return CALL_LATER;
}

static int evict_disk(struct call *c, struct sk_cat_snapshot *s)
{
	const char *dir = stored_dir(s);
	int r;

	if (!dir)
		return sk_err_set(&c->err, -ENOENT, "nothing of it is on "
				  "disk");
	r = may_evict(c, s, disk_protected(s));
	return r < 0 ? r : begin_on_disk(c, s, dir, delete_step, deleted);
}

static bool in_memory(const struct sk_cat_snapshot *s)
{
	struct sk_cat_image *image;

	sk_link_each(image, &s->images, link) {
		if (image->slot)
			return true;
	}
	return false;
}

/* Of both places: what protects it in one keeps it in either, and what has
 * nothing of it is passed over. */
static int evict_both(struct call *c, struct sk_cat_snapshot *s)
{
	int r = 0;

	if (in_memory(s))
		r = may_evict(c, s, sk_cat_protected(s));
	if (r < 0 || !stored_dir(s))
		return r < 0 ? r : evict_memory(c, s);
	/* Disk first: it is answered later, and refuses more. */
	r = evict_disk(c, s);
	if (r == CALL_LATER && in_memory(s))
		(void)evict_memory(c, s);
	return r;
}

static int evict(struct call *c, struct sk_cat_snapshot *s)
{
	uint32_t flags = c->in->body.manage.flags;
	int r = 0;

	if (flags & SK_EVICT_DISK && !(flags & SK_EVICT_FORCE) &&
	    (s == sk_cat_newest(s->job) || last_on_disk(s)))
		r = call_newest_looked(c, s->job);
	if (r)
		return r;
	if (!(flags & SK_EVICT_DISK))
		return evict_memory(c, s);
	return flags & SK_EVICT_MEMORY ? evict_both(c, s) : evict_disk(c, s);
}

/* ---- pins ---- */

static void pin_step(struct lane_work *work)
{
	struct deletion *d = sk_link_object(work, struct deletion, work);

	d->result = sk_store_pin(d->request.agent->store, d->job, d->dir,
				 &d->run, d->pin, &d->err);
}

/* A pin that was refused is none, unless there was one. */
static void pin_ended(struct deletion *d, struct sk_cat_snapshot *s)
{
	s->pinning -= s->pinning > 0;
	s->was_pinned |= d->result == 0;
	s->pinned = s->pinning || s->was_pinned;
	sk_cat_unwant_pinned(s);
	if (d->result < 0)
		return;
	s->pin_stored = true;
	s->pin_failed = false;
	s->pin_stored_at = d->request.agent->looks;
}

static void unpin_ended(struct deletion *d, struct sk_cat_snapshot *s)
{
	s->unpinning = false;
	if (d->result < 0)
		return;
	s->was_pinned = s->pin_stored = false;
	s->pinned = s->pinning > 0;
	s->unpinned_at = d->request.agent->looks;
	sk_cat_unwant_pinned(s);
	retain_unpinned(s->job, s->run_id, s->step);
}

static void pinned(struct lane_work *work)
{
	struct deletion *d = sk_link_object(work, struct deletion, work);
	struct agent *a = d->request.agent;
	struct sk_cat_job *job = sk_cat_job_find(&a->cat, d->job, d->uid);
	struct sk_cat_snapshot *s;

	d->request.busy = false;
	s = job ? sk_cat_snapshot_find(job, d->run.number, d->run.id,
				       d->step) : NULL;
	if (s) {
		(d->pin ? pin_ended : unpin_ended)(d, s);
		record_snapshot(a, s);
		/* A pin lets nothing go: the next may be pinned, too. */
		if (!d->pin)
			retain_due(a, job);
	}
	agent_changed(a);
	request_answer(&d->request, d->result, NULL, NULL, 0, &d->err);
}

/* What memory alone has of it is to be on disk, so that its memory may go where
 * the job's next step would get none; another try where the last one failed. */
static void have_pin_written(struct sk_cat_snapshot *s)
{
	if (!sk_cat_want_pinned(s) && !s->wanted_by_pin)
		return;
	s->hopeless_on_disk = false;
	s->retry_ns = 0;
	sk_cat_wake(s->job);
}

static int pin(struct call *c, struct sk_cat_snapshot *s)
{
	const char *dir = c->agent->store ? stored_dir(s) : NULL;
	int r = dir ? begin_on_disk(c, s, dir, pin_step, pinned) : 0;

	if (r < 0)
		return r;
	s->pins += c->in->type == SK_MSG_PIN;
	if (c->in->type == SK_MSG_PIN && dir && !s->pinning++)
		s->was_pinned = s->pinned && !s->unpinning;
	/* It holds from now on, and is written down with the flush where there
	 * is nothing on disk yet; one that there is until it is gone there. */
	s->pinned = c->in->type == SK_MSG_PIN || (dir && s->pinned);
	s->unpinning = c->in->type == SK_MSG_UNPIN && dir;
	if (c->in->type == SK_MSG_PIN)
		have_pin_written(s);
	else
		sk_cat_unwant_pinned(s);
	record_snapshot(c->agent, s);
	agent_changed(c->agent);
	return r;
}

/* As who waits for it is told. */
static int check_hope(struct call *c, const struct sk_cat_snapshot *s)
{
	struct sk_err missing = { "" };

	if (!sk_cat_hopeless(s))
		return 0;
	(void)sk_cat_missing(s, &missing);
	return sk_err_set(&c->err, -ENOENT, "step %" PRId64 " of job \"%.40s\" "
			  "will not be complete, and is not written: %s",
			  s->step, s->job->name, missing.text);
}

static int ask_flush(struct call *c, struct sk_cat_snapshot *s)
{
	int r;

	if (!c->agent->store)
		return sk_err_set(&c->err, -ENOTCONN, "the agent has no "
				  "store; start it with --store");
	if (sk_cat_on_disk(s))
		return 0;
	r = check_hope(c, s);
	if (r < 0)
		return r;
	sk_cat_want(s);
	s->hopeless_on_disk = false;
	s->retry_ns = 0;
	record_snapshot(c->agent, s);
	agent_changed(c->agent);
	return 0;
}

int call_manage(struct call *c)
{
	struct sk_cat_snapshot *s;
	int r;

	r = snapshot_of(c, &s);
	if (r)
		return r;
	switch (c->in->type) {
	case SK_MSG_PIN:
	case SK_MSG_UNPIN:
		return pin(c, s);
	case SK_MSG_EVICT:
		return evict(c, s);
	default:
		return ask_flush(c, s);
	}
}

/* ---- stop ---- */

struct stop {
	struct request request;
	struct sk_link link;		/* in agent->stops */
};

static void release_stop(struct request *q)
{
	struct stop *stop = sk_link_object(q, struct stop, request);

	sk_link_remove(&stop->link);
	free(stop);
}

static const struct request_kind stop_kind = { .release = release_stop };

/* Who waits does not end at once what somebody else began. */
static int stop_and_wait(struct call *c)
{
	struct stop *stop = calloc(1, sizeof(*stop));
	int r;

	if (!stop)
		return sk_err_set(&c->err, -ENOMEM, "no memory to wait");
	sk_link_init(&stop->link);
	r = request_init(&stop->request, &stop_kind, c->session, c->in, 0,
			 &c->err);
	if (r < 0) {
		free(stop);
		return r;
	}
	sk_link_insert(&c->agent->stops, &stop->link);
	agent_stop(c->agent, "a client asked for it");
	return CALL_LATER;
}

int call_stop(struct call *c)
{
	struct sk_err lost = { "" };

	if (session_check_admin(c->session, "stop this agent", &c->err) < 0)
		return -EPERM;
	if (c->in->body.stop.flags & SK_STOP_WAIT)
		return stop_and_wait(c);
	if (!c->agent->store)
		(void)flush_lost(c->agent, &lost);
	memcpy(c->out.body.text, lost.text, sizeof(lost.text));
	agent_stop(c->agent, "a client asked for it");
	return 0;
}

/* It stays open until all else is closed: its end is ours. */
static void hold_connection(struct agent *a, int fd)
{
	if (a->n_stop_fds == SK_ARRAY_SIZE(a->stop_fds))
		return;
	fd = a->os->fcntl(a->os, fd, F_DUPFD_CLOEXEC, 3);
	if (fd >= 0)
		a->stop_fds[a->n_stop_fds++] = fd;
}

void calls_say_lost(struct agent *a)
{
	struct sk_err err = { "" };
	int r = flush_lost(a, &err) ? -ENODATA : 0;

	while (!sk_link_empty(&a->stops)) {
		struct stop *stop = sk_link_object(a->stops.next, struct stop,
						   link);

		hold_connection(a, stop->request.session->source.fd);
		request_answer(&stop->request, r, NULL, NULL, 0, &err);
	}
}
