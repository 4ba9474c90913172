/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the images that a restore may use are the whole snapshot: where no
 * agent says so. */
#ifndef SK_LIBCLIENT_RESTORE_WHOLE_H
#define SK_LIBCLIENT_RESTORE_WHOLE_H

#include "restore/restoring.h"

/** Of several nodes, of layouts that are known: 0, or -ENODATA with what is missing; -EINVAL,
 * -E2BIG, -ENOMEM as sk_coverage_check(). The same for all ranks. */
int sk_restore_whole(struct sk_restoring *rs);

#endif
