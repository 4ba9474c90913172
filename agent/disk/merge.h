/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From what a look at the store has found to what the catalogue says, in
 * portions: others are served between two of them.
 */
#ifndef SK_AGENT_DISK_MERGE_H
#define SK_AGENT_DISK_MERGE_H

#include "disk/scan.h"

/** What is there is taken over, what is gone forgotten, but not what came since
 * the look began; what is no image is said aloud, once. No memory for all of
 * it is the look's result. Then @done; one at a time. No memory to begin with
 * is the look's result, too. */
void merge_begin(struct agent *a, struct scan *scan,
		 void (*done)(struct scan *scan));
/** Ends it at once, if one is under way. */
void merge_now(struct agent *a);
/** What a look may have found there before has gone since. */
void merge_deleted(struct agent *a, const char *job, const char *dir);

#endif
