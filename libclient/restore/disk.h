/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs out of files. */
#ifndef SK_LIBCLIENT_RESTORE_DISK_H
#define SK_LIBCLIENT_RESTORE_DISK_H

#include "restore/restoring.h"

/** Runs jobs [from, to), which are those from disk. */
int sk_restore_from_disk(struct sk_restoring *rs, size_t from, size_t to);

#endif
