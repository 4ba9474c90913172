/* SPDX-License-Identifier: Apache-2.0 */
/* Verification mode: tensors that change under a snapshot are found out. */
#ifndef SK_LIBCLIENT_SNAPSHOT_VERIFY_H
#define SK_LIBCLIENT_SNAPSHOT_VERIFY_H

#include "state/fence.h"

struct sk_copying;

/** Takes the tensors' checksums before they are copied. -ENOMEM. */
int sk_verify_before(struct sk_copying *c, struct sk_err *err);
/** The fence is reached: takes them once more, after what @stream of the
 * calling thread has now, then has the snapshot sealed, or refused with the
 * name of a tensor that changed. Of a struct sk_copying. */
void sk_verify_judge(struct sk_pending *p, uint64_t stream);

#endif
