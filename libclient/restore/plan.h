/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces: which part of which image goes where. */
#ifndef SK_LIBCLIENT_RESTORE_PLAN_H
#define SK_LIBCLIENT_RESTORE_PLAN_H

#include "restore/restoring.h"

/** Pieces for all wanted locals. */
int sk_restore_plan(struct sk_restoring *rs);
/** Replaces all pieces by new ones for those whose place is gone, and, if
 * rs->doubted, those that others were to verify. */
int sk_restore_replan(struct sk_restoring *rs);

#endif
