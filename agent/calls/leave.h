/* SPDX-License-Identifier: Apache-2.0 */
/* Leave: what ends when a rank or a connection does. */
#ifndef SK_AGENT_CALLS_LEAVE_H
#define SK_AGENT_CALLS_LEAVE_H

struct agent;
struct sk_cat_state;

/** The rank is gone; @why is a word for the log. Its image under way is lost,
 * and those who wait for it are told. */
void rank_leave(struct agent *a, struct sk_cat_state *state, const char *why);
/** Ends the connections that are marked, and with each its requests, leases
 * and ranks. For the turn's end. */
void sessions_leave(struct agent *a);

#endif
