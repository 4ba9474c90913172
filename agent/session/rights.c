/* SPDX-License-Identifier: Apache-2.0 */
#include "session/rights.h"

#include <errno.h>
#include <stdio.h>

#include "agent.h"
#include "session/session.h"

bool session_admin(const struct session *s)
{
	const struct agent *a = s->agent;

	return s->uid == 0 || s->uid == a->uid ||
	       (a->now.admin_uid != (uid_t)-1 &&
		s->uid == a->now.admin_uid);
}

int session_check_admin(const struct session *s, const char *what,
			struct sk_err *err)
{
	const struct agent *a = s->agent;
	char agents[32] = "", admins[32] = "";

	if (session_admin(s))
		return 0;
	if (a->uid)
		(void)snprintf(agents, sizeof(agents), " or %u",
			       (unsigned)a->uid);
	if (a->now.admin_uid != (uid_t)-1)
		(void)snprintf(admins, sizeof(admins), " or %u",
			       (unsigned)a->now.admin_uid);
	return sk_err_set(err, -EPERM, "only uid 0%s%s may %s", agents, admins,
			  what);
}

bool session_sees(const struct session *s, const struct sk_cat_job *job)
{
	return job->uid == s->uid || session_admin(s);
}

struct sk_cat_job *session_job(const struct session *s, const char *name)
{
	struct sk_cat_jobs named;
	struct sk_cat_job *job;

	job = sk_cat_job_find(&s->agent->cat, name, s->uid);
	if (job || !session_admin(s) || !name[0])
		return job;
	named = sk_cat_jobs_named(&s->agent->cat, name);
	return sk_cat_jobs_next(&named);
}

struct sk_cat_state *session_state(const struct session *s, uint64_t id)
{
	struct sk_cat_state *state = sk_cat_state_by_id(&s->agent->cat, id);

	return state && state->owner == s &&
	       state->run->job->uid == s->uid ? state : NULL;
}

struct sk_cat_state *session_any_state(const struct session *s)
{
	if (sk_link_empty(&s->states))
		return NULL;
	return sk_link_object(s->states.next, struct sk_cat_state, owned);
}
