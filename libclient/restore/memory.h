/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs out of mapped images. */
#ifndef SK_LIBCLIENT_RESTORE_MEMORY_H
#define SK_LIBCLIENT_RESTORE_MEMORY_H

#include "restore/restoring.h"

/** Runs jobs [0, n), which are those from memory. */
int sk_restore_from_memory(struct sk_restoring *rs, size_t n);

#endif
