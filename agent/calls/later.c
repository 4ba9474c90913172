/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that are made once more when more is known: what images cover, or what
 * the disk has. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calls/call.h"
#include "disk/stored.h"
#include "session/request.h"
#include "session/rights.h"

/* Clients take an agent for dead that says nothing for longer. */
#define LATER_MS 5000u

struct later {
	struct request request;
	char job[SK_JOB_MAX + 1];
};

static int later_outcome(struct request *q, struct sk_err *err)
{
	const struct later *l = sk_link_object(q, struct later, request);
	const struct sk_cat_job *job = session_job(q->session, l->job);

	if (!job || !sk_cat_asking(job))
		return 0;
	return sk_err_set(err, -EAGAIN, "what images of job \"%s\" cover is "
			  "still being told", job->name);
}

static void later_answer(struct request *q, int status,
			 const struct sk_err *err)
{
	if (status == 0)
		request_again(q);
	else
		request_answer(q, -EBUSY, NULL, NULL, 0, err);
}

static void later_release(struct request *q)
{
	free(sk_link_object(q, struct later, request));
}

static const struct request_kind later_kind = {
	.outcome = later_outcome,
	.answer = later_answer,
	.release = later_release,
};

int call_when_told(struct call *c, const struct sk_cat_job *job)
{
	struct later *l = calloc(1, sizeof(*l));
	int r;

	if (!l)
		return sk_err_set(&c->err, -ENOMEM, "no memory to wait");
	r = request_init(&l->request, &later_kind, c->session, c->in,
			 LATER_MS, &c->err);
	if (r < 0) {
		free(l);
		return r;
	}
	memcpy(l->job, job->name, sizeof(job->name));
	request_await_change(&l->request);
	return CALL_LATER;
}

/* ---- what only the disk may know ---- */

/* Of a job of which not much is known: among so many steps the newest one that
 * is complete is looked for. */
#define NEWEST_AMONG 16

struct looking {
	struct request request;
	struct stored_wish wish;
	unsigned looked;	/* for what, by then */
	struct chore chore;	/* when that is over: */
	int result;
	struct sk_err err;
};

static void looking_release(struct request *q)
{
	struct looking *l = sk_link_object(q, struct looking, request);

	sk_link_remove(&l->chore.link);
	free(l);
}

static bool looking_take_back(struct request *q)
{
	return stored_unwish(&sk_link_object(q, struct looking, request)->wish);
}

static const struct request_kind looking_kind = {
	.take_back = looking_take_back,
	.release = looking_release,
};

static void go_on(struct chore *chore)
{
	struct looking *l = sk_link_object(chore, struct looking, chore);
	struct session *s = l->request.session;

	assert(s);
	if (l->result < 0) {
		request_answer(&l->request, l->result, NULL, NULL, 0, &l->err);
		return;
	}
	s->looked = l->looked;
	request_again(&l->request);
	s->looked = 0;
}

/* One look may be that of a thousand requests, and others wait. */
static void looked(struct stored_wish *wish, int r, const struct sk_err *err)
{
	struct looking *l = sk_link_object(wish, struct looking, wish);
	struct request *q = &l->request;

	q->busy = false;
	if (!q->session) {
		request_answer(q, r, NULL, NULL, 0, err);
		return;
	}
	l->result = r;
	l->err = *err;
	l->chore = (struct chore){ .run = go_on, .brief = true,
				   .party = q->session->chore.party };
	sk_link_init(&l->chore.link);
	loop_queue(&q->agent->loop, &l->chore);
}

static int look(struct call *c, const char *job, uid_t uid, unsigned what,
		const struct stored_range *range)
{
	struct looking *l = calloc(1, sizeof(*l));
	int r;

	if (!l)
		return sk_err_set(&c->err, -ENOMEM, "no memory to look at the "
				  "store");
	r = request_init(&l->request, &looking_kind, c->session, c->in, 0,
			 &c->err);
	if (r < 0) {
		free(l);
		return r;
	}
	sk_link_init(&l->chore.link);
	l->looked = c->session->looked | what;
	l->wish = (struct stored_wish){ .granted = looked, .uid = uid,
					.party = c->session->chore.party,
					.range = *range };
	(void)snprintf(l->wish.job, sizeof(l->wish.job), "%s", job);
	l->request.busy = true;
	stored_scan(c->agent, &l->wish);
	return CALL_LATER;
}

static bool may_look(const struct call *c, unsigned what)
{
	return c->agent->store && !(c->session->looked & what);
}

static int look_for_step(struct call *c, const char *job, uid_t uid,
			 const struct sk_wire_id *id)
{
	return look(c, job, uid, SESSION_LOOKED_STEP, &(struct stored_range){
		.most = SIZE_MAX, .run = id->run, .step = id->step });
}

int call_job_looked(struct call *c, const struct sk_wire_id *id,
		    struct sk_cat_job **ret_job)
{
	int r = call_job(c, id, ret_job);

	if (r != -ENOENT || !id->job[0] || id->step < 0 ||
	    !may_look(c, SESSION_LOOKED_STEP))
		return r;
	return look_for_step(c, id->job, c->session->uid, id);
}

int call_when_looked(struct call *c, const struct sk_cat_job *job,
		     const struct sk_wire_id *id)
{
	if (id->step < 0 || !may_look(c, SESSION_LOOKED_STEP))
		return sk_err_set(&c->err, -ENOENT, "job \"%s\" has no "
				  "snapshot of step %" PRId64 "; it was "
				  "discarded, evicted, or never taken",
				  job->name, id->step);
	return look_for_step(c, job->name, job->uid, id);
}

int call_step_looked(struct call *c, const struct sk_cat_snapshot *s)
{
	const struct sk_wire_id id = { .run = s->run, .step = s->step };

	return may_look(c, SESSION_LOOKED_STEP) ?
	       look_for_step(c, s->job->name, s->job->uid, &id) : 0;
}

int call_newest_looked(struct call *c, const struct sk_cat_job *job)
{
	if (!may_look(c, SESSION_LOOKED_NEWEST))
		return 0;
	return look(c, job->name, job->uid, SESSION_LOOKED_NEWEST,
		    &(struct stored_range){ .most = NEWEST_AMONG,
					    .step = -1 });
}
