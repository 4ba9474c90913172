/* SPDX-License-Identifier: Apache-2.0 */
/* What dead agents left on the store goes, from time to time. */
#ifndef SK_AGENT_DISK_SWEEP_H
#define SK_AGENT_DISK_SWEEP_H

#define SWEEP_STALE_S 3600u	/* of whom nothing is known */

struct agent;

/** Where there is a store, and a thread that keeps it. The first time is now,
 * and is waited for, for two seconds. -ENOMEM. */
int sweep_open(struct agent *a);
/** Nothing may be out in the background. */
void sweep_close(struct agent *a);

#endif
