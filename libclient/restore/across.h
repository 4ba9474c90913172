/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What other nodes have, for tensors on a device that the comm can reach: sent
 * from device to device, each piece by whoever has it to whoever wants it. What
 * several ranks of a node want comes to one of them, which passes it on.
 *
 * What one of those has elsewhere, on another device or on the host, comes the
 * same way where another has it on its device, and goes on from this rank's
 * device to where it has it. Where somebody verifies both ends all comes by way
 * of the host.
 */
#ifndef SK_LIBCLIENT_RESTORE_ACROSS_H
#define SK_LIBCLIENT_RESTORE_ACROSS_H

#include "restore/restoring.h"

/** From the plan, with a comm that has a device. Collective; @r is what this
 * rank has to say, and an error is everybody's. Where a rank cannot, nothing
 * is sent so, in all of this restore: pieces that were are not ->across. */
int sk_restore_across(struct sk_restoring *rs, int r);
/** The end of the restore. */
void sk_restore_end_across(struct sk_restoring *rs);

#endif
