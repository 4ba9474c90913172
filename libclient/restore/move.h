/* SPDX-License-Identifier: Apache-2.0 */
/* All jobs, wherever their bytes lie. */
#ifndef SK_LIBCLIENT_RESTORE_MOVE_H
#define SK_LIBCLIENT_RESTORE_MOVE_H

#include "restore/restoring.h"

/** Runs all jobs. Bad places are marked, not errors. */
int sk_restore_move(struct sk_restoring *rs, int r);

#endif
