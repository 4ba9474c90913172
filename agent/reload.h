/* SPDX-License-Identifier: Apache-2.0 */
/* Options that change while the agent runs, and its log, reopened. */
#ifndef SK_AGENT_RELOAD_H
#define SK_AGENT_RELOAD_H

struct agent;
struct options;

/** Takes over of @o what can change at any time. */
void reload_apply(struct agent *a, const struct options *o);
/** Reads the options again, as if the agent began now; where one makes no
 * sense, all stays as it was, and the log says why. Log files are reopened. */
void agent_reload(struct agent *a);

#endif
