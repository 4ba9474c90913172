/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks of a node want of other nodes where they said their boxes
 * themselves, or on meshes that differ (unlike.h): nobody can tell a
 * neighbour's by arithmetic, so they tell each other. Boxes that overlap are
 * cut where any of them begins or ends: then what two ranks want is the same
 * want, and comes to the node once.
 */
#ifndef SK_LIBCLIENT_RESTORE_OVERLAP_H
#define SK_LIBCLIENT_RESTORE_OVERLAP_H

#include "restore/restoring.h"

/** Cuts pieces of the plan that come from other nodes, and says of each whether
 * a neighbour wants it as well. Collective; @r as of sk_restore_trade(). */
int sk_restore_overlap(struct sk_restoring *rs, int r);

#endif
