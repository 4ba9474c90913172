/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that several agents serve were let into as many runs, and go on in
 * one: else no snapshot of theirs would ever be whole. */
#ifndef SK_LIBCLIENT_RESTORE_ONE_RUN_H
#define SK_LIBCLIENT_RESTORE_ONE_RUN_H

#include "restore/ballot.h"

/**
 * -EEXIST: it is another job's, whose ranks live; the same on all ranks.
 * -ENOENT: as it looks, and another list will tell; rs->stale is set.
 */
int sk_restore_check_run(struct sk_restoring *rs,
			 const struct sk_restore_ballot *ballots);

/** All in the run of the highest number, of several in that of the lowest
 * rank. What fails here is told by the first snapshot. */
void sk_restore_join_run(struct sk_restoring *rs,
			 const struct sk_restore_ballot *ballots);

#endif
