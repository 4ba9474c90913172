/* SPDX-License-Identifier: Apache-2.0 */
/* What other nodes have: asked for, sent, delivered. */
#ifndef SK_LIBCLIENT_RESTORE_REMOTE_H
#define SK_LIBCLIENT_RESTORE_REMOTE_H

#include "restore/restoring.h"

/** All ranks at once; @r is what became of this rank's preparations, and an
 * error before anything is moved is everybody's. What was sent of an image
 * that turned out bad is in rs->bad of whoever read it. */
int sk_restore_remote(struct sk_restoring *rs, int r);

#endif
