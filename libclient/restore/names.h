/* SPDX-License-Identifier: Apache-2.0 */
/* What all ranks together lack. */
#ifndef SK_LIBCLIENT_RESTORE_NAMES_H
#define SK_LIBCLIENT_RESTORE_NAMES_H

#include "restore/restoring.h"

/** After all ranks have compared: agrees on what misses, and refuses. */
int sk_restore_agree_keys(struct sk_restoring *rs, int r);

#endif
