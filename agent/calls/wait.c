/* SPDX-License-Identifier: Apache-2.0 */
/* PREPARE, SLOT_WAIT, WAIT: answered when a thing has happened. */
#include <assert.h>
#include <inttypes.h>

#include "calls/call.h"
#include "catalogue/pins.h"
#include "disk/retain.h"
#include "memory/memory.h"
#include "session/request.h"
#include "session/rights.h"

enum until { UNTIL_SEALED = 1, UNTIL_COMPLETE, UNTIL_DURABLE, UNTIL_WRITTEN };

struct wait {
	struct request request;
	uint64_t failures;	/* of the snapshot's flushes when it came */
};

static int job_of(struct request *q, const struct sk_wire_id *id,
		    struct sk_cat_job **ret_job, struct sk_err *err)
{
	*ret_job = session_job(q->session, id->job);
	if (!*ret_job)
		return sk_err_set(err, -ENOENT, "there is no job \"%s\"",
				  id->job);
	return 0;
}

static int rank_of(struct request *q, const struct sk_wire_id *id,
		     struct sk_cat_state **ret_state, struct sk_err *err)
{
	struct sk_cat_state *state = NULL;
	struct sk_cat_job *job;
	struct sk_cat_run *run;
	int r;

	r = job_of(q, id, &job, err);
	if (r < 0)
		return r;
	run = sk_cat_run_find(job, id->run, id->run_id);
	if (run)
		state = sk_cat_state_find(run, id->rank);
	if (!state || !state->living)
		return sk_err_set(err, -ENOENT, "rank %" PRId32 " of job "
				  "\"%s\" is not registered in run %" PRIu64,
				  id->rank, id->job, id->run);
	*ret_state = state;
	return 0;
}

static int prepare_outcome(struct request *q, struct sk_err *err)
{
	struct sk_cat_state *state = NULL;
	struct sk_cat_slot *slot;
	int r;

	r = rank_of(q, &q->msg.body.prepare.id, &state, err);
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

static int slot_outcome(struct request *q, struct sk_err *err)
{
	struct sk_cat_state *state = NULL;
	int r;

	r = rank_of(q, &q->msg.body.slot_wait.id, &state, err);
	if (r < 0)
		return r;
	r = sk_cat_slot_take(state, INT64_MAX, 0, true, NULL, NULL, err);
	return r == -EBUSY ? -EAGAIN : r;
}

/* ---- snapshots ---- */

/* There was none, and some is being made, or has been: then the next try is
 * due, and tells. */
static bool may_get_room(const struct agent *a, const struct sk_cat_snapshot *s)
{
	return s->no_room && (!s->retry_ns || retain_makes_room(a));
}

static const char *why_not_durable(const struct agent *a,
				   const struct sk_cat_snapshot *s)
{
	if (s->flushing)
		return "it is being written";
	if (may_get_room(a, s))
		return "the store is full, and what need not stay is being "
		       "deleted";
	return s->wanted ? "it is still to be written" :
			   "nobody asked for it to be written";
}

static int durable_outcome(const struct wait *w,
			   const struct sk_cat_snapshot *s,
			   struct sk_err *err)
{
	const struct agent *a = w->request.agent;
	const char *failure;

	if (!a->store)
		return sk_err_set(err, -ENOTCONN, "the agent has no store; "
				  "start it with --store");
	if (s->hopeless_on_disk && s->failed)
		return sk_err_set(err, -EIO, "%s", sk_cat_failure(s));
	/* A failure since the request came; the next try is another wait's. */
	if (s->failures_total != w->failures && !may_get_room(a, s))
		return sk_err_set(err, -EIO, "%s", sk_cat_failure(s));
	/* All who wait ask at each change: nobody reads what they say. */
	if (!w->request.over)
		return -EAGAIN;
	if (w->request.msg.body.wait.until == UNTIL_DURABLE &&
	    !sk_cat_complete(s))
		return sk_err_set(err, -EAGAIN, "step %" PRId64 " is not "
				  "known to be durable: ranks that came to "
				  "another agent, or to none, have the rest; "
				  "each tells of its own part by SK_WRITTEN",
				  s->step);
	failure = sk_cat_failure(s);
	return sk_err_set(err, -EAGAIN, "step %" PRId64 " is not durable in "
			  "time: %s%s%s", s->step, why_not_durable(a, s),
			  failure[0] ? ", and could not be: " : "", failure);
}

static struct sk_cat_snapshot *snapshot_meant(const struct sk_cat_job *job,
				     const struct sk_wire_id *id)
{
	return sk_cat_snapshot_find(job, id->run, id->run_id, id->step);
}

static int sealed_outcome(const struct sk_wire_wait *w,
			  const struct sk_cat_snapshot *s, struct sk_err *err)
{
	if (sk_cat_image_find(s, w->id.rank, SK_IMAGE_PRIMARY))
		return 0;
	if (!sk_cat_may_seal(s, w->id.rank))
		return sk_err_set(err, -ENOENT, "rank %" PRId32 " of job "
				  "\"%.40s\" has not sealed step %" PRId64
				  ", and will not", w->id.rank, s->job->name,
				  s->step);
	return sk_err_set(err, -EAGAIN, "rank %" PRId32 " has not sealed step "
			  "%" PRId64 " in time", w->id.rank, s->step);
}

/* Of a rank's own image its agent alone knows, whoever else has what. */
static int written_outcome(const struct wait *wait,
			   const struct sk_wire_wait *w,
			   const struct sk_cat_snapshot *s, struct sk_err *err)
{
	const struct sk_cat_image *image =
		sk_cat_image_find(s, w->id.rank, SK_IMAGE_PRIMARY);

	if (!image)
		return sealed_outcome(w, s, err);
	return image->stored.dir[0] && !image->bad_disk ?
		       0 : durable_outcome(wait, s, err);
}

static int complete_outcome(const struct request *q,
			    const struct sk_cat_snapshot *s,
			    struct sk_err *err)
{
	struct sk_err missing = { "" };
	bool hopeless;

	if (sk_cat_complete(s))
		return 0;
	hopeless = sk_cat_hopeless(s);
	if (!hopeless && !q->over)
		return -EAGAIN;
	/* The sentence, too, may have to be told in the background. */
	if (sk_cat_missing(s, &missing) != -EINPROGRESS && hopeless)
		return sk_err_set(err, -ENOENT, "step %" PRId64 " of job "
				  "\"%.40s\" will not be complete: %s",
				  s->step, s->job->name, missing.text);
	return sk_err_set(err, -EAGAIN, "step %" PRId64 " is not complete in "
			  "time: %s", s->step, missing.text);
}

static int snapshot_outcome(struct request *q, struct sk_err *err)
{
	const struct wait *wait = sk_link_object(q, struct wait, request);
	const struct sk_wire_wait *w = &q->msg.body.wait;
	struct sk_cat_snapshot *s;
	struct sk_cat_job *job;
	int r;

	r = job_of(q, &w->id, &job, err);
	if (r < 0)
		return r;
	s = snapshot_meant(job, &w->id);
	if (!s)
		return sk_err_set(err, -ENOENT, "job \"%s\" has no snapshot "
				  "of step %" PRId64 "; it was discarded, "
				  "evicted, or never taken", w->id.job,
				  w->id.step);
	if (w->until == UNTIL_SEALED)
		return sealed_outcome(w, s, err);
	if (w->until == UNTIL_WRITTEN)
		return written_outcome(wait, w, s, err);
	if (w->until == UNTIL_DURABLE && sk_cat_on_disk(s))
		return 0;
	/* What cannot become whole cannot become durable: it is told why. */
	if (w->until == UNTIL_DURABLE && (!q->agent->store ||
					  sk_cat_complete(s) ||
					  sk_cat_local(s)))
		return durable_outcome(wait, s, err);
	return complete_outcome(q, s, err);
}

/* ---- the call ---- */

static void wait_release(struct request *q)
{
	free(sk_link_object(q, struct wait, request));
}

static const struct request_kind prepare_kind = {
	.outcome = prepare_outcome,
	.release = wait_release,
};

static const struct request_kind slot_kind = {
	.outcome = slot_outcome,
	.release = wait_release,
};

static const struct request_kind snapshot_kind = {
	.outcome = snapshot_outcome,
	.release = wait_release,
};

static const struct request_kind *kind_of(uint16_t type)
{
	assert(type == SK_MSG_PREPARE || type == SK_MSG_SLOT_WAIT ||
	       type == SK_MSG_WAIT);
	return type == SK_MSG_PREPARE ? &prepare_kind :
	       type == SK_MSG_SLOT_WAIT ? &slot_kind : &snapshot_kind;
}

static int check_snapshot(struct call *c, uint64_t *ret_failures)
{
	const struct sk_wire_wait *w = &c->in->body.wait;
	struct sk_cat_snapshot *s;
	struct sk_cat_job *job;
	int r;

	if (w->until < UNTIL_SEALED || w->until > UNTIL_WRITTEN)
		return sk_err_set(&c->err, -EINVAL, "one cannot wait for %"
				  PRIu32, w->until);
	r = call_job_looked(c, &w->id, &job);
	if (r)
		return r;
	s = snapshot_meant(job, &w->id);
	*ret_failures = s ? s->failures_total : 0;
	return s ? 0 : call_when_looked(c, job, &w->id);
}

/* Who waits for the disk wants it there, unless somebody said which steps go
 * there. */
static void want_on_disk(struct call *c)
{
	const struct sk_wire_wait *w = &c->in->body.wait;
	struct sk_cat_snapshot *s;
	struct sk_cat_job *job;

	if (w->until < UNTIL_DURABLE || call_job(c, &w->id, &job) < 0)
		return;
	s = snapshot_meant(job, &w->id);
	if (!s || !s->by_cadence || (s->wanted && !s->wanted_by_pin) ||
	    sk_cat_on_disk(s))
		return;
	sk_cat_want(s);
	agent_changed(c->agent);
}

/* It does not skip the step that it was refused. */
static void forget_lost_step(struct request *q)
{
	struct sk_cat_state *state = NULL;
	struct sk_err err;

	if (rank_of(q, &q->msg.body.slot_wait.id, &state, &err) == 0)
		sk_cat_state_waits(state);
}

static int begin(struct call *c, uint32_t timeout_ms, uint64_t failures)
{
	struct wait *w = calloc(1, sizeof(*w));
	int r;

	if (!w)
		return sk_err_set(&c->err, -ENOMEM, "no memory for a request");
	/* 0 is to look once, not to wait for ever. */
	r = request_init(&w->request, kind_of(c->in->type), c->session, c->in,
			 timeout_ms ? timeout_ms : 1, &c->err);
	if (r < 0) {
		free(w);
		return r;
	}
	w->failures = failures;
	if (c->in->type == SK_MSG_SLOT_WAIT)
		forget_lost_step(&w->request);
	request_await_change(&w->request);
	return CALL_LATER;
}

int call_wait(struct call *c)
{
	/* The bodies of PREPARE and SLOT_WAIT are alike. */
	uint32_t timeout_ms = c->in->body.prepare.timeout_ms;
	struct sk_cat_job *job;
	uint64_t failures = 0;
	int r;

	if (c->in->type == SK_MSG_WAIT) {
		timeout_ms = c->in->body.wait.timeout_ms;
		r = check_snapshot(c, &failures);
		if (r == 0)
			want_on_disk(c);
	} else {
		r = call_job(c, &c->in->body.prepare.id, &job);
	}
	return r ? r : begin(c, timeout_ms, failures);
}
