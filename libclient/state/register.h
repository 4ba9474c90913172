/* SPDX-License-Identifier: Apache-2.0 */
/* What the agent knows of a state: layouts, an id, slots. */
#ifndef SK_LIBCLIENT_STATE_REGISTER_H
#define SK_LIBCLIENT_STATE_REGISTER_H

#include "state/state.h"

/**
 * Registers, or registers anew when the description changed or the agent is
 * another one than before; connects again where the connection was lost.
 * Without @slots the state is known to the agent, but has no memory there
 * yet. With state->lock held. Nothing to do: 0.
 * Errors: as sk_prepare(); -EROFS slots for a reader.
 */
int sk_state_register(struct sk_state *state, bool slots, uint64_t until_ns,
		      struct sk_err *err);

/** As a rank that describes nothing, where what it describes cannot be
 * registered: so it is in the job's run, and can meet the others. The next
 * sk_state_register() tries all of it again. Errors: the same. */
int sk_state_register_bare(struct sk_state *state, uint64_t until_ns);

/** Takes leave of the agent, unmaps the slots and forgets the layouts. No
 * snapshot may be under way. */
void sk_state_unregister(struct sk_state *state);

#endif
