/* SPDX-License-Identifier: Apache-2.0 */
/*
 * KEEP: what of a run stays on disk, as its ranks say. It stands in the store,
 * for agents that come after this one; it is answered when it does.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "calls/call.h"
#include "catalogue/kept.h"
#include "disk/retain.h"
#include "session/request.h"

/* Snapshots that are looked at for what was written last: of those before,
 * flushes wait for none. */
#define AMONG 64u

/* What is read and written; its work has all but the request. */
struct keeping {
	struct request request;
	struct work work;
	char job[SK_JOB_MAX + 1];
	uid_t uid;
	uint64_t run, run_id;
	int64_t steps[2];
	struct sk_staying known;	/* by the agent; then what the store
					 * says */
	int result;
	struct sk_err err;
};

/* ---- in the background ---- */

/* What the store says was said by another agent, or by one before. */
static void write_down(struct work *work)
{
	struct keeping *k = sk_link_object(work, struct keeping, work);
	struct sk_store *store = k->request.agent->store;
	struct sk_staying stands;

	k->result = sk_store_staying(store, k->job, &stands, &k->err);
	if (k->result < 0)
		return;
	if (stands.run)
		k->known = stands;
	sk_staying_say(&k->known, k->run, k->run_id, k->steps);
	if (sk_staying_equal(&stands, &k->known))
		return;
	k->result = sk_store_set_staying(store, k->job, &k->known, &k->err);
	/* Before the first step is written there is nothing to keep. */
	if (k->result == -ENOENT)
		k->result = 0;
}

/* ---- the answer ---- */

static void keeping_release(struct request *r)
{
	free(sk_link_object(r, struct keeping, request));
}

static const struct request_kind keeping_kind = { .release = keeping_release };

static bool has(const struct agent *a, const struct sk_cat_snapshot *s)
{
	return sk_cat_written_here(s) && !retain_deletes(a, s);
}

static void say_written(const struct agent *a, const struct sk_cat_run *run,
			int64_t next, struct sk_wire_keep_reply *out)
{
	const struct sk_cat_snapshot *s;
	unsigned n = 0;

	*out = (struct sk_wire_keep_reply){ .written = -1 };
	sk_link_each(s, &run->job->snapshots, link) {
		run->job->catalogue->visits++;
		if (s->run < run->number || n++ == AMONG)
			break;
		if (s->run_id == run->id && has(a, s)) {
			out->written = s->step;
			break;
		}
	}
	s = next < 0 ? NULL :
	    sk_cat_snapshot_find(run->job, run->number, run->id, next);
	out->has_next = s && has(a, s);
}

static void written_down(struct work *work)
{
	struct keeping *k = sk_link_object(work, struct keeping, work);
	struct agent *a = k->request.agent;
	struct sk_cat_job *job = sk_cat_job_find(&a->cat, k->job, k->uid);
	struct sk_cat_run *run = job ? sk_cat_run_find(job, k->run,
						       k->run_id) : NULL;
	struct sk_msg msg = { 0 };

	k->request.busy = false;
	if (k->result == 0 && !run)
		k->result = sk_err_set(&k->err, -ENOENT, "job \"%s\" has no "
				       "run %" PRIu64 " here any more", k->job,
				       k->run);
	if (k->result == 0) {
		job->staying = k->known;
		say_written(a, run, k->steps[1], &msg.body.keep_reply);
	}
	request_answer(&k->request, k->result, k->result < 0 ? NULL : &msg,
		       NULL, 0, &k->err);
}

/* ---- the call ---- */

static int check(struct call *c, const struct sk_cat_job *job,
		 struct sk_cat_run **ret_run)
{
	const struct sk_wire_keep *in = &c->in->body.keep;
	struct sk_cat_state *state = NULL;

	if (in->steps[0] < -1 || in->steps[1] < -1)
		return sk_err_set(&c->err, -EINVAL, "steps %" PRId64 " and %"
				  PRId64 " to keep cannot be", in->steps[0],
				  in->steps[1]);
	*ret_run = sk_cat_run_find(job, in->id.run, in->id.run_id);
	if (*ret_run)
		state = sk_cat_state_find(*ret_run, in->id.rank);
	if (!state || !state->living)
		return sk_err_set(&c->err, -ENOENT, "rank %" PRId32 " of job "
				  "\"%s\" is not registered in run %" PRIu64,
				  in->id.rank, in->id.job, in->id.run);
	return 0;
}

static int write_first(struct call *c, const struct sk_cat_job *job,
		       const struct sk_cat_run *run)
{
	struct keeping *k = calloc(1, sizeof(*k));
	int r;

	if (!k)
		return sk_err_set(&c->err, -ENOMEM, "no memory for a request");
	r = request_init(&k->request, &keeping_kind, c->session, c->in, 0,
			 &c->err);
	if (r < 0) {
		free(k);
		return r;
	}
	memcpy(k->job, job->name, sizeof(k->job));
	k->uid = job->uid;
	k->run = run->number;
	k->run_id = run->id;
	memcpy(k->steps, c->in->body.keep.steps, sizeof(k->steps));
	k->known = job->staying;
	k->work.run = write_down;
	k->work.finish = written_down;
	k->request.busy = true;
	work_submit(&c->agent->loop.works, c->agent->slow, &k->work);
	return CALL_LATER;
}

int call_keep(struct call *c)
{
	const struct sk_wire_keep *in = &c->in->body.keep;
	struct sk_cat_run *run = NULL;
	struct sk_cat_job *job;
	int r = call_job(c, &in->id, &job);

	if (r == 0)
		r = check(c, job, &run);
	if (r < 0)
		return r;
	if (c->agent->store && degraded_on(&c->agent->degraded,
					   DEGRADED_STORE_HANGS))
		return sk_err_set(&c->err, -EIO, "the store hangs, and what "
				  "stays of job \"%s\" cannot be written down",
				  job->name);
	if (c->agent->store)
		return write_first(c, job, run);
	sk_staying_say(&job->staying, run->number, run->id, in->steps);
	say_written(c->agent, run, in->steps[1], &c->out.body.keep_reply);
	return 0;
}
