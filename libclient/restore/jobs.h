/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces, cut into jobs. */
#ifndef SK_LIBCLIENT_RESTORE_JOBS_H
#define SK_LIBCLIENT_RESTORE_JOBS_H

#include "restore/restoring.h"

/** Cuts the pieces into jobs, in the order in which they lie. */
int sk_restore_jobs(struct sk_restoring *rs);

#endif
