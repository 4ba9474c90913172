/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slot of a snapshot that is about to be taken, asked for while its caller
 * still looks at what there is to save. An answer takes as long as it takes to
 * get a core where all ranks copy. It belongs to the step that it was asked
 * for, and goes back to the agent if that is not taken: nothing is held ahead
 * of a snapshot that nobody has begun.
 */
#ifndef SK_LIBCLIENT_STATE_AHEAD_H
#define SK_LIBCLIENT_STATE_AHEAD_H

#include "state/state.h"

/** Flags of a request by those of sk_snapshot_options. */
uint32_t sk_slot_flags(uint32_t flags, bool will_wait);

/** Asks for what sk_snapshot() with that step and those options will ask for,
 * where the state is as it was for the last one; else, and where that fails,
 * it will. Thread-safety: as sk_snapshot(). */
void sk_ahead_ask(struct sk_state *state, int64_t step,
		  const struct sk_snapshot_options *o);

/** Gives back what was asked for and not taken. Thread-safety: as
 * sk_snapshot(). */
void sk_ahead_end(struct sk_state *state);

/** The same with state->lock held. Others who wait for that step are told that
 * this rank does not bring it. */
void sk_ahead_drop(struct sk_state *state);

/** The state was registered anew, by which the agent has it back: the step is
 * still to come. With state->lock held. */
void sk_ahead_forget(struct sk_state *state);

/** Whether the slot of @msg was asked for; then its reply is in @msg and what
 * became of it in @ret_result, as of sk_conn_call_in(). What was asked for
 * another one is given back, and that there was none then does not count.
 * With state->lock held. */
bool sk_ahead_take(struct sk_state *state, struct sk_msg *msg,
		   uint64_t until_ns, int *ret_result, struct sk_err *err);

/** A slot that is not used, as one that is being filled it would be lost to
 * this rank for good. With state->lock held. */
void sk_slot_give_back(struct sk_state *state, int64_t step, uint32_t slot);

#endif
