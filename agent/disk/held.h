/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks whose slots are all held by pins, and pins that the disk lacks. */
#ifndef SK_AGENT_DISK_HELD_H
#define SK_AGENT_DISK_HELD_H

struct agent;

/** Now and then: a pin that could not be written with its step is written
 * again, and where pins leave a rank no slot that is a degraded state. Jobs of
 * which nothing has changed, and none was held, are not looked at. */
void held_look(struct agent *a);

#endif
