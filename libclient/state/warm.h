/* SPDX-License-Identifier: Apache-2.0 */
/* Mapped slots, faulted in beside everything else. */
#ifndef SK_LIBCLIENT_STATE_WARM_H
#define SK_LIBCLIENT_STATE_WARM_H

#include "state/state.h"

/**
 * Begins to fault in the slots as this process maps them, on a thread of its
 * own that stands back while a snapshot is copied. NULL without memory or
 * threads for it: then the first snapshots are slower.
 */
struct sk_warming *sk_warm_new(struct sk_state *state);
/** Returns when the agent has faulted in all slots of the rank. Any thread.
 * -ETIMEDOUT; the agent's errors, with a sentence. */
int sk_warm_ask(struct sk_state *state, uint64_t until_ns, struct sk_err *err);
/** The same where nobody but the agent may (sk_state.agent_faults) and it has
 * not said yet that it has: before anything touches a slot. */
int sk_warm_await(struct sk_state *state, uint64_t until_ns,
		  struct sk_err *err);
/** Before the slots are unmapped. Returns NULL. */
struct sk_warming *sk_warm_free(struct sk_warming *w);
/** Waits until all is faulted in, and page-locked where there are GPUs.
 * -ETIMEDOUT. */
int sk_warm_finish(struct sk_warming *w, uint64_t until_ns);
/** Returns when the pieces of a slot that [from, to) of an image touches are
 * faulted in, which it does itself where nobody has begun. Any thread. */
void sk_warm_range(struct sk_warming *w, uint32_t slot, int kind,
		   uint64_t from, uint64_t to);
/** The same for all of a slot, where no trainer waits: in huge pages, however
 * long it takes to get them. */
void sk_warm_slot(struct sk_warming *w, uint32_t slot);

#endif
