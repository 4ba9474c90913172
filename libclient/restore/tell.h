/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts that ranks tell each other. */
#ifndef SK_LIBCLIENT_RESTORE_TELL_H
#define SK_LIBCLIENT_RESTORE_TELL_H

#include "restore/restoring.h"

/** Afterwards every rank has the layouts of all images that any rank can read
 * one of: each travels once, and none that arithmetic gives. Collective. */
int sk_restore_tell(struct sk_restoring *rs);

#endif
