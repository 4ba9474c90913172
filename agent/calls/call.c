/* SPDX-License-Identifier: Apache-2.0 */
/* What several handlers begin with. */
#include "calls/call.h"

#include <assert.h>
#include <inttypes.h>

#include "session/rights.h"

int call_job(struct call *c, const struct sk_wire_id *id,
	     struct sk_cat_job **ret_job)
{
	struct sk_cat_job *job;
	int r;

	r = sk_wire_check_id(id, &c->err);
	if (r < 0)
		return r;
	job = session_job(c->session, id->job);
	if (!job)
		return sk_err_set(&c->err, -ENOENT, "there is no job \"%s\"",
				  id->job);
	*ret_job = job;
	return 0;
}

int call_slot_of(struct call *c, uint64_t id, uint32_t number,
		 struct sk_cat_slot **ret_slot)
{
	struct sk_cat_state *state = NULL;
	struct sk_cat_slot *slot;
	int r = call_state(c, id, &state);

	if (r < 0)
		return r;
	sk_link_each(slot, &state->slots, link) {
		if (slot->number == number) {
			*ret_slot = slot;
			return 0;
		}
	}
	return sk_err_set(&c->err, -EINVAL, "rank %" PRId32 " of job \"%s\" "
			  "has no slot %" PRIu32, state->rank,
			  state->run->job->name, number);
}

int call_check_filling(struct call *c, const struct sk_cat_slot *slot,
		       int64_t step)
{
	if (slot->use == SK_CAT_FILLING && slot->snapshot->step == step)
		return 0;
	return sk_err_set(&c->err, -EINVAL, "slot %" PRIu32 " of rank %" PRId32
			  " is not being filled for step %" PRId64,
			  slot->number, slot->state->rank, step);
}

int call_state(struct call *c, uint64_t id, struct sk_cat_state **ret_state)
{
	struct sk_cat_state *state = session_state(c->session, id);

	if (!state)
		return sk_err_set(&c->err, -ENOENT, "state %" PRIu64 " is not "
				  "one of this connection", id);
	assert(state->living);
	*ret_state = state;
	return 0;
}
