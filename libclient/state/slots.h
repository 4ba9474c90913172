/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's slots, mapped into this process. */
#ifndef SK_LIBCLIENT_STATE_SLOTS_H
#define SK_LIBCLIENT_STATE_SLOTS_H

#include "state/state.h"

/** Maps the @n slots of a registered state and begins to fault them in. None
 * are mapped yet; on an error what is mapped is still to be unmapped.
 * Errors: as sk_conn_call(); -EPROTO; -ENOMEM, -EMFILE. */
int sk_slots_map(struct sk_state *state, uint32_t n, uint64_t until_ns,
		 struct sk_err *err);
/** No snapshot may be under way. */
void sk_slots_unmap(struct sk_state *state);

/**
 * A slot that is about to be sealed is only read in this process: a stray
 * pointer faults where it is, instead of spoiling the snapshot. Of huge pages
 * that costs nothing; large slots of small ones, where it would cost a part of
 * the copy, are left as they are for ten minutes; a GiB of them tells, and no
 * more than 256 MiB is changed at once. By the thread that has the slot in
 * hand, before the agent is asked to seal: after that the slot may be another's.
 */
void sk_slot_protect(struct sk_state *state, uint32_t slot);
/** Before it is filled again. Errors: those of mprotect(2), with a
 * sentence. */
int sk_slot_unprotect(struct sk_state *state, uint32_t slot,
		      struct sk_err *err);

#endif
