/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/one-run.h"

#include <assert.h>
#include <inttypes.h>

#include "state/register.h"

/* Each agent draws an id of its own, which only a restore makes the others'
 * as well: who has just come, and was let into one run by two agents, stands
 * among ranks that have met already. The other one's number; 0: none. */
static int32_t find_twin(const struct sk_restoring *rs,
			 const struct sk_restore_ballot *ballots)
{
	int32_t other = 0;

	for (int32_t i = 0; i < rs->state->job.world; i++) {
		if (!ballots[i].run || !ballots[i].fresh)
			return 0;
		if (!other && ballots[i].agent != ballots[0].agent &&
		    ballots[i].run == ballots[0].run &&
		    ballots[i].run_id == ballots[0].run_id)
			other = i;
	}
	return other;
}

int sk_restore_check_run(struct sk_restoring *rs,
			 const struct sk_restore_ballot *ballots)
{
	int32_t other = find_twin(rs, ballots);

	/* By the agent's comm there is one agent, or one after the other. */
	if (!other || rs->comm.ctx == &rs->agent_comm)
		return 0;
	/* An agent that another one has followed since looks like two. */
	if (rs->listed_again < SK_LIST_AGAIN_MAX) {
		rs->stale = true;
		return sk_err_set(&rs->err, -ENOENT, "ranks 0 and %" PRId32
				  " asked agents of which one may have "
				  "followed the other", other);
	}
	return sk_err_set(&rs->err, -EEXIST, "the agents of ranks 0 and %"
			  PRId32 " have living ranks of job \"%s\" in run %"
			  PRIu64 ", which have met without these; two jobs of "
			  "one name? Or ranks that have not ended yet?", other,
			  rs->state->job.name, ballots[0].run);
}

void sk_restore_join_run(struct sk_restoring *rs,
			 const struct sk_restore_ballot *ballots)
{
	const struct sk_restore_ballot *chosen = &ballots[0];
	struct sk_state *state = rs->state;

	assert(state->job.world > 0);
	for (int32_t i = 0; i < state->job.world; i++) {
		if (!ballots[i].run)
			return;		/* readers, or one that failed */
		if (ballots[i].run > chosen->run)
			chosen = &ballots[i];
	}
	state->fresh = false;
	if (state->run == chosen->run && state->run_id == chosen->run_id)
		return;
	sk_state_unregister(state);
	sk_state_set_run(state, chosen->run, chosen->run_id);
	(void)sk_state_register(state, false, sk_until(rs->sk), NULL);
}
