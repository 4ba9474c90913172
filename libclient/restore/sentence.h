/* SPDX-License-Identifier: Apache-2.0 */
/* What the caller is told of a restore that failed. */
#ifndef SK_LIBCLIENT_RESTORE_SENTENCE_H
#define SK_LIBCLIENT_RESTORE_SENTENCE_H

#include "restore/restoring.h"

/** Makes it the thread's last sentence, with the tensors of this rank that may
 * have been overwritten; returns @r. */
int sk_restore_say(struct sk_restoring *rs, int r);

#endif
