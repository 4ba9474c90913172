/* SPDX-License-Identifier: Apache-2.0 */
#include "state/ahead.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/util.h"

void sk_slot_give_back(struct sk_state *state, int64_t step, uint32_t slot)
{
	struct sk_msg msg = { .type = SK_MSG_DISCARD, .body.seal = {
		.state = state->id, .step = step, .slot = slot } };

	(void)sk_conn_call_in(&state->sk->conn, state->generation, &msg,
			      sk_until(state->sk), NULL);
}

/* What is laid out anew each time has new slots each time, too; and what
 * stands on GPUs is asked about them first. */
static bool is_worth_it(const struct sk_state *state)
{
	return state->id && state->n_slots && !state->changed &&
	       !state->ahead.vain && !state->ahead.asked &&
	       !__atomic_load_n(&state->gpus.n, __ATOMIC_ACQUIRE);
}

uint32_t sk_slot_flags(uint32_t flags, bool will_wait)
{
	return (flags & SK_SNAPSHOT_FLUSH ? SK_SLOT_FLUSH : 0) |
	       (flags & SK_SNAPSHOT_NO_FLUSH ? SK_SLOT_NO_FLUSH : 0) |
	       (will_wait ? SK_SLOT_WILL_WAIT : 0);
}

void sk_ahead_ask(struct sk_state *state, int64_t step,
		  const struct sk_snapshot_options *o)
{
	struct sk_ahead *a = &state->ahead;

	if (sk_state_check(state, NULL) < 0)
		return;
	(void)pthread_mutex_lock(&state->lock);
	if (is_worth_it(state) && step >= 0) {
		a->slot = (struct sk_wire_slot){
			.state = state->id, .step = step,
			.flags = sk_slot_flags(o->flags, true) };
		a->request = (struct sk_conn_ahead){ .msg = {
			.type = SK_MSG_SLOT, .body.slot = a->slot } };
		a->asked = sk_conn_ask_ahead(
			&state->sk->conn, state->generation, &a->request,
			sk_until(state->sk), NULL) >= 0;
	}
	(void)pthread_mutex_unlock(&state->lock);
}

static int hear(struct sk_state *state, uint64_t until_ns, struct sk_err *err)
{
	state->ahead.asked = false;
	return sk_conn_hear_ahead(&state->sk->conn, &state->ahead.request,
				  until_ns, err);
}

void sk_ahead_drop(struct sk_state *state)
{
	struct sk_ahead *a = &state->ahead;

	if (!a->asked || hear(state, sk_until(state->sk), NULL) < 0)
		return;
	if (a->slot.state == state->id)
		sk_slot_give_back(state, a->slot.step,
				  a->request.msg.body.slot_reply.slot);
}

void sk_ahead_forget(struct sk_state *state)
{
	if (state->ahead.asked)
		(void)hear(state, sk_until(state->sk), NULL);
}

void sk_ahead_end(struct sk_state *state)
{
	if (sk_state_check(state, NULL) < 0)
		return;
	(void)pthread_mutex_lock(&state->lock);
	sk_ahead_drop(state);
	(void)pthread_mutex_unlock(&state->lock);
}

bool sk_ahead_take(struct sk_state *state, struct sk_msg *msg,
		   uint64_t until_ns, int *ret_result, struct sk_err *err)
{
	struct sk_wire_slot wanted = msg->body.slot;
	struct sk_ahead *a = &state->ahead;
	int r;

	wanted.flags |= SK_SLOT_WILL_WAIT;
	if (!a->asked)
		return false;
	if (memcmp(&a->slot, &wanted, sizeof(wanted))) {
		sk_ahead_drop(state);
		return false;
	}
	r = hear(state, until_ns, err);
	if (r == -EBUSY)	/* then; there may be one by now */
		return false;
	*ret_result = r;
	*msg = a->request.msg;
	return true;
}
