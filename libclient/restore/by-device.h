/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which pieces of other nodes go from device to device: those for tensors that
 * lie on the device which the comm reaches, on any rank that wants some of
 * them. To those who have them elsewhere they come the same way.
 */
#ifndef SK_LIBCLIENT_RESTORE_BY_DEVICE_H
#define SK_LIBCLIENT_RESTORE_BY_DEVICE_H

#include "restore/restoring.h"

/** What any rank has. */
struct sk_by_device {
	bool any;	/* pieces that go so */
	bool shared;	/* and that several ranks of a node want */
};

/** Says it of each piece: ->across, and ->shared. Collective; @r is what this
 * rank has to say, and an error is everybody's. Where somebody verifies both
 * ends, none goes. */
int sk_restore_by_device(struct sk_restoring *rs, int r,
			 struct sk_by_device *ret);
/** None does. */
void sk_restore_none_by_device(struct sk_restoring *rs);
/** Whether the comm reaches the device that the local lies on. */
bool sk_restore_is_by_device(const struct sk_restoring *rs, uint32_t local);

#endif
