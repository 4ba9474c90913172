/* SPDX-License-Identifier: Apache-2.0 */
/* What moving came to. */
#ifndef SK_LIBCLIENT_RESTORE_RESULT_H
#define SK_LIBCLIENT_RESTORE_RESULT_H

#include "restore/restoring.h"

/** Agrees on how moving went. *ret_again: sk_restore_redo() is next. */
int sk_restore_agree_moved(struct sk_restoring *rs, int r, bool *ret_again);
/** Moves again, from elsewhere, what came from bad images, and what nobody
 * verified. Nothing of that kind: 0. */
int sk_restore_redo(struct sk_restoring *rs);

#endif
