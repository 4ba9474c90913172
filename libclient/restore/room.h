/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A restore in two parts, for a caller that has more to bring back than the
 * library knows of: as long as it does, nobody faults in memory beside it.
 * Thread-safety: as sk_restore().
 */
#ifndef SK_LIBCLIENT_RESTORE_ROOM_H
#define SK_LIBCLIENT_RESTORE_ROOM_H

#include "state/state.h"

/** sk_restore() without what follows it: the memory for snapshots. */
int sk_restore_first(struct sk_state *state, int64_t step,
		     const struct sk_comm *comm,
		     const struct sk_restore_options *opts,
		     struct sk_report *ret_report);

/** That. What fails is told by the snapshot that misses it. */
void sk_restore_room(struct sk_state *state);

/** What the state restored last; run 0: nothing. */
struct sk_begun sk_restore_begun(struct sk_state *state);
/** The run that the state is in, or enters, goes on from that: where another
 * state restored it, or nothing that is newer came into question. Before
 * sk_restore_room(). */
void sk_restore_begin_with(struct sk_state *state,
			   const struct sk_begun *begun);

/** Where each node keeps replicas once: @state is of the same ranks as @other,
 * which has restored. Neither is in use meanwhile. */
void sk_restore_nodes_as(struct sk_state *state, const struct sk_state *other);

#endif
