/* SPDX-License-Identifier: Apache-2.0 */
/* UNREGISTER, and the ends that nobody announces. */
#include "calls/leave.h"

#include <assert.h>
#include <inttypes.h>

#include "calls/call.h"
#include "calls/device.h"
#include "calls/gather.h"
#include "calls/quarantine.h"
#include "calls/refusals.h"
#include "disk/flush.h"
#include "disk/stored.h"
#include "memory/heap.h"
#include "memory/record.h"
#include "session/lease.h"
#include "session/request.h"
#include "session/rights.h"

void rank_leave(struct agent *a, struct sk_cat_state *state, const char *why)
{
	struct sk_cat_run *run = state->run;
	unsigned lost;

	assert(state->living);
	gather_rank_gone(a, run, state->rank);
	device_slots_leave(a, state);
	for (int kind = 0; kind < 2; kind++) {
		if (state->layouts[kind])
			heap_freed(a, sk_layout_memory(
				   state->layouts[kind]->layout));
	}
	lost = sk_cat_state_end(state);
	record_run_over(a, run);
	a->counts.discarded_death += lost;
	run->job->figures.lost += lost;
	a->counts.deaths++;
	log_info(a, "rank %" PRId32 " of job \"%s\" run %" PRIu64 " %s%s",
		 state->rank, run->job->name, run->number, why,
		 lost ? "; the image it was filling is discarded" : "");
	/* The last one out: what a restart needs goes to disk. */
	if (!sk_cat_run_living(run))
		flush_newest(a, run->job);
	/* It may be back in a moment. */
	stored_foresee(a, run->job, 0);
	agent_changed(a);
}

int call_unregister(struct call *c)
{
	struct sk_cat_state *state = NULL;
	struct sk_cat_job *job;
	int r;

	r = call_state(c, c->in->body.state, &state);
	if (r < 0)
		return r;
	job = state->run->job;
	device_slots_drop(c->agent, state);
	rank_leave(c->agent, state, "left");
	c->agent->counts.deaths--;
	(void)sk_cat_trim_free(&c->agent->cat, job);
	return 0;
}

static void session_leave(struct agent *a, struct session *s)
{
	struct sk_cat_state *state;

	requests_abandon(s);
	refusal_left(s);
	lease_end_all(s);
	quarantine_begin(a, s);
	/* Ending one may change the lists that it stands in. */
	while ((state = session_any_state(s)))
		rank_leave(a, state, "died");
	session_free(s);
	agent_changed(a);
}

void sessions_leave(struct agent *a)
{
	/* A rank that dies with its connection has others told; where that
	 * fails, theirs is marked and comes to this list as well. */
	while (!sk_link_empty(&a->closing))
		session_leave(a, sk_link_object(a->closing.next,
						struct session, link));
}
