/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flight: descriptors that were sent and that nobody has read yet.
 *
 * The system counts those of all of a user's processes together, and beyond
 * the limit of open files sends no more of an agent that is not privileged:
 * clients that do not read would take them from all others. So each user of
 * the agent has a share, which is smaller when much is in flight; beyond it
 * that user's replies with descriptors wait.
 */
#ifndef SK_AGENT_SESSION_FLIGHT_H
#define SK_AGENT_SESSION_FLIGHT_H

#include <stdbool.h>

struct agent;
struct session;

/** A new connection, whose user is known. -ENOMEM. */
int flight_begin(struct session *s);
/** Whether @n more may be sent to the session now. */
bool flight_may(struct session *s, int n);
/** They were sent. */
void flight_sent(struct session *s, int n);
/** The connection ends: it is closed at once, or when what it was sent has
 * been read, and counts until then. */
void flight_end(struct session *s);
/** The agent ends. */
void flight_close(struct agent *a);

#endif
