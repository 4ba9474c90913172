/* SPDX-License-Identifier: Apache-2.0 */
/* Stop: the agent's end in order, and who asks for it. */
#ifndef SK_AGENT_SESSION_STOP_H
#define SK_AGENT_SESSION_STOP_H

struct agent;

/** Flushes what is to be kept, within --stop-timeout, and ends; asked again,
 * ends at once. @why: for the log. */
void agent_stop(struct agent *a, const char *why);
/** Ends without flushing anything more. */
void agent_stop_now(struct agent *a);
/** Connections came or went: stops after --idle-exit without one. */
void agent_check_idle(struct agent *a);

#endif
