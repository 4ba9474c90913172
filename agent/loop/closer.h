/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Closer: closes descriptors that strangers have a hand in.
 *
 * The last close() of somebody else's file takes as long as that file likes:
 * a TCP socket that lingers, a file of a network or user-space filesystem, a
 * memfd of many gigabytes, or a connection with such descriptors in messages
 * that nobody read. Each user's descriptors are closed on a thread of their
 * own, which is there only while it has something to close: a user can delay
 * nobody else.
 *
 * Thread-safety: all functions are the loop's thread's.
 */
#ifndef SK_AGENT_LOOP_CLOSER_H
#define SK_AGENT_LOOP_CLOSER_H

#include <stddef.h>
#include <sys/types.h>

#include "base/os.h"

struct closer;

/** -ENOMEM. */
int closer_new(const struct sk_os *os, struct closer **ret_closer);
/** Takes @fd over (negative: nothing) and closes it on behalf of @uid. Where
 * there is no memory or thread for that, it is closed at once. */
void closer_close(struct closer *c, uid_t uid, int fd);
/** How many of the user's are not closed yet. */
size_t closer_pending(struct closer *c, uid_t uid);
/** Waits a moment for what is pending; what still hangs then goes with the
 * process. Returns NULL. */
struct closer *closer_free(struct closer *c);

#endif
