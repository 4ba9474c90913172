/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Retention: of each job, what need not stay on the store goes, in the
 * background, one step after the other, with pauses. What need not is told
 * by catalogue/retention.h, after a look at the store, for others write there
 * too.
 *
 * Who says what is to stay: the operator, then the trainer, then the agent's
 * options; a job that began when there was retention has a default, and one of
 * before keeps everything. What operator and trainer say stands in the store.
 */
#ifndef SK_AGENT_DISK_RETAIN_H
#define SK_AGENT_DISK_RETAIN_H

#include "catalogue/catalogue.h"
#include "store/store.h"

struct agent;

/** Where there is a store. A negative errno comes with a sentence. */
int retain_open(struct agent *a, struct sk_err *err);
/** Nothing may be out in the background. */
void retain_close(struct agent *a);
/** The job has more on disk than before, or something else is to stay of it:
 * it is looked at soon. NULL: of all jobs. */
void retain_due(struct agent *a, struct sk_cat_job *job);
/** What its trainer says; it is written to the store with the next look. */
void retain_by_job(struct agent *a, struct sk_cat_job *job,
		   const struct sk_retention *retention);
/** One of its ranks restores, as far as one can tell. */
bool retain_is_held(struct agent *a, struct sk_cat_job *job);
/** What waited for that goes on. */
void retain_go_on(struct agent *a, const char *job);
/** What is in force, of what the store's file says. */
enum sk_retention_from
retain_in_force(const struct agent *a, const struct sk_cat_job *job,
		enum sk_retention_from from, struct sk_retention *retention);
/** It is to wait with its flush: more lies there that is to go than a few. */
bool retain_holds(const struct agent *a, const struct sk_cat_job *job);
/** It is being deleted from disk, and cannot be kept any more. */
bool retain_deletes(const struct agent *a, const struct sk_cat_snapshot *s);
/** What need not stay is being deleted, or looked for, or soon to be: room may
 * come. */
bool retain_makes_room(const struct agent *a);
void retain_flush_begins(struct sk_cat_job *job);
/** The store has lost a step directory of the job, and with it the step's pin,
 * unless somebody has had it pinned since it had been @pins times. */
void retain_forget(struct agent *a, const char *job, uid_t uid,
		   const struct sk_store_run *run, int64_t step,
		   const char *dir, unsigned pins);
/** The step is pinned no more. */
void retain_unpinned(struct sk_cat_job *job, uint64_t run_id, int64_t step);
/** The job is forgotten: what is known of it, job->owner, goes. */
void retain_job_gone(struct sk_cat_job *job);

#endif
