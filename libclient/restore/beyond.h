/* SPDX-License-Identifier: Apache-2.0 */
/* What a snapshot holds beyond what a state describes: for who makes it room
 * before a restore. */
#ifndef SK_LIBCLIENT_RESTORE_BEYOND_H
#define SK_LIBCLIENT_RESTORE_BEYOND_H

#include "state/state.h"

/** What such names are told to. */
struct sk_beyond {
	void *ctx;
	/** @item is what one rank described; @mine: the rank of this number,
	 * which alone can have a local blob back. Negative ends it. */
	int (*name)(void *ctx, const struct sk_item *item, bool mine);
	/** NULL, or what is described is expected to be the very thing that
	 * each rank of the snapshot described: it is told whether that is so.
	 * Then no header is read, for the layout is computed from what is
	 * described, which costs about half as much; where it is not so,
	 * that is lost. */
	bool *same;
};

/**
 * Tells each name of the snapshot (@run, @step) that is not described, and
 * how many ranks saved it. No byte of a tensor is read; what is learnt of its
 * layouts, sk_restore() knows. Takes state->lock.
 * Errors: -ENOENT there is no such snapshot, or some of it went meanwhile;
 * -EBADMSG what a rank saved cannot be told; what @to returned; -ENOMEM; those
 * of a connection.
 */
int sk_restore_beyond(struct sk_state *state, uint64_t run, int64_t step,
		      const struct sk_beyond *to, int32_t *ret_world,
		      struct sk_err *err);

/** Whom a rank is registered with, and in which run of its job. Where those of
 * all ranks are the same, the agent can be their comm. */
struct sk_announced {
	uint64_t agent;		/* its instance */
	uint64_t run, run_id;
};

/** Registers what is described now, without slots, so that what is wrong with
 * it is known before ranks wait for each other in sk_restore(). Takes
 * state->lock. Errors: as sk_prepare(). */
int sk_restore_announce(struct sk_state *state, struct sk_announced *ret,
			struct sk_err *err);

#endif
