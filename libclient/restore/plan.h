/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces: which part of which image goes where. */
#ifndef SK_LIBCLIENT_RESTORE_PLAN_H
#define SK_LIBCLIENT_RESTORE_PLAN_H

#include "restore/restoring.h"
#include "tensor/plan.h"

/** Pieces for all wanted locals. */
int sk_restore_plan(struct sk_restoring *rs);
/** Replaces all pieces by new ones for those whose place is gone, and, if
 * rs->doubted, those that others were to verify. */
int sk_restore_replan(struct sk_restoring *rs);
/**
 * The ranks in whose memory @rank looks for what @holders hold, nearest first;
 * *at is 0 at first. -1: no more. Every rank computes the same for another, if
 * it sees the same images.
 */
int32_t sk_restore_neighbour(const struct sk_restoring *rs,
			     const struct sk_holders *holders, int32_t rank,
			     int64_t *at);

#endif
