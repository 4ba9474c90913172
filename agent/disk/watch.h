/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Watch: looks at the store's path from time to time, on a thread that may
 * hang where the filesystem does.
 */
#ifndef SK_AGENT_DISK_WATCH_H
#define SK_AGENT_DISK_WATCH_H

struct agent;

/** Begins, where there is a store. -ENOMEM. */
int watch_open(struct agent *a);
/** Takes what the last look has found and begins the next one when it is due;
 * may be called as often as it suits. */
void watch_turn(struct agent *a);
/** A look that hangs is left behind. */
void watch_close(struct agent *a);

#endif
