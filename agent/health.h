/* SPDX-License-Identifier: Apache-2.0 */
/* Looks from time to time for what nobody meets by chance: degraded states
 * begin, and end where their cause is gone. */
#ifndef SK_AGENT_HEALTH_H
#define SK_AGENT_HEALTH_H

struct agent;

/** From now on, until health_close(). -ENOMEM. */
int health_open(struct agent *a);
void health_close(struct agent *a);

#endif
