/* SPDX-License-Identifier: Apache-2.0 */
/* Which snapshot. */
#ifndef SK_LIBCLIENT_RESTORE_CHOOSE_H
#define SK_LIBCLIENT_RESTORE_CHOOSE_H

#include "restore/restoring.h"

/** Lists what there is and agrees on what may be tried, newest first:
 * rs->offers. r: what went wrong on this rank before. Called again where
 * rs->older says that there is more, it goes further back, past what was
 * offered. */
int sk_restore_choose(struct sk_restoring *rs, int r);

#endif
