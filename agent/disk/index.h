/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store's index (store/history.h): what is known of the steps of each job
 * is written down in the background, some time after it has changed and when
 * the agent ends, so that the next agent need not look at all of them. Nobody
 * waits for it, and nothing goes wrong without it.
 */
#ifndef SK_AGENT_DISK_INDEX_H
#define SK_AGENT_DISK_INDEX_H

#include <stdbool.h>

struct agent;

/** -ENOMEM. */
int index_open(struct agent *a);
/** Its work must have come back. */
void index_close(struct agent *a);
/** Steps of the job came or went; NULL: a look has learnt something. */
void index_changed(struct agent *a, const char *job);
/** Whether it is to be written now: then index_begin() is to follow as soon
 * as no look at the store is out. */
bool index_is_due(const struct agent *a);
/** It has the histories until its work is back. */
void index_begin(struct agent *a);
/** The agent is to end: true while the last one is still to be written. */
bool index_pending(struct agent *a);

#endif
