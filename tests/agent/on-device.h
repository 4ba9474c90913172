/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of the rig whose tensors are on the one device of the simulation. */
#ifndef SK_TEST_AGENT_ON_DEVICE_H
#define SK_TEST_AGENT_ON_DEVICE_H

#include "agent/rig.h"

/** Asks the driver which it is: before anything else of this file. */
void on_device_init(void);
/** As a message names it. */
void on_device_name(uint8_t ret[16]);
/** DEVICE_SLOT, for all that the rank has; -EAGAIN while it is made. */
int on_device_slot(struct rank *r);
/** Opens one whose @step stands on the device, and nowhere else yet: the slot
 * that it is on the way to. */
int on_device_stand(struct rank *r, const struct rig *rig,
		    const struct rank_options *o, int64_t step);

#endif
