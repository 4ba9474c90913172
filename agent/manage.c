/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PIN, UNPIN, EVICT, FLUSH, STOP. Pins live in memory only: they end with
 * the agent.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "agent.h"

static int find(struct call *c, struct sk_cat_snapshot **ret)
{
	const struct sk_wire_id *id = &c->in->body.manage.id;
	struct sk_cat_job *job;
	int r;

	r = call_job(c, id, &job);
	if (r < 0)
		return r;
	*ret = sk_cat_snapshot_find(job, id->run, id->step);
	if (*ret)
		return 0;
	return sk_err_set(&c->err, -ENOENT, "job \"%s\" has no snapshot of "
			  "step %" PRId64, id->job, id->step);
}

static int refuse(struct call *c, const struct sk_cat_snapshot *s,
		  const char *why)
{
	return sk_err_set(&c->err, -EBUSY, "step %" PRId64 " of job \"%s\" is "
			  "%s%s", s->step, s->job->name, why,
			  s->leases || s->flushing ? "" : "; --force evicts it "
			  "all the same");
}

static int evict_memory(struct call *c, struct sk_cat_snapshot *s)
{
	bool force = c->in->body.manage.flags & SK_EVICT_FORCE;
	const char *why = sk_cat_protected(s);
	struct agent *a = c->agent;
	unsigned n;

	/* In use, and being read by the flusher, are no matter of force. */
	if (why && (!force || s->leases || s->flushing))
		return refuse(c, s, why);
	log_info(a, "job \"%s\" run %" PRIu64 " step %" PRId64 " is evicted "
		 "from memory%s", s->job->name, s->run, s->step,
		 force ? " by force" : "");
	n = sk_cat_evict_memory(s);
	a->counts.evictions += n;
	agent_changed(a);
	return n ? 0 : sk_err_set(&c->err, -ENOENT, "nothing of it is in "
				  "memory");
}

/* ---- disk ---- */

struct deletion {
	struct work work;
	struct request *request;
	char job[SK_JOB_MAX + 1];
	uid_t uid;
	uint64_t run;
	int64_t step;
	char dir[SK_CAT_DIR_MAX];
	int result;
	struct sk_err err;
};

static void delete_step(struct work *work)
{
	struct deletion *d = sk_link_object(work, struct deletion, work);

	d->result = sk_store_delete(work->agent->store, d->job, d->dir,
				    &d->err);
}

static void forget_stored(struct agent *a, const struct deletion *d)
{
	struct sk_cat_job *job = sk_cat_job_find(&a->cat, d->job, d->uid);
	struct sk_cat_snapshot *s;
	struct sk_cat_image *image;

	s = job ? sk_cat_snapshot_find(job, d->run, d->step) : NULL;
	if (!s)
		return;
	s->wanted = false;
	/* The last image may take the snapshot with it. */
	s->filling++;
	sk_link_each(image, &s->images, link) {
		if (strcmp(image->stored.dir, d->dir) == 0)
			sk_cat_stored_remove(image);
	}
	s->filling--;
	if (!sk_cat_snapshot_trim(s))
		sk_cat_refresh(job);
}

static void deleted(struct work *work)
{
	struct deletion *d = sk_link_object(work, struct deletion, work);
	struct request *q = d->request;

	q->busy = false;
	if (d->result == 0) {
		forget_stored(work->agent, d);
		log_info(work->agent, "job \"%s\" run %" PRIu64 " step %"
			 PRId64 " is deleted from disk", d->job, d->run,
			 d->step);
	}
	agent_changed(work->agent);
	request_answer(q, d->result, NULL, NULL, 0, &d->err);
	free(d);
}

/* On disk as well, the newest complete one is what a restart needs. */
static const char *disk_protected(const struct sk_cat_snapshot *s)
{
	return s->leases ? "in use by a restore" :
	       s->flushing ? "being flushed" :
	       s->pinned ? "pinned" :
	       s == sk_cat_newest(s->job) ? "the newest complete snapshot" :
	       NULL;
}

static const char *stored_dir(const struct sk_cat_snapshot *s)
{
	struct sk_cat_image *image;

	sk_link_each(image, &s->images, link) {
		if (image->stored.dir[0])
			return image->stored.dir;
	}
	return NULL;
}

static int evict_disk(struct call *c, struct sk_cat_snapshot *s)
{
	bool force = c->in->body.manage.flags & SK_EVICT_FORCE;
	const char *why = disk_protected(s), *dir = stored_dir(s);
	struct deletion *d;
	struct request *q;

	if (!dir)
		return sk_err_set(&c->err, -ENOENT, "nothing of it is on "
				  "disk");
	if (why && (!force || s->leases || s->flushing))
		return refuse(c, s, why);
	d = calloc(1, sizeof(*d));
	q = d ? request_new(c, 0) : NULL;
	if (!q) {
		free(d);
		return -EBUSY;
	}
	d->request = q;
	d->uid = s->job->uid;
	d->run = s->run;
	d->step = s->step;
	memcpy(d->job, s->job->name, sizeof(d->job));
	(void)snprintf(d->dir, sizeof(d->dir), "%s", dir);
	d->work.run = delete_step;
	d->work.finish = deleted;
	q->busy = true;
	work_submit(c->agent, c->agent->slow, &d->work);
	return CALL_LATER;
}

static int evict(struct call *c, struct sk_cat_snapshot *s)
{
	uint32_t flags = c->in->body.manage.flags;
	int r = 0;

	if (flags & ~(SK_EVICT_FORCE | SK_EVICT_MEMORY | SK_EVICT_DISK))
		return sk_err_set(&c->err, -EINVAL, "unknown flags %#x", flags);
	/* Disk first: it is answered later, and refuses more. */
	if (flags & SK_EVICT_DISK)
		r = evict_disk(c, s);
	if (r < 0 || (flags & SK_EVICT_DISK && !(flags & SK_EVICT_MEMORY)))
		return r;
	if (r == CALL_LATER) {
		(void)evict_memory(c, s);
		return r;
	}
	return evict_memory(c, s);
}

static int ask_flush(struct call *c, struct sk_cat_snapshot *s)
{
	if (!c->agent->store)
		return sk_err_set(&c->err, -ENOTCONN, "the agent has no "
				  "store; start it with --store");
	if (s->on_disk)
		return 0;
	s->wanted = true;
	s->hopeless_on_disk = false;
	s->retry_ns = 0;
	agent_changed(c->agent);
	return 0;
}

int call_manage(struct call *c)
{
	struct sk_cat_snapshot *s;
	int r;

	r = find(c, &s);
	if (r < 0)
		return r;
	switch (c->in->type) {
	case SK_MSG_PIN:
	case SK_MSG_UNPIN:
		s->pinned = c->in->type == SK_MSG_PIN;
		agent_changed(c->agent);
		return 0;
	case SK_MSG_EVICT:
		return evict(c, s);
	default:
		return ask_flush(c, s);
	}
}

int call_stop(struct call *c)
{
	if (!session_admin(c->session))
		return sk_err_set(&c->err, -EPERM, "only uid 0 and uid %u may "
				  "stop this agent", (unsigned)c->agent->uid);
	agent_stop(c->agent, "a client asked for it");
	return 0;
}
