/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors that ranks of a node describe differently: on meshes of their own,
 * or one by placements and another one by boxes. By its own placements none of
 * them can tell what the others want.
 */
#ifndef SK_LIBCLIENT_RESTORE_UNLIKE_H
#define SK_LIBCLIENT_RESTORE_UNLIKE_H

#include "restore/restoring.h"

/** A number of all that this rank has described: ranks that have the same have
 * described the same. */
uint64_t sk_restore_described_as(const struct sk_restoring *rs);
/** Of each local that is to come from other nodes, and that a rank of this
 * node describes differently, rs->boxes_told says so. Collective, where ranks
 * of any node have other numbers; @r as of sk_restore_trade(), and -ENOMEM. */
int sk_restore_unlike(struct sk_restoring *rs, int r);

#endif
