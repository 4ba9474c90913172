/* SPDX-License-Identifier: Apache-2.0 */
/* PREPARE, SLOT_WAIT, WAIT: answered when a thing has happened. */
#include <inttypes.h>
#include <string.h>

#include "agent.h"

enum until { UNTIL_SEALED = 1, UNTIL_COMPLETE, UNTIL_DURABLE };

static int find_job(struct request *q, const struct sk_wire_id *id,
		    struct sk_cat_job **ret_job, struct sk_err *err)
{
	*ret_job = session_job(q->session, id->job);
	if (!*ret_job)
		return sk_err_set(err, -ENOENT, "there is no job \"%s\"",
				  id->job);
	return 0;
}

static int find_rank(struct request *q, const struct sk_wire_id *id,
		     struct sk_cat_state **ret_state, struct sk_err *err)
{
	struct sk_cat_state *state = NULL;
	struct sk_cat_job *job;
	struct sk_cat_run *run;
	int r;

	r = find_job(q, id, &job, err);
	if (r < 0)
		return r;
	run = sk_cat_run_find(job, id->run ? id->run : job->newest_run);
	if (run)
		state = sk_cat_state_find(run, id->rank);
	if (!state || !state->living)
		return sk_err_set(err, -ENOENT, "rank %" PRId32 " of job "
				  "\"%s\" is not registered in run %" PRIu64,
				  id->rank, id->job, id->run);
	*ret_state = state;
	return 0;
}

static int look_prepare(struct request *q, struct sk_err *err)
{
	struct sk_cat_state *state;
	struct sk_cat_slot *slot;
	int r;

	r = find_rank(q, &q->msg.body.prepare.id, &state, err);
	if (r < 0)
		return r;
	sk_link_each(slot, &state->slots, link) {
		const struct memory *m = slot->memory;

		if (m->result < 0)
			return sk_err_set(err, m->result, "%s", m->text);
		if (!memory_ready(m))
			return -EAGAIN;
	}
	return 0;
}

static int look_slot(struct request *q, struct sk_err *err)
{
	struct sk_cat_state *state;
	int r;

	r = find_rank(q, &q->msg.body.slot_wait.id, &state, err);
	if (r < 0)
		return r;
	r = sk_cat_slot_take(state, INT64_MAX, 0, true, NULL, NULL, err);
	return r == -EBUSY ? -EAGAIN : r;
}

/* ---- snapshots ---- */

static int look_durable(struct request *q, const struct sk_cat_snapshot *s,
			struct sk_err *err)
{
	if (s->on_disk)
		return 0;
	if (!q->agent->store)
		return sk_err_set(err, -ENOTCONN, "the agent has no store; "
				  "start it with --store");
	if (s->hopeless_on_disk && s->failed)
		return sk_err_set(err, -EIO, "%s", s->text);
	/* A failure since the request came; the next try is another wait's. */
	if (s->failures_total != q->mark)
		return sk_err_set(err, -EIO, "%s", s->text);
	sk_err_set(err, 0, "step %" PRId64 " is not durable in time: %s",
		   s->step, s->flushing ? "it is being written" :
		   s->wanted ? "it is still to be written" :
		   "nobody asked for it to be written");
	return -EAGAIN;
}

static struct sk_cat_snapshot *meant(const struct sk_cat_job *job,
				     const struct sk_wire_id *id)
{
	return sk_cat_snapshot_find(job, id->run, id->step);
}

static int look_wait(struct request *q, struct sk_err *err)
{
	const struct sk_wire_wait *w = &q->msg.body.wait;
	struct sk_cat_snapshot *s;
	struct sk_cat_job *job;
	int r;

	r = find_job(q, &w->id, &job, err);
	if (r < 0)
		return r;
	s = meant(job, &w->id);
	if (!s)
		return sk_err_set(err, -ENOENT, "job \"%s\" has no snapshot "
				  "of step %" PRId64 "; it was discarded, "
				  "evicted, or never taken", w->id.job,
				  w->id.step);
	if (w->until == UNTIL_SEALED) {
		if (sk_cat_image_find(s, w->id.rank, SK_IMAGE_PRIMARY))
			return 0;
		sk_err_set(err, 0, "rank %" PRId32 " has not sealed step %"
			   PRId64 " in time", w->id.rank, s->step);
		return -EAGAIN;
	}
	if (w->until == UNTIL_DURABLE && (s->on_disk || !q->agent->store ||
					  s->complete || s->local))
		return look_durable(q, s, err);
	if (s->complete)
		return 0;
	if (sk_cat_hopeless(s))
		return sk_err_set(err, -ENOENT, "step %" PRId64 " of job "
				  "\"%.40s\" will not be complete: %s",
				  s->step, w->id.job, s->missing);
	sk_err_set(err, 0, "step %" PRId64 " is not complete in time: %s",
		   s->step, s->missing);
	return -EAGAIN;
}

/* ---- the call ---- */

static int prepare_wait(struct call *c, uint64_t *ret_mark)
{
	const struct sk_wire_wait *w = &c->in->body.wait;
	struct sk_cat_snapshot *s;
	struct sk_cat_job *job;
	int r;

	if (w->until < UNTIL_SEALED || w->until > UNTIL_DURABLE)
		return sk_err_set(&c->err, -EINVAL, "one cannot wait for %"
				  PRIu32, w->until);
	r = call_job(c, &w->id, &job);
	if (r < 0)
		return r;
	s = meant(job, &w->id);
	*ret_mark = s ? s->failures_total : 0;
	return 0;
}

int call_wait(struct call *c)
{
	/* The three bodies begin alike. */
	uint32_t timeout_ms = c->in->body.prepare.timeout_ms;
	struct sk_cat_job *job;
	uint64_t mark = 0;
	struct request *q;
	int r;

	if (c->in->type == SK_MSG_WAIT) {
		timeout_ms = c->in->body.wait.timeout_ms;
		r = prepare_wait(c, &mark);
	} else {
		r = call_job(c, &c->in->body.prepare.id, &job);
	}
	if (r < 0)
		return r;
	/* 0 is to look once, not to wait for ever. */
	q = request_new(c, timeout_ms ? timeout_ms : 1);
	if (!q)
		return -EBUSY;
	q->mark = mark;
	q->look = c->in->type == SK_MSG_PREPARE ? look_prepare :
		  c->in->type == SK_MSG_SLOT_WAIT ? look_slot : look_wait;
	if (c->in->type == SK_MSG_SLOT_WAIT) {
		struct sk_cat_state *state;
		struct sk_err err;

		/* It does not skip the step that it was refused. */
		if (find_rank(q, &c->in->body.prepare.id, &state, &err) == 0)
			state->lost_step = -1;
	}
	sk_link_insert(&c->agent->waiting, &q->queue);
	agent_changed(c->agent);
	return CALL_LATER;
}
