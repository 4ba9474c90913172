/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults: which jobs' flushes fail by the store's fault, and by that whether
 * the agent is degraded: store-full, store-error. What one job could write says
 * nothing of another's, whose directory, user's quota or size may be why. A
 * job's fault is over when its flush is done and none of its other steps is
 * tried again; when somebody has taken back that that step is to be written,
 * has evicted it, or has its place on the store; or when the job has nothing to
 * write, and no ranks that will. That its memory went to the next step proves
 * nothing: that one is tried, too.
 */
#ifndef SK_AGENT_DISK_FAULTS_H
#define SK_AGENT_DISK_FAULTS_H

#include "catalogue/catalogue.h"
#include "degraded.h"

struct agent;

/** The last flush of that one failed by it. */
void faults_met(struct agent *a, struct sk_cat_snapshot *s);
/** A flush of the job is done. */
void faults_over(struct agent *a, struct sk_cat_job *job);
/** Some step of the job may be one that nobody has written any more; the next
 * faults_look() tells. */
void faults_withdrawn(struct agent *a, struct sk_cat_job *job);
/** That step is not tried any more: somebody has evicted it, or its place on
 * the store is another run's or user's. */
void faults_no_more(struct agent *a, struct sk_cat_job *job, int64_t step);
/** The store was seen to be well again: what is to be written tells of itself,
 * and is tried at once; of who has nothing to write nothing is wrong. */
void faults_mended(struct agent *a);
/** How much room there is was seen: who lacked as much tries again. */
void faults_see_room(struct agent *a);
/** The states are what they have to be. */
void faults_look(struct agent *a);
/** Why the agent is in that state, one of the two, as the user may hear it;
 * NULL: all. */
void faults_why(const struct agent *a, enum degraded_id id, const uid_t *user,
		struct sk_err *ret_why);

#endif
