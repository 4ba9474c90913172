/* SPDX-License-Identifier: Apache-2.0 */
#include "calls/refusals.h"

#include <stdio.h>
#include <string.h>

#include "agent.h"
#include "wire/message.h"

#define GONE_NS (UINT64_C(600) * 1000000000)	/* what a restart may take */

static bool is_of(const struct refusal *r, uid_t uid,
		  const struct sk_wire_register *reg)
{
	return r->bytes && r->uid == uid && r->rank == reg->id.rank &&
	       strcmp(r->job, reg->id.job) == 0;
}

static bool fits(uint64_t used, uint64_t more, uint64_t most)
{
	return !most || (used <= most && more <= most - used);
}

static bool can_be_had(const struct agent *a, const struct refusal *r)
{
	const struct sk_catalogue *cat = &a->cat;
	const struct sk_cat_user *user = sk_cat_user_find(cat, r->uid);
	bool bounded = r->uid && r->uid != cat->owner;

	return fits(cat->used, r->bytes, cat->budget) &&
	       (!bounded || fits(user ? user->used.bytes : 0, r->bytes,
				 cat->user_budget));
}

static bool stands(const struct agent *a, struct refusal *r)
{
	if (r->bytes && can_be_had(a, r))
		r->bytes = 0;
	return r->bytes;
}

/* Until its end those of a connection that is marked stand with it. */
static bool any_stands(const struct agent *a, const struct sk_link *sessions)
{
	struct session *s;
	bool any = false;

	sk_link_each(s, sessions, link)
		any |= stands(a, &s->refusal);
	return any;
}

void refusals_look(struct agent *a)
{
	struct sk_err why = { "" };
	bool on;

	if (a->refusal_left_ns <= agent_now(a))
		a->refusal.bytes = 0;
	on = stands(a, &a->refusal);
	on |= any_stands(a, &a->sessions);
	on |= any_stands(a, &a->closing);
	on |= any_stands(a, &a->lingering);
	if (on)
		refusals_why(a, NULL, &why);
	degraded_is(a, DEGRADED_MEMORY, on, why.text);
}

void refusal_met(struct session *s, const struct sk_wire_register *reg,
		 uint64_t bytes, const struct sk_err *err)
{
	struct refusal *r = &s->refusal;

	/* It may be one of a life before. */
	if (is_of(&s->agent->refusal, s->uid, reg))
		s->agent->refusal.bytes = 0;
	*r = (struct refusal){ .bytes = bytes ? bytes : 1, .uid = s->uid,
			       .rank = reg->id.rank, .why = *err };
	memcpy(r->job, reg->id.job, sizeof(r->job));
	degraded_set(s->agent, DEGRADED_MEMORY, err->text);
}

void refusal_over(struct session *s, const struct sk_wire_register *reg)
{
	struct agent *a = s->agent;
	struct session *other;

	if (!degraded_on(&a->degraded, DEGRADED_MEMORY))
		return;
	if (is_of(&a->refusal, s->uid, reg))
		a->refusal.bytes = 0;
	sk_link_each(other, &a->sessions, link) {
		if (is_of(&other->refusal, s->uid, reg))
			other->refusal.bytes = 0;
	}
	refusals_look(a);
}

void refusal_left(struct session *s)
{
	struct agent *a = s->agent;

	if (!s->refusal.bytes)
		return;
	a->refusal = s->refusal;
	a->refusal_left_ns = agent_now(a) + GONE_NS;
	s->refusal.bytes = 0;
}

static bool may_hear(const struct refusal *r, const uid_t *user,
		     bool *ret_hidden)
{
	if (!r->bytes)
		return false;
	if (!user || r->uid == *user)
		return true;
	*ret_hidden = true;
	return false;
}

static const struct refusal *find(const struct sk_link *sessions,
				  const uid_t *user, bool *ret_hidden)
{
	const struct session *s;

	sk_link_each(s, sessions, link) {
		if (may_hear(&s->refusal, user, ret_hidden))
			return &s->refusal;
	}
	return NULL;
}

void refusals_why(const struct agent *a, const uid_t *user,
		  struct sk_err *ret_why)
{
	bool hidden = false;
	const struct refusal *r = find(&a->sessions, user, &hidden);

	if (!r)
		r = find(&a->closing, user, &hidden);
	if (!r)
		r = find(&a->lingering, user, &hidden);
	if (!r && may_hear(&a->refusal, user, &hidden))
		r = &a->refusal;
	(void)sk_err_set(ret_why, 0, "%s", r ? r->why.text : hidden ?
			 "a rank of another user" : "");
}
