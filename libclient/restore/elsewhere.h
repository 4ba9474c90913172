/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What some rank has on its comm's device and another one elsewhere, in host
 * memory or on another device: it comes to both the same way, from device to
 * device, or its source would send it once by each. Ranks tell each other by
 * name which tensors that is so of.
 */
#ifndef SK_LIBCLIENT_RESTORE_ELSEWHERE_H
#define SK_LIBCLIENT_RESTORE_ELSEWHERE_H

#include "restore/restoring.h"

/** A number of which tensors this rank has on its comm's device, and which
 * elsewhere. Where all ranks have the same, none is here and there. */
uint64_t sk_restore_lies_as(const struct sk_restoring *rs);
/** Of the pieces that are to come from other nodes and are not ->across: those
 * of a tensor of which another rank has some that are, are, too. Collective;
 * @r is what this rank has to say. An error may be this rank's alone, to be
 * told in the next step: -ENOMEM, -EPROTO; or everybody's. */
int sk_restore_elsewhere(struct sk_restoring *rs, int r);

#endif
