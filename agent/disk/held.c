/* SPDX-License-Identifier: Apache-2.0 */
#include "disk/held.h"

#include <string.h>

#include "agent.h"
#include "disk/faults.h"
#include "catalogue/pins.h"
#include "disk/settle.h"

/* Whether there is anything of the job to be looked at. */
static bool has_pins(const struct sk_cat_job *job)
{
	const struct sk_cat_snapshot *s;

	sk_link_each(s, &job->live, live) {
		if (s->pinned)
			return true;
	}
	return false;
}

/* The first of its living ranks that is held; the others are as it is. */
static bool is_held(const struct sk_cat_job *job, struct sk_err *why)
{
	const struct sk_cat_state *state;
	const struct sk_cat_run *run;

	sk_link_each(run, &job->runs, link)
	sk_link_each(state, &run->states, link) {
		job->catalogue->visits++;
		if (state->living && sk_cat_state_held(state, why))
			return true;
	}
	return false;
}

/* Whether any was missing. */
static bool write_pins(struct agent *a, const struct sk_cat_job *job)
{
	struct sk_cat_snapshot *s;
	bool any = false;

	sk_link_each(s, &job->live, live) {
		if (!sk_cat_pin_missing(s))
			continue;
		settle_step(a, s);
		any = true;
	}
	return any;
}

void held_why(const struct agent *a, const uid_t *user, struct sk_err *ret_why)
{
	const struct sk_cat_job *job;
	bool hidden = false;

	/* Those that are held are looked at again. */
	sk_link_each(job, &a->cat.awake[SK_CAT_HELD], awake[SK_CAT_HELD]) {
		if (user && job->uid != *user)
			hidden |= is_held(job, NULL);
		else if (is_held(job, ret_why))
			return;
	}
	(void)sk_err_set(ret_why, 0, "%s", hidden ? "a job of another user" :
			 "");
}

void held_look(struct agent *a)
{
	struct sk_err why = { "" };
	struct sk_cat_job *job;
	struct sk_link taken;
	bool held = false;

	sk_cat_awake_take(&a->cat, SK_CAT_HELD, &taken);
	while ((job = sk_cat_awake_next(&taken, SK_CAT_HELD))) {
		bool is = false;

		faults_withdrawn(a, job);
		if (!has_pins(job))
			continue;
		is = is_held(job, held ? NULL : &why);
		held |= is;
		/* Only then: until it is known to fail it is under way. */
		if (write_pins(a, job) || is)
			sk_cat_wake_for(job, SK_CAT_HELD);
	}
	degraded_is(a, DEGRADED_PINS, held, why.text);
}
