/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What cannot be looked at on the store: jobs, step directories, files. Each is
 * tried at every look, and named in the log once for each reason.
 */
#ifndef SK_AGENT_DISK_PASSED_H
#define SK_AGENT_DISK_PASSED_H

#include "disk/scan.h"

struct agent;

/** What is passed over: of a job dir "" and rank -1, of all of them job "". */
struct passed {
	struct file_key key;
	uint64_t why;		/* the last reason's sentence, hashed */
};

/** A look begins, which has them from there on. */
void passed_sort(struct agent *a);
/** It ends, and what it found is sorted: what it could look at is forgotten,
 * and named anew should that end. */
void passed_forget(struct agent *a, const struct scan *scan);
/** It could not be looked at. True: for another reason than the last time, so
 * that it is to be named. Before the next look. */
bool passed_is_new(struct agent *a, const struct sk_stored *stored,
		   const struct sk_err *because);
/** Nor could what the whole look is at: names it, if that is new. */
void passed_all(struct agent *a, const struct scan *scan);

#endif
