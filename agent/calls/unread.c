/* SPDX-License-Identifier: Apache-2.0 */
#include "calls/unread.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "calls/call.h"
#include "loop/closer.h"
#include "session/request.h"
#include "session/rights.h"

#define MS_NS UINT64_C(1000000)
/* Clients take an agent for dead that says nothing for longer. */
#define PATIENCE_MS 5000u

struct unread {
	struct request request;
	uint64_t began_ns;
	int fds[SK_MSG_FDS];
	int n_fds;
};

/* The job that is asked for; NULL: none is by its name. */
static const struct sk_wire_id *id_of(const struct sk_msg *msg)
{
	switch (msg->type) {
	case SK_MSG_REGISTER: return &msg->body.reg.id;
	case SK_MSG_PREPARE: return &msg->body.prepare.id;
	case SK_MSG_SLOT_WAIT: return &msg->body.slot_wait.id;
	case SK_MSG_WAIT: return &msg->body.wait.id;
	case SK_MSG_GATHER: return &msg->body.gather.id;
	case SK_MSG_LIST: return &msg->body.list.id;
	case SK_MSG_PIN:
	case SK_MSG_UNPIN:
	case SK_MSG_EVICT:
	case SK_MSG_FLUSH: return &msg->body.manage.id;
	case SK_MSG_RETAIN: return &msg->body.retain.id;
	case SK_MSG_KEEP: return &msg->body.keep.id;
	default: return NULL;
	}
}

/* One of that name is unread that the session may see; from then on it is the
 * next to be read. */
static bool ask_for(const struct session *s, const char *name)
{
	struct sk_cat_jobs named = sk_cat_jobs_named(&s->agent->cat, name);
	struct sk_cat_job *job;
	bool any = false;

	while ((job = sk_cat_jobs_next(&named))) {
		if (!job->is_unread || !session_sees(s, job))
			continue;
		job->unread_asked = true;
		any = true;
	}
	return any;
}

static bool fits(uint64_t used, uint64_t more, uint64_t most)
{
	return !most || (used <= most && more <= most - used);
}

/* Its share of descriptions cannot be told yet; and what would have to go to
 * make room for its slots may be among what is unread. */
static bool awaits_room(const struct session *s,
			const struct sk_wire_register *reg)
{
	const struct sk_catalogue *cat = &s->agent->cat;
	const struct sk_cat_user *user = sk_cat_user_find(cat, s->uid);
	bool bounded = s->uid && s->uid != cat->owner;
	uint64_t bytes, fds = 2ull * reg->slots, kinds[2];

	if (bounded && user && user->n_unread && cat->user_layouts)
		return true;
	if (reg->flags & SK_REGISTER_LATER ||
	    reg->slots > SK_STATE_SLOTS_MAX ||
	    reg->image_bytes[0] > INT64_MAX / 2 ||
	    reg->image_bytes[1] > INT64_MAX / 2)
		return false;
	bytes = sk_cat_slot_bytes(reg->image_bytes, kinds);
	bytes = bytes < UINT64_MAX / SK_STATE_SLOTS_MAX ?
		bytes * reg->slots : UINT64_MAX;
	if (!fits(cat->used, bytes, cat->budget) ||
	    !fits(cat->used_fds, fds, cat->budget_fds))
		return true;
	return bounded && user && user->n_unread &&
	       (!fits(user->used.bytes, bytes, cat->user_budget) ||
		!fits(user->used.fds, fds, cat->user_fds));
}

static bool has_to_wait(const struct session *s, const struct sk_msg *msg)
{
	const struct sk_wire_id *id = id_of(msg);
	const struct sk_catalogue *cat = &s->agent->cat;
	const struct sk_cat_user *user;

	if (!cat->n_unread)
		return false;
	if (msg->type == SK_MSG_TAKEOVER)	/* it is handed all */
		return session_admin(s);
	/* What cannot be is refused as ever. */
	if (!id || sk_wire_check_id(id, NULL) < 0)
		return false;
	if (id->job[0])
		return ask_for(s, id->job) || (msg->type == SK_MSG_REGISTER &&
					       awaits_room(s, &msg->body.reg));
	user = sk_cat_user_find(cat, s->uid);
	return session_admin(s) || (user && user->n_unread);
}

/* ---- how long ---- */

/* Where the call says what time it has; 0: it says none. */
static size_t timeout_at(const struct sk_msg *msg)
{
	switch (msg->type) {
	case SK_MSG_PREPARE:
		return offsetof(struct sk_msg, body.prepare.timeout_ms);
	case SK_MSG_SLOT_WAIT:
		return offsetof(struct sk_msg, body.slot_wait.timeout_ms);
	case SK_MSG_WAIT:
		return offsetof(struct sk_msg, body.wait.timeout_ms);
	case SK_MSG_GATHER:
		return offsetof(struct sk_msg, body.gather.timeout_ms);
	default:
		return 0;
	}
}

static uint32_t timeout_of(const struct sk_msg *msg)
{
	uint32_t ms;

	memcpy(&ms, (const char *)msg + timeout_at(msg), sizeof(ms));
	return ms;
}

/* One that comes back while it is looked at, as its client knows how to. */
static bool may_say_looking(const struct sk_msg *msg)
{
	return msg->type == SK_MSG_LIST &&
	       (msg->body.list.wait_ms ||
		!(msg->body.list.flags & SK_LIST_KNOWN));
}

/* 0: until it is over, which of a call's own time is to look once. */
static uint32_t bound_of(const struct sk_msg *msg)
{
	if (timeout_at(msg))
		return timeout_of(msg) ? : 1;
	if (may_say_looking(msg))
		return msg->body.list.wait_ms;
	/* Who takes over has a time of its own for all of it. */
	return msg->type == SK_MSG_TAKEOVER ? 0 : PATIENCE_MS;
}

/* What is left of it is the call's; 0 would be for ever. */
static void spend(struct unread *u)
{
	struct request *q = &u->request;
	uint64_t spent_ms = (agent_now(q->agent) - u->began_ns) / MS_NS;
	uint32_t ms;

	if (!timeout_at(&q->msg) || !timeout_of(&q->msg))
		return;
	ms = timeout_of(&q->msg);
	ms -= spent_ms < ms ? (uint32_t)spent_ms : ms - 1;
	memcpy((char *)&q->msg + timeout_at(&q->msg), &ms, sizeof(ms));
}

/* ---- waiting ---- */

static int unread_outcome(struct request *q, struct sk_err *err)
{
	if (!has_to_wait(q->session, &q->msg))
		return 0;
	return sk_err_set(err, -EAGAIN, "what the last agent left is still "
			  "being read");
}

static void close_fds(struct agent *a, uid_t uid, int *fds, int n)
{
	for (int i = 0; i < n; i++) {
		if (fds[i] >= 0)
			closer_close(a->closer, uid, fds[i]);
		fds[i] = -1;
	}
}

/* How far it is: who comes back sees that it goes on. What is looked at
 * meanwhile is others'. */
static void say_looking(struct request *q, const struct sk_err *why)
{
	const struct agent *a = q->agent;
	struct sk_err none = { "" };
	struct sk_msg msg = { .body.list_reply = {
		.looking = 1, .n = a->read_images } };

	(void)snprintf(msg.body.list_reply.text,
		       sizeof(msg.body.list_reply.text), "%s", why->text);
	request_answer(q, 0, &msg, NULL, 0, &none);
}

/* A rank comes again by itself; who waits has waited; others may. */
static void say_late(struct request *q, const struct sk_err *why)
{
	if (may_say_looking(&q->msg))
		say_looking(q, why);
	else
		request_answer(q, q->msg.type == SK_MSG_REGISTER ? -EAGAIN :
			       timeout_at(&q->msg) ? -ETIMEDOUT : -EBUSY,
			       NULL, NULL, 0, why);
}

static void unread_answer(struct request *q, int status,
			  const struct sk_err *err)
{
	struct unread *u = sk_link_object(q, struct unread, request);
	struct agent *a = q->agent;
	uid_t uid = q->session->uid;
	int fds[SK_MSG_FDS], n = u->n_fds;

	if (status < 0) {
		say_late(q, err);
		return;
	}
	spend(u);
	for (int i = 0; i < n; i++)
		fds[i] = sk_take_fd(&u->fds[i]);
	request_again_with(q, fds, n);
	close_fds(a, uid, fds, n);
}

static void unread_release(struct request *q)
{
	struct unread *u = sk_link_object(q, struct unread, request);

	for (int i = 0; i < u->n_fds; i++)
		u->fds[i] = sk_close_fd(u->fds[i]);
	free(u);
}

static const struct request_kind unread_kind = {
	.outcome = unread_outcome,
	.answer = unread_answer,
	.release = unread_release,
};

int call_when_read(struct call *c)
{
	struct unread *u;
	int r;

	if (!has_to_wait(c->session, c->in))
		return 0;
	u = calloc(1, sizeof(*u));
	if (!u)
		return sk_err_set(&c->err, -ENOMEM, "no memory to wait");
	u->began_ns = agent_now(c->agent);
	r = request_init(&u->request, &unread_kind, c->session, c->in,
			 bound_of(c->in), &c->err);
	if (r < 0) {
		free(u);
		return r;
	}
	for (; u->n_fds < c->n_fds; u->n_fds++)
		u->fds[u->n_fds] = sk_take_fd(&c->fds[u->n_fds]);
	request_await_change(&u->request);
	return CALL_LATER;
}
