/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scan-job: what a look finds in one job of the store. On the scan's thread,
 * which has the agent's histories.
 */
#ifndef SK_AGENT_DISK_SCAN_JOB_H
#define SK_AGENT_DISK_SCAN_JOB_H

#include "disk/scan.h"

/** Looks at the job as far as the portion has room; scan->cut: there is more.
 * @again: the portion before has begun with it. Errors: it could not be looked
 * at; scan->err. */
int scan_job(struct scan *scan, const char *job, bool again);
/** Another one in the answer, of the job; NULL: no memory. */
struct found *scan_add(struct scan *scan, const char *job);
/** Notes what is wrong with it. -EMFILE and its like are this process's
 * trouble, and the look's: all else would fail for it too, and look as if it
 * were not there. */
int scan_note(struct scan *scan, const struct found *f);

#endif
