/* SPDX-License-Identifier: Apache-2.0 */
/* From what a look at the store has found to what the catalogue says. */
#ifndef SK_AGENT_DISK_MERGE_H
#define SK_AGENT_DISK_MERGE_H

#include "disk/scan.h"

/** What is there is taken over, what is gone forgotten, but not what came since
 * the look began; what is no image is said aloud, once. No memory for all of
 * it is the look's result. */
void merge_scan(struct agent *a, struct scan *scan);

#endif
