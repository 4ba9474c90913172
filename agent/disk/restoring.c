/* SPDX-License-Identifier: Apache-2.0 */
#include "disk/restoring.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent.h"
#include "disk/retain.h"
#include "store/store.h"

#define LOOK_NS UINT64_C(1000000000)

struct restoring {
	struct sk_link link;
	char job[SK_JOB_MAX + 1];
	uid_t uid;
	unsigned coming;		/* ranks that are being registered */
	uint64_t said_ns;
};

/* What the store is told; one after the other, by the thread that looks. */
struct saying {
	struct work work;
	struct agent *agent;
	char job[SK_JOB_MAX + 1];
	bool over;
	int result;
	struct sk_err err;
};

static void say_in_store(struct work *work)
{
	struct saying *s = sk_link_object(work, struct saying, work);

	if (s->over)
		sk_store_restored(s->agent->store, s->job);
	else
		s->result = sk_store_restoring(s->agent->store, s->job,
					       &s->err);
}

static void said(struct work *work)
{
	struct saying *s = sk_link_object(work, struct saying, work);

	if (s->result < 0)
		log_warning(s->agent, "%s", s->err.text);
	if (s->over)
		retain_go_on(s->agent, s->job);
	free(s);
}

static bool say(struct agent *a, const char *job, bool over)
{
	struct saying *s = calloc(1, sizeof(*s));

	if (!s)
		return false;
	s->agent = a;
	s->over = over;
	(void)snprintf(s->job, sizeof(s->job), "%s", job);
	s->work.run = say_in_store;
	s->work.finish = said;
	work_submit(&a->loop.works, a->slow, &s->work);
	return true;
}

static bool is_over(struct agent *a, const struct restoring *r)
{
	struct sk_cat_job *job = sk_cat_job_find(&a->cat, r->job, r->uid);

	return !r->coming && !(job && retain_is_held(a, job));
}

static void look(struct timer *timer)
{
	struct agent *a = sk_link_object(timer, struct agent, restoring_timer);
	uint64_t now = agent_now(a);
	struct restoring *r;

	sk_link_each(r, &a->restoring, link) {
		if (is_over(a, r) && say(a, r->job, true)) {
			sk_link_remove(&r->link);
			free(r);
		} else if (now - r->said_ns >= SK_STORE_RENEW_NS &&
			   say(a, r->job, false)) {
			r->said_ns = now;
		}
	}
	if (!sk_link_empty(&a->restoring))
		timer_set(&a->loop.timers, timer, now + LOOK_NS);
}

static struct restoring *find(struct agent *a, const char *job, uid_t uid)
{
	struct restoring *r;

	sk_link_each(r, &a->restoring, link)
		if (r->uid == uid && strcmp(r->job, job) == 0)
			return r;
	return NULL;
}

bool restoring_comes(struct agent *a, const char *job, uid_t uid)
{
	struct restoring *r = find(a, job, uid);

	if (!r) {
		r = calloc(1, sizeof(*r));
		if (!r)
			return false;
		(void)snprintf(r->job, sizeof(r->job), "%s", job);
		r->uid = uid;
		sk_link_insert(&a->restoring, &r->link);
	}
	r->coming++;
	r->said_ns = agent_now(a);
	a->restoring_timer.fire = look;
	if (!a->restoring_timer.set)
		timer_set(&a->loop.timers, &a->restoring_timer,
			  r->said_ns + LOOK_NS);
	return true;
}

void restoring_came(struct agent *a, const char *job, uid_t uid)
{
	struct restoring *r = find(a, job, uid);

	assert(r && r->coming);
	r->coming--;
}

void restoring_close(struct agent *a)
{
	struct restoring *r;

	timer_clear(&a->loop.timers, &a->restoring_timer);
	sk_link_each(r, &a->restoring, link) {
		sk_link_remove(&r->link);
		free(r);
	}
}
