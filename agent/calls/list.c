/* SPDX-License-Identifier: Apache-2.0 */
/* LIST: what there is, newest first, in a memfd of records. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "calls/call.h"
#include "calls/device.h"
#include "calls/records.h"
#include "disk/stored.h"
#include "memory/bytes.h"
#include "session/request.h"
#include "session/rights.h"

/* Clients take an agent for dead that says nothing for longer. */
#define DECIDE_MS 5000u
/* How much further back a list looks that found too few. */
#define FURTHER 8u
/* Snapshots and images that are gone through in one turn. */
#define PORTION 512u
#define NOBODY ((uid_t)-1)	/* comes before all users */

/* Through all that is listed, as far as a portion goes. */
struct walk {
	struct sk_cat_cursor at;
	char job[SK_JOB_MAX + 1];	/* that it is at, or has been, for it
					 * may go; "": before the first */
	uid_t uid;
	uint32_t complete;		/* that it has passed, of this job */
	uint32_t all;			/* and of all */
	bool over;
};

/* One that waits for the disk to be looked at, and then until it is known what
 * is complete. */
struct listing {
	struct request request;
	struct stored_wish wish;
	struct timer patience;		/* of who waits for the look */
	int looked;			/* what came of the look */
	struct sk_err err;		/* why not */
	struct chore chore;
	struct walk walk;
	unsigned left;			/* of the portion */
	bool waits, waited;		/* for what is not known yet */
	int fd;				/* the reply's memory; -1: not begun */
	struct sk_msg msg;
	struct records records;
};

/* ---- the call ---- */

static bool is_listed(const struct sk_wire_list *in,
		      const struct sk_cat_snapshot *s)
{
	return (!in->id.run || s->run == in->id.run) &&
	       (!in->id.run_id || s->run_id == in->id.run_id) &&
	       (in->id.step < 0 || s->step == in->id.step);
}

/* What the store may have between two that are known was not looked into. */
static bool is_beyond(const struct listing *l, const struct sk_cat_snapshot *s)
{
	const struct stored_end *end = &l->wish.end;

	return end->more && sk_cat_order(end->run.number, end->run.id,
					 (int64_t)end->step, s) > 0;
}

static void visit(struct listing *l, size_t n)
{
	l->request.agent->cat.visits += n;
	l->left -= l->left < n ? l->left : (unsigned)n;
}

/* What comes after its place: by name, descending; within a job they come
 * newest first already. */
static struct sk_cat_job *next_job(const struct listing *l)
{
	const char *only = l->request.msg.body.list.id.job;
	const struct walk *w = &l->walk;
	struct sk_cat_job *job;

	job = sk_cat_job_after(&l->request.agent->cat,
			       w->job[0] ? w->job : NULL, w->uid);
	return job && (!only[0] || strcmp(job->name, only) == 0) ? job : NULL;
}

static void walk_begin(struct listing *l)
{
	sk_cat_cursor_end(&l->walk.at);
	/* Before all of that name, or of any. */
	l->walk = (struct walk){ .uid = NOBODY };
	memcpy(l->walk.job, l->request.msg.body.list.id.job,
	       sizeof(l->walk.job));
}

/* It stands on the newest of another job, or on none that the caller does not
 * see; or it is over. */
static void walk_to_job(struct listing *l)
{
	struct sk_cat_job *job = next_job(l);
	struct walk *w = &l->walk;

	sk_cat_cursor_end(&w->at);
	w->over = !job;
	w->complete = 0;
	if (!job)
		return;
	memcpy(w->job, job->name, sizeof(w->job));
	w->uid = job->uid;
	if (session_sees(l->request.session, job))
		sk_cat_cursor_begin(&w->at, job);
}

/* Whether the job has no more that are listed. */
static bool is_enough(const struct listing *l, const struct sk_cat_snapshot *s)
{
	const struct sk_wire_list *in = &l->request.msg.body.list;

	return in->limit &&
	       (l->walk.complete >= in->limit || is_beyond(l, s));
}

/* The one that is listed where it stands, or the next; NULL: no more, or that
 * was the portion. */
static struct sk_cat_snapshot *walk_at(struct listing *l)
{
	const struct sk_wire_list *in = &l->request.msg.body.list;
	struct walk *w = &l->walk;

	while (l->left && !w->over) {
		struct sk_cat_snapshot *s = sk_cat_cursor_at(&w->at);

		visit(l, 1);
		if (!s || is_enough(l, s))
			walk_to_job(l);
		else if (is_listed(in, s))
			return s;
		else
			sk_cat_cursor_next(&w->at);
	}
	return NULL;
}

/* It has been gone through. */
static void walk_on(struct listing *l, const struct sk_cat_snapshot *s)
{
	bool complete = sk_cat_complete(s);

	visit(l, s->n_images);
	l->walk.complete += complete;
	l->walk.all += complete;
	sk_cat_cursor_next(&l->walk.at);
}

/* Whether memory alone has a snapshot that can be restored: then it answers
 * where the disk does not. */
static bool memory_answers(const struct request *q)
{
	struct sk_cat_jobs jobs = sk_cat_jobs_named(&q->agent->cat,
						    q->msg.body.list.id.job);
	const struct sk_cat_snapshot *s;
	const struct sk_cat_job *job;

	while ((job = sk_cat_jobs_next(&jobs))) {
		job->catalogue->visits++;
		if (!session_sees(q->session, job))
			continue;
		sk_link_each(s, &job->live, live) {
			if (is_listed(&q->msg.body.list, s) &&
			    sk_cat_whole_in_memory(s))
				return true;
		}
	}
	return false;
}

/* What the disk may have and nobody could look at is said in the reply. */
static void note_unreadable(struct listing *l, unsigned n,
			    const struct sk_err *why)
{
	struct sk_wire_list_reply *reply = &l->msg.body.list_reply;

	reply->unreadable = n;
	if (n)
		(void)snprintf(reply->text, sizeof(reply->text), "%s",
			       why->text);
}

/* ---- the reply ---- */

static void answer(struct listing *l, int r, const struct sk_err *err)
{
	int fd = sk_take_fd(&l->fd);

	l->msg.body.list_reply.record_bytes = (uint32_t)l->records.size;
	l->msg.body.list_reply.flags = l->records.flags;
	if (r < 0)
		fd = sk_close_fd(fd);
	request_answer(&l->request, r, r < 0 ? NULL : &l->msg, &fd, fd >= 0,
		       err);
}

/* Those of the portion; what is written need not be kept. */
static int write_records(struct listing *l, struct sk_err *err)
{
	struct records *records = &l->records;
	size_t n = records->n;

	l->msg.body.list_reply.n += n;
	records->n = 0;
	return bytes_add(l->request.agent->os, l->fd, records->data,
			 n * records->size, err);
}

static int add_portion(struct listing *l, struct sk_err *err)
{
	const struct sk_cat_snapshot *s;
	int r;

	while ((s = walk_at(l))) {
		r = records_add(l->request.agent, &l->records, s,
				&l->request.msg.body.list);
		if (r < 0)
			return sk_err_errno(err, r, "cannot list");
		walk_on(l, s);
	}
	return write_records(l, err);
}

static void put_together(struct chore *chore)
{
	struct listing *l = sk_link_object(chore, struct listing, chore);
	const struct sk_os *os = l->request.agent->os;
	struct sk_err err = { "" };
	int r;

	l->left = PORTION;
	r = add_portion(l, &err);
	if (r == 0 && !l->walk.over) {
		loop_queue(&l->request.agent->loop, chore);
		return;
	}
	if (r == 0)
		r = bytes_end(os, l->fd, &err);
	answer(l, r, &err);
}

static void queue(struct listing *l, void (*run)(struct chore *chore))
{
	l->chore.run = run;
	l->chore.party = l->request.session->chore.party;
	loop_queue(&l->request.agent->loop, &l->chore);
}

/* Where the disk cannot answer memory may. */
static void begin_reply(struct listing *l)
{
	struct request *q = &l->request;
	struct sk_err err = { "" };

	if (l->looked < 0 && !memory_answers(q)) {
		answer(l, l->looked, &l->err);
		return;
	}
	l->fd = bytes_begin(q->agent->os, "shardkeep:list", &err);
	if (l->fd < 0) {
		answer(l, l->fd, &err);
		return;
	}
	walk_begin(l);
	queue(l, put_together);
}

/* ---- what is not known yet ---- */

static void look_at_store(struct listing *l);

/* Whether the list ends for no other reason than that what is older was not
 * looked into. */
static bool is_short(const struct listing *l)
{
	uint32_t limit = l->request.msg.body.list.limit;

	return limit && l->looked == 0 && l->wish.end.more &&
	       l->walk.all < limit;
}

static void all_decided(struct listing *l)
{
	if (is_short(l)) {
		l->wish.range.most *= FURTHER;
		look_at_store(l);
		return;
	}
	note_unreadable(l, l->looked < 0 ? 1 : l->wish.unreadable,
			l->looked < 0 ? &l->err : &l->wish.first);
	begin_reply(l);
}

/* Nobody can tell what it would be; who comes back may. How many files were
 * looked at would have him take each look of his own for progress. */
static void say_unknown(struct listing *l, const struct sk_err *why)
{
	struct sk_wire_list_reply *reply = &l->msg.body.list_reply;
	struct request *q = &l->request;
	struct sk_err none = { "" };

	reply->looking = 1;
	(void)snprintf(reply->text, sizeof(reply->text), "%s", why->text);
	request_answer(q, 0, &l->msg, NULL, 0, &none);
}

/* What is not known yet may be there, and is said to be. Who asks for the
 * newest would go on with an older one. */
static void too_late(struct listing *l, const struct sk_err *why)
{
	const struct sk_wire_list *in = &l->request.msg.body.list;

	if (in->limit && in->wait_ms) {
		say_unknown(l, why);
		return;
	}
	note_unreadable(l, l->wish.unreadable + 1, why);
	begin_reply(l);
}

/* Twice as long as for the look: then who waits hears it in his time. */
static uint32_t decide_ms(const struct listing *l)
{
	uint32_t ms = l->request.msg.body.list.wait_ms;

	return ms && ms < DECIDE_MS / 2 ? 2 * ms : DECIDE_MS;
}

/* Once for all that it waits for. */
static void wait(struct listing *l)
{
	if (!l->waited)
		request_await_change_for(&l->request, decide_ms(l));
	else
		request_await_change(&l->request);
	l->waits = l->waited = true;
}

static int say_undecided(const struct sk_cat_snapshot *s, struct sk_err *err)
{
	return sk_err_set(err, -EAGAIN, "%s whether step %" PRId64 " of job "
			  "\"%s\" is complete", sk_cat_asking(s->job) ?
			  "it is still being told" : "no memory to tell",
			  s->step, s->job->name);
}

static bool is_asked(const void *ctx, const struct sk_cat_job *job)
{
	const struct request *q = ctx;
	const char *only = q->msg.body.list.id.job;

	return (!only[0] || strcmp(job->name, only) == 0) &&
	       session_sees(q->session, job);
}

/* A job that is listed, and of which a dead rank left something on a GPU. */
static const struct sk_cat_job *draining(const struct listing *l)
{
	const struct request *q = &l->request;

	return device_draining_which(q->agent, is_asked, q);
}

static int say_draining(const struct sk_cat_job *job, struct sk_err *err)
{
	return sk_err_set(err, -EAGAIN, "what a rank of job \"%s\" left on a "
			  "GPU is still being brought to memory", job->name);
}

static void decide(struct chore *chore)
{
	struct listing *l = sk_link_object(chore, struct listing, chore);
	const struct sk_cat_job *left = draining(l);
	struct sk_err why = { "" };
	struct sk_cat_snapshot *s;

	if (left && !l->request.over) {
		wait(l);
		return;
	}
	if (left) {
		(void)say_draining(left, &why);
		too_late(l, &why);
		return;
	}
	l->left = PORTION;
	while ((s = walk_at(l))) {
		if (!sk_cat_undecided(s)) {
			walk_on(l, s);
			continue;
		}
		if (!l->request.over) {
			wait(l);
			return;
		}
		(void)say_undecided(s, &why);
		too_late(l, &why);
		return;
	}
	if (l->walk.over)
		all_decided(l);
	else
		loop_queue(&l->request.agent->loop, chore);
}

static int listing_outcome(struct request *q, struct sk_err *err)
{
	const struct listing *l = sk_link_object(q, struct listing, request);
	const struct sk_cat_snapshot *s = sk_cat_cursor_at(&l->walk.at);
	const struct sk_cat_job *left = l->waits ? draining(l) : NULL;

	if (left)
		return say_draining(left, err);
	return l->waits && s && sk_cat_undecided(s) ? say_undecided(s, err) : 0;
}

/* @status < 0: what it waits for is not known in time. */
static void listing_answer(struct request *q, int status,
			   const struct sk_err *why)
{
	struct listing *l = sk_link_object(q, struct listing, request);

	if (!l->waits)
		return;		/* it is being gone on with */
	l->waits = false;
	if (status < 0)
		too_late(l, why);
	else
		queue(l, decide);
}

static void listing_release(struct request *q)
{
	struct listing *l = sk_link_object(q, struct listing, request);

	timer_clear(&l->request.agent->loop.timers, &l->patience);
	sk_link_remove(&l->chore.link);
	sk_cat_cursor_end(&l->walk.at);
	sk_close_fd(l->fd);
	free(l->records.data);
	free(l);
}

static bool listing_take_back(struct request *q)
{
	return stored_unwish(&sk_link_object(q, struct listing, request)->wish);
}

static const struct request_kind listing_kind = {
	.outcome = listing_outcome,
	.answer = listing_answer,
	.take_back = listing_take_back,
	.release = listing_release,
};

static void listing_granted(struct stored_wish *wish, int r,
			    const struct sk_err *why)
{
	struct listing *l = sk_link_object(wish, struct listing, wish);
	struct request *q = &l->request;
	struct sk_err err = { "" };

	q->busy = false;
	timer_clear(&q->agent->loop.timers, &l->patience);
	l->looked = r;
	l->err = *why;
	if (!q->session) {
		request_answer(q, -ECONNRESET, NULL, NULL, 0, &err);
		return;
	}
	walk_begin(l);
	queue(l, decide);
}

/* The look goes on; who comes back finds what it has seen. */
static void say_looking(struct timer *timer)
{
	struct listing *l = sk_link_object(timer, struct listing, patience);
	struct request *q = &l->request;
	struct sk_err none = { "" };
	struct sk_msg msg = { .body.list_reply = {
		.looking = 1,
		.n = __atomic_load_n(&q->agent->looked_at, __ATOMIC_RELAXED),
	} };

	assert(q->busy);
	if (!q->session)
		return;
	if (!stored_unwish(&l->wish)) {
		request_leave(q, 0, &msg, &none);
		return;
	}
	q->busy = false;
	request_answer(q, 0, &msg, NULL, 0, &none);
}

static void look_at_store(struct listing *l)
{
	struct request *q = &l->request;
	uint32_t wait_ms = q->msg.body.list.wait_ms;

	q->busy = true;
	l->patience.fire = say_looking;
	if (wait_ms)
		timer_set(&q->agent->loop.timers, &l->patience,
			  agent_now(q->agent) +
			  wait_ms * UINT64_C(1000000));
	stored_scan(q->agent, &l->wish);
}

static void look_first(struct call *c, struct listing *l)
{
	const struct sk_wire_list *in = &c->in->body.list;
	struct sk_cat_job *job = NULL;

	if (in->id.job[0])
		job = session_job(c->session, in->id.job);
	l->wish = (struct stored_wish){
		.granted = listing_granted,
		.party = c->session->chore.party,
		.range = { .most = in->limit ? in->limit : SIZE_MAX,
			   .run = in->id.run, .step = in->id.step },
		.uid = job ? job->uid : c->session->uid,
	};
	/* It was checked: it ends within. */
	memcpy(l->wish.job, in->id.job, sizeof(l->wish.job));
	look_at_store(l);
}

static int check_asked(struct call *c)
{
	const struct sk_wire_list *in = &c->in->body.list;
	int r = sk_wire_check_id(&in->id, &c->err);

	if (r < 0)
		return r;
	if (in->what < SK_LIST_SNAPSHOTS || in->what > SK_LIST_PARTS)
		return sk_err_set(&c->err, -EINVAL, "there is no list %u",
				  in->what);
	if (in->what == SK_LIST_PARTS && (!in->id.job[0] || !in->id.run ||
					  !in->id.run_id || in->id.step < 0))
		return sk_err_set(&c->err, -EINVAL, "parts are listed of one "
				  "snapshot: job, run, its id and step");
	if (in->limit && !in->id.job[0])
		return sk_err_set(&c->err, -EINVAL, "a list has a limit where "
				  "it is of one job");
	return 0;
}

int call_list(struct call *c)
{
	const struct sk_wire_list *in = &c->in->body.list;
	struct sk_err none = { "" };
	struct listing *l;
	int r = check_asked(c);

	if (r < 0)
		return r;
	l = calloc(1, sizeof(*l));
	if (!l)
		return sk_err_set(&c->err, -ENOMEM, "no memory for a list");
	r = request_init(&l->request, &listing_kind, c->session, c->in, 0,
			 &c->err);
	if (r < 0) {
		free(l);
		return r;
	}
	l->fd = -1;
	l->records.size = records_size(in->what);
	sk_link_init(&l->chore.link);
	if (in->flags & SK_LIST_KNOWN)
		listing_granted(&l->wish, 0, &none);
	else
		look_first(c, l);
	return CALL_LATER;
}
