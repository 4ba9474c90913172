/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deferred requests. After every event all of them are looked at again: they
 * are few, and looking is cheap.
 */
#include "agent.h"

#include <string.h>
#include <sys/stat.h>

static void wait_free(struct wait *w)
{
	sk_close_fd(w->fd);
	free(w);
}

int wait_add(struct agent *a, struct session *s, struct sk_msg *msg, int fd,
	     uint32_t timeout_ms)
{
	struct wait *w = calloc(1, sizeof(*w));

	if (!w)
		return -ENOMEM;
	if (timeout_ms > SK_WAIT_MAX_MS)
		timeout_ms = SK_WAIT_MAX_MS;
	w->session = s;
	w->msg = *msg;
	w->fd = fd;
	w->deadline_ns = now_ns(a) + (uint64_t)timeout_ms * 1000000;
	w->next = a->waits;
	a->waits = w;
	return 0;
}

void waits_drop(struct agent *a, const struct session *s)
{
	/* Only marked: waits_check() may be walking over them. */
	for (struct wait *w = a->waits; w; w = w->next)
		if (w->session == s)
			w->session = NULL;
}

uint64_t waits_next_ns(const struct agent *a)
{
	uint64_t next = 0;

	for (struct wait *w = a->waits; w; w = w->next)
		if (!next || w->deadline_ns < next)
			next = w->deadline_ns;
	return next;
}

/* ---- each kind; -EAGAIN: not yet ---- */

static struct state *own_rank(struct agent *a, const struct wait *w)
{
	const struct sk_wire_id *id = &w->msg.body.prepare.id;
	struct state *st = state_of_rank(a, id->job, id->run, id->rank);

	return st && st->uid == w->session->uid ? st : NULL;
}

static int try_prepare(struct agent *a, struct wait *w, struct sk_err *err)
{
	struct state *st = own_rank(a, w);

	if (!st)
		return sk_err_set(err, -ENOENT, "that rank is not registered");
	return state_ready(st) ? 0 : -EAGAIN;
}

static int try_slot(struct agent *a, struct wait *w, struct sk_err *err)
{
	struct state *st = own_rank(a, w);

	if (!st)
		return sk_err_set(err, -ENOENT, "that rank is not registered");
	return slot_would(a, st) < 0 ? -EAGAIN : 0;
}

/* True while a rank of the run may yet bring the snapshot about. */
static bool may_come(struct agent *a, const struct sk_wire_id *id)
{
	for (struct state *st = a->states; st; st = st->next)
		if (st->session && !strcmp(st->job->name, id->job) &&
		    st->run == id->run)
			return true;
	return false;
}

static int try_wait(struct agent *a, struct wait *w, struct sk_err *err)
{
	const struct sk_wire_id *id = &w->msg.body.wait.id;
	struct sk_cat_job *job = sk_cat_find_job(&a->cat, id->job);
	struct sk_cat_snapshot *s;
	uint32_t until = w->msg.body.wait.until;

	if (until == 3 && !a->store)
		return sk_err_set(err, -ENOTCONN, "the agent has no store, "
				  "nothing becomes durable; start it with "
				  "--store");
	s = job && session_may(a, w->session, job->uid) ?
	    sk_cat_find(job, id->run, (uint64_t)id->step) : NULL;
	if (!s || (until == 1 && !sk_cat_find_image(s, id->rank,
						    SK_IMAGE_PRIMARY))) {
		if (may_come(a, id))
			return -EAGAIN;
		return sk_err_set(err, -ENOENT, "there is no step %lld of job "
				  "\"%s\", run %llu", (long long)id->step,
				  id->job, (unsigned long long)id->run);
	}
	if (until == 1 || (until == 2 && s->complete) || sk_cat_durable(s))
		return 0;
	if (s->hopeless)
		return sk_err_set(err, -ENOENT, "step %lld will not be "
				  "complete: %s", (long long)id->step,
				  s->text);
	if (until == 3 && s->failed)
		return sk_err_set(err, -EIO, "the last try to flush failed: "
				  "%s", s->text);
	return -EAGAIN;
}

/* ---- gathers ---- */

static bool same_gather(const struct wait *w, const struct wait *v)
{
	const struct sk_wire_gather *a = &w->msg.body.gather;
	const struct sk_wire_gather *b = &v->msg.body.gather;

	return w->session && w->msg.type == SK_MSG_GATHER &&
	       w->session->uid == v->session->uid && a->round == b->round &&
	       a->id.run == b->id.run && a->id.world == b->id.world &&
	       !strcmp(a->id.job, b->id.job);
}

static int put_bytes(const struct wait *w, char *out)
{
	const struct sk_wire_gather *g = &w->msg.body.gather;
	uint64_t at = 0;

	if (w->fd < 0) {
		memcpy(out, g->data, g->bytes);
		return 0;
	}
	while (at < g->bytes) {
		ssize_t n = pread(w->fd, out + at, g->bytes - at, (off_t)at);

		if (n <= 0)
			return -EINVAL;
		at += (uint64_t)n;
	}
	return 0;
}

/* All that stand for @w's gather; -EAGAIN until every rank has come. */
static int try_gather(struct agent *a, struct wait *w, int *ret_fd,
		      struct sk_err *err)
{
	const struct sk_wire_gather *g = &w->msg.body.gather;
	uint64_t bytes = g->bytes;
	int32_t came = 0;
	char *out;
	int r = 0;

	for (struct wait *v = a->waits; v; v = v->next)
		came += same_gather(v, w);
	if (came < g->id.world)
		return -EAGAIN;
	out = calloc((size_t)g->id.world, bytes ? bytes : 1);
	if (!out)
		return sk_err_set(err, -ENOMEM, "out of memory");
	for (struct wait *v = a->waits; v && r >= 0; v = v->next) {
		if (!same_gather(v, w))
			continue;
		if (v->msg.body.gather.bytes != bytes)
			r = sk_err_set(err, -EINVAL, "ranks give different "
				       "numbers of bytes");
		else
			r = put_bytes(v, out + (uint64_t)
				      v->msg.body.gather.id.rank * bytes);
	}
	if (r >= 0)
		r = *ret_fd = memfd_with(out, (size_t)g->id.world * bytes,
					 err);
	free(out);
	return r < 0 ? r : 0;
}

static void answer(struct agent *a, struct wait *w, int r,
		   const struct sk_err *err, int fd)
{
	if (w->session)
		session_reply(a, w->session, &w->msg, r, err, &fd, fd >= 0);
	w->session = NULL;	/* swept at the end */
}

/* Answers all of a gather at once, so that none is left with half. */
static void answer_gather(struct agent *a, struct wait *w, int r,
			  const struct sk_err *err, int fd)
{
	struct wait like = *w;
	struct session who = *w->session;

	like.session = &who;
	for (struct wait *v = a->waits; v; v = v->next)
		if (same_gather(v, &like))
			answer(a, v, r, err, fd);
}

static void check(struct agent *a, struct wait *w, uint64_t now)
{
	struct sk_err err = { "" };
	int fd = -1, r;

	switch (w->msg.type) {
	case SK_MSG_PREPARE:
		r = try_prepare(a, w, &err);
		break;
	case SK_MSG_SLOT_WAIT:
		r = try_slot(a, w, &err);
		break;
	case SK_MSG_WAIT:
		r = try_wait(a, w, &err);
		break;
	default:
		r = try_gather(a, w, &fd, &err);
		if (r != -EAGAIN) {
			answer_gather(a, w, r, &err, fd);
			sk_close_fd(fd);
			return;
		}
	}
	if (r == -EAGAIN && now < w->deadline_ns)
		return;
	if (r == -EAGAIN)
		r = sk_err_set(&err, -ETIMEDOUT, w->msg.type == SK_MSG_GATHER ?
			       "a rank of the job did not come in time" :
			       "it did not happen in time");
	answer(a, w, r, &err, -1);
}

void waits_check(struct agent *a)
{
	uint64_t now = now_ns(a);
	struct wait **at;

	for (struct wait *w = a->waits; w; w = w->next)
		if (w->session)
			check(a, w, now);
	for (at = &a->waits; *at;) {
		struct wait *w = *at;

		if (w->session) {
			at = &w->next;
			continue;
		}
		*at = w->next;
		wait_free(w);
	}
}
