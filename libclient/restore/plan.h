/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces: which part of which image goes where. */
#ifndef SK_LIBCLIENT_RESTORE_PLAN_H
#define SK_LIBCLIENT_RESTORE_PLAN_H

#include "restore/restoring.h"
#include "tensor/plan.h"

/** Pieces for all wanted locals. */
int sk_restore_plan(struct sk_restoring *rs);
/** Replaces all pieces by new ones for those whose place is gone, or whose
 * checksum nobody took. */
int sk_restore_replan(struct sk_restoring *rs, const uint8_t *unverified);
/** The place from which @rank takes the entry of @source; NULL: none. */
const struct sk_entry *sk_restore_pick(const struct sk_restoring *rs,
				       const struct sk_restore_key *key,
				       const struct sk_box *source,
				       const struct sk_holders *holders,
				       int32_t rank, uint32_t *ret_image,
				       uint32_t *ret_place);

#endif
