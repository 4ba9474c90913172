/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the images that a restore may use are the whole snapshot: where no
 * agent says so. */
#ifndef SK_LIBCLIENT_RESTORE_WHOLE_H
#define SK_LIBCLIENT_RESTORE_WHOLE_H

#include "restore/restoring.h"

/** 0, or -ENODATA with what is missing; -EINVAL, -E2BIG, -ENOMEM as
 * sk_coverage_check(). Of several nodes the layouts are known, and it is the
 * same for all ranks. */
int sk_restore_whole(struct sk_restoring *rs);

/** Says that the snapshot is not complete where the restore looks, and why
 * not; returns @r. */
int sk_restore_not_whole(struct sk_restoring *rs, int r,
			 const struct sk_err *why);

#endif
