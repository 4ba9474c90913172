/* SPDX-License-Identifier: Apache-2.0 */
/* Stop: the agent's end in order, and who asks for it. */
#ifndef SK_AGENT_SESSION_STOP_H
#define SK_AGENT_SESSION_STOP_H

#include <stdbool.h>

struct agent;

/** Flushes what is to be kept, within --stop-timeout, and ends; harmless where
 * it does so already. @why: for the log. */
void agent_stop(struct agent *a, const char *why);
/** The same, by a signal; the second one ends it at once. What the keeper
 * passes on and what comes here by itself are counted apart: who signals all
 * processes of a group means it once. */
void agent_stop_signal(struct agent *a, bool from_keeper, const char *why);
/** Ends without flushing anything more. */
void agent_stop_now(struct agent *a);
/** Connections came or went: stops after --idle-exit without one. */
void agent_check_idle(struct agent *a);

#endif
