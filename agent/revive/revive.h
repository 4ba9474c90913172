/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What outlived the last agent becomes this one's: slots, what is sealed in
 * them, whose they are, what is pinned and what is still to be written.
 *
 * Long headers are read beside serving, a user's one by one: until all of a job
 * are, the job is there and its memory charged, and who asks for it waits
 * (calls/unread.h).
 *
 * Ranks are awaited for a while: who comes back to its run gets its slots
 * again, with what is in them. Of what a client may have written nothing is
 * believed: an image's header is compared with the digest of its layout and
 * with a hash of its checksums, which stand in the table that the agent alone
 * writes.
 */
#ifndef SK_AGENT_REVIVE_H
#define SK_AGENT_REVIVE_H

#include "base/error.h"
#include "keeper/kept.h"

struct agent;

/**
 * Takes table and slots out of @kept, which may be empty; the rest stays
 * there. What cannot be taken is let go, and said in the log. Without a keeper
 * nothing happens. Call it when the agent has all but its clients. -ENOMEM and
 * the system's errors: nothing was let go, another try may do.
 */
int revive(struct agent *a, struct kept *kept, struct sk_err *err);
/** The agent ends, and the background has none of it: what was not read yet is
 * left as it is. */
void revive_give_up(struct agent *a);
/** The agent ends. */
void revive_close(struct agent *a);

#endif
