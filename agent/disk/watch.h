/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Watch: looks at the store's path from time to time, on a thread that may
 * hang where the filesystem does.
 */
#ifndef SK_AGENT_DISK_WATCH_H
#define SK_AGENT_DISK_WATCH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/vfs.h>

#include "store/store.h"

struct agent;
struct sk_os;

/** How a store's filesystem was. */
struct watch_found {
	uint64_t at_ns;		/* then, or later */
	struct statfs fs;
	bool denied;		/* the agent may make nothing there */
};

/** Begins, where there is a store. -ENOMEM. */
int watch_open(struct agent *a);
/** Takes what the last look has found and begins the next one when it is due;
 * may be called as often as it suits. */
void watch_turn(struct agent *a);
/** The room on the filesystem at @path; on any thread, which hangs where that
 * does. Errors of the system; -ENODEV: what was at @place is not mounted. */
int watch_measure(const struct sk_os *os, const char *path,
		  const struct sk_store_place *place,
		  struct watch_found *ret);
/** What somebody has measured at the store's path is so from now on: its room,
 * and that it is there. What was so before something that is known is not. */
void watch_seen(struct agent *a, const struct watch_found *found);
/** Something has changed there: the next turn looks. */
void watch_soon(struct agent *a);
/** A look is out: the next turn should be soon. */
bool watch_is_out(const struct agent *a);
/** A look that hangs is left behind. */
void watch_close(struct agent *a);

#endif
