/* SPDX-License-Identifier: Apache-2.0 */
#include "disk/hold.h"

#define HOLD_NS (600 * UINT64_C(1000000000))

/* The serial of the last one that restores; 0: nobody does. */
static uint64_t who_restores(const struct sk_cat_job *job)
{
	const struct sk_cat_state *state;
	const struct sk_cat_run *run;
	uint64_t last = 0;

	sk_link_each(run, &job->runs, link)
		sk_link_each(state, &run->states, link)
			if (state->living && !state->n_slots &&
			    state->serial > last)
				last = state->serial;
	return last;
}

bool hold_stands(struct hold *hold, const struct sk_cat_job *job,
		 uint64_t now_ns)
{
	uint64_t who = who_restores(job);

	if (who > hold->who)
		*hold = (struct hold){ who, now_ns };
	return who && now_ns - hold->since_ns < HOLD_NS;
}
