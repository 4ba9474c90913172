/* SPDX-License-Identifier: Apache-2.0 */
/* One snapshot, tried by all ranks. */
#ifndef SK_LIBCLIENT_RESTORE_ATTEMPT_H
#define SK_LIBCLIENT_RESTORE_ATTEMPT_H

#include "restore/restoring.h"

/** Restores it, from its list of images to the last byte that is moved again.
 * Collective; an error may be this rank's alone so far. -ENODATA, -EBADMSG,
 * -EIO, -ENOENT: another snapshot may do better. */
int sk_restore_attempt(struct sk_restoring *rs,
		       const struct sk_restore_offer *offer);
/** Lets go of all that belongs to one; harmless where there was none. */
void sk_restore_forget_attempt(struct sk_restoring *rs);

#endif
