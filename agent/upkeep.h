/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What time does to an agent's files: the socket by which clients find it is
 * removed by a cleaner of temporary files, the log grows.
 */
#ifndef SK_AGENT_UPKEEP_H
#define SK_AGENT_UPKEEP_H

struct agent;

/** Looks after them from now on, until the loop ends. */
void upkeep_start(struct agent *a);
/** A log file that is too long, or was moved away, is begun anew. */
void upkeep_log(struct agent *a);

#endif
