/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leftovers: what was written of a step before the store had no room, and is
 * whole nowhere any more, as memory had to make room for newer steps. As long
 * as nothing newer is durable retention leaves it, and nothing newer may become
 * so for want of that very room. On the event loop.
 */
#ifndef SK_AGENT_DISK_LEFTOVER_H
#define SK_AGENT_DISK_LEFTOVER_H

struct agent;

/** A flush has found no room: what is left over is deleted, one step after the
 * other, whatever is to stay of its job, and flushes are tried anew. What is
 * pinned or in use stays, and what ranks of other agents have written there. */
void leftover_clear(struct agent *a);
/** Ends; nothing may be out in the background. */
void leftover_close(struct agent *a);

#endif
