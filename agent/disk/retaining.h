/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What retain.c, which knows the jobs and whose turn it is, and retain-pass.c,
 * which goes over one of them, have of each other. On the event loop.
 */
#ifndef SK_AGENT_DISK_RETAINING_H
#define SK_AGENT_DISK_RETAINING_H

#include "disk/hold.h"
#include "disk/pins.h"
#include "disk/retain.h"
#include "loop/timer.h"

struct retain_pass;

/* What is known of a job; its job->owner. */
struct kept {
	struct sk_cat_job *job;
	struct sk_link due;	/* in retain->due, while it is */
	bool said;		/* by the trainer: */
	struct sk_retention retention;
	bool complained;	/* of its file, once */
	unsigned gone;		/* since its last flush began */
	unsigned were_going;	/* when it was last looked at */
	struct pins pins;	/* that it has met */
	struct hold hold;	/* for who restores; then it is due again */
	uint64_t again_ns;	/* not before that */
};

struct retain {
	struct agent *agent;
	struct retain_pass *pass;		/* NULL: none is under way */
	struct sk_link due;		/* what is known of jobs that are */
	struct timer again;		/* of those that wait */
};

/* ---- retain.c ---- */

/** Of the store's file and what the trainer says. */
enum sk_retention_from retain_choose(const struct agent *a, bool said,
				     enum sk_retention_from from,
				     struct sk_retention *retention,
				     const struct sk_retention *by_job);
/** An agent that stops makes room as long as it has something to write. */
bool retain_ends(struct agent *a);
/** The job is due, in its turn. */
void retain_line_up(struct agent *a, struct kept *kept);
/** Begins one over the next job that is due, unless one is under way. */
void retain_next(struct agent *a);

/* ---- retain-pass.c ---- */

/** It is a->retain->pass until it has ended; where there is no memory the job
 * stays due. */
void retain_pass_begin(struct agent *a, const struct sk_cat_job *job);
bool retain_pass_is_of(const struct retain_pass *p,
		       const struct sk_cat_job *job);
/** That one, at this moment. */
bool retain_pass_deletes(const struct retain_pass *p,
			 const struct sk_cat_snapshot *s);
/** How many of its steps are to go yet, as far as is known. */
unsigned retain_pass_going(const struct retain_pass *p,
			   const struct kept *kept);
/** One that rests or counts; nothing may be out in the background. */
void retain_pass_free(struct retain_pass *p);

#endif
