/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks whose slots are all held by pins, and pins that the disk lacks. */
#ifndef SK_AGENT_DISK_HELD_H
#define SK_AGENT_DISK_HELD_H

#include <sys/types.h>

#include "base/error.h"

struct agent;

/** Now and then: a pin that could not be written with its step is written
 * again, where pins leave a rank no slot that is a degraded state, and what was
 * written for a pin that is gone is no fault any more. Jobs of which nothing
 * has changed, and none was held, are not looked at. */
void held_look(struct agent *a);
/** Which rank has no slot, as the user may hear it; NULL: of any. */
void held_why(const struct agent *a, const uid_t *user, struct sk_err *ret_why);

#endif
