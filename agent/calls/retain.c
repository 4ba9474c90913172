/* SPDX-License-Identifier: Apache-2.0 */
/* RETAIN: what is to stay of a job on disk. */
#include <stdlib.h>
#include <string.h>

#include "calls/call.h"
#include "disk/retain.h"
#include "session/request.h"

/* What is read, or written first; its work has all but the request. */
struct asking {
	struct request request;
	struct work work;
	char job[SK_JOB_MAX + 1];
	uid_t uid;
	uint32_t flags;
	struct sk_retention said;
	enum sk_retention_from from;	/* as the store's file says */
	struct sk_retention file;
	int result;
	struct sk_err err;
};

/* ---- in the background ---- */

static int write_said(struct asking *q)
{
	const struct sk_retention none = { 0 };
	struct sk_store *store = q->request.agent->store;
	bool set = q->flags & SK_RETAIN_SET;
	uid_t owner;
	int r;

	/* It may be said before there is anything to keep. */
	r = sk_store_claim(store, q->job, q->uid, &owner, &q->err);
	if (r == 0 && owner != q->uid)
		r = sk_err_set(&q->err, -EACCES, "the store holds a job \"%s\" "
			       "of another user", q->job);
	if (r == 0)
		r = sk_store_set_retention(store, q->job, set ?
					   SK_RETENTION_OPERATOR :
					   SK_RETENTION_DEFAULT,
					   set ? &q->said : &none, &q->err);
	return r;
}

static void ask_store(struct work *work)
{
	struct asking *q = sk_link_object(work, struct asking, work);

	q->result = q->flags ? write_said(q) : 0;
	if (q->result == 0)
		q->result = sk_store_retention(q->request.agent->store, q->job,
					       &q->from, &q->file, &q->err);
}

/* ---- the answer ---- */

static void asking_release(struct request *r)
{
	free(sk_link_object(r, struct asking, request));
}

static const struct request_kind asking_kind = { .release = asking_release };

static void fill_reply(const struct asking *q, const struct sk_cat_job *job,
		       struct sk_msg *msg)
{
	struct sk_wire_retain *reply = &msg->body.retain;
	struct sk_retention r = q->file;

	reply->id = q->request.msg.body.retain.id;
	reply->from = (uint32_t)retain_in_force(q->request.agent, job, q->from,
						&r);
	reply->retention = (struct sk_wire_retention){
		.keep_last = r.keep_last, .keep_every = r.keep_every,
		.keep_age_s = r.keep_age_s, .keep_bytes = r.keep_bytes,
	};
}

static void answered(struct work *work)
{
	struct asking *q = sk_link_object(work, struct asking, work);
	struct agent *a = q->request.agent;
	struct sk_cat_job *job = sk_cat_job_find(&a->cat, q->job, q->uid);
	struct sk_msg msg = { 0 };

	q->request.busy = false;
	if (q->result == 0 && !job)
		q->result = sk_err_set(&q->err, -ENOENT, "job \"%s\" is gone",
				       q->job);
	if (q->result == 0)
		fill_reply(q, job, &msg);
	if (q->result == 0 && q->flags)
		retain_due(a, job);
	request_answer(&q->request, q->result, q->result < 0 ? NULL : &msg,
		       NULL, 0, &q->err);
}

/* ---- the call ---- */

static int check(struct call *c)
{
	const struct sk_wire_retain *in = &c->in->body.retain;

	if (in->flags == (SK_RETAIN_SET | SK_RETAIN_DEFAULT))
		return sk_err_set(&c->err, -EINVAL, "what is to stay is either "
				  "said or left to others");
	if (in->retention.keep_age_s > INT64_MAX ||
	    in->retention.keep_bytes > INT64_MAX)
		return sk_err_set(&c->err, -EINVAL, "an age or a number of "
				  "bytes to keep is beyond 2^63");
	if (!c->agent->store)
		return sk_err_set(&c->err, -ENOTCONN, "the agent has no store; "
				  "start it with --store");
	return 0;
}

int call_retain(struct call *c)
{
	const struct sk_wire_retain *in = &c->in->body.retain;
	struct sk_cat_job *job;
	struct asking *q;
	int r = call_job(c, &in->id, &job);

	if (r == 0)
		r = check(c);
	if (r < 0)
		return r;
	q = calloc(1, sizeof(*q));
	if (!q)
		return sk_err_set(&c->err, -ENOMEM, "no memory for a request");
	r = request_init(&q->request, &asking_kind, c->session, c->in, 0,
			 &c->err);
	if (r < 0) {
		free(q);
		return r;
	}
	memcpy(q->job, job->name, sizeof(q->job));
	q->uid = job->uid;
	q->flags = in->flags;
	q->said = (struct sk_retention){
		.keep_last = in->retention.keep_last,
		.keep_every = in->retention.keep_every,
		.keep_age_s = in->retention.keep_age_s,
		.keep_bytes = in->retention.keep_bytes,
	};
	q->work.run = ask_store;
	q->work.finish = answered;
	q->request.busy = true;
	work_submit(&c->agent->loop.works, c->agent->slow, &q->work);
	return CALL_LATER;
}
