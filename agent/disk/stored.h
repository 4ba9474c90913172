/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What lies on the store. Other agents may write there too, so each question
 * begins with a look whether names are the same still (store/history.h). Step
 * directories are looked into as far back as the question goes; a header is
 * read once, and parsed only where its layout is a new one.
 */
#ifndef SK_AGENT_DISK_STORED_H
#define SK_AGENT_DISK_STORED_H

#include <stdbool.h>

#include "catalogue/catalogue.h"
#include "store/store.h"

struct agent;
struct census;
struct party;
struct scan;

/** Which step directories of a job are looked into, the newest first; their
 * names, and whose they are, are known of all. */
struct stored_range {
	size_t most;		/* of those whose run is known; 0: none */
	uint64_t run;		/* 0: of any run */
	int64_t step;		/* -1: of any step */
};
#define STORED_ALL { .most = SIZE_MAX, .step = -1 }

/** Where a look ended: what is older was not looked into. */
struct stored_end {
	bool more;		/* there is older, or the rest is no matter */
	struct sk_store_run run;	/* the last one that was */
	uint64_t step;
};

/** What somebody wants looked at; part of whoever waits for it, which must
 * live until it is granted. */
struct stored_wish {
	/** The catalogue knows what the disk has, or (@r < 0) the sentence
	 * why it does not: -EIO the store cannot be read, -EACCES the job is
	 * another user's there, -ESHUTDOWN. Called once; may free the wish.
	 */
	void (*granted)(struct stored_wish *wish, int r,
			const struct sk_err *err);
	char job[SK_JOB_MAX + 1];	/* "": all */
	uid_t uid;			/* whose the job is to be */
	struct party *party;		/* who waits for it, and must not go
					 * before stored_unwish(); NULL: the
					 * agent */
	struct stored_range range;
	bool enters;			/* a rank: the job must be its own */
	bool restores;			/* which other agents are told first */
	struct census *census;		/* NULL: nobody wants it; else it has
					 * the names of the job's steps if the
					 * look went well. One wish has it */
	/* The answer, beside the catalogue: */
	struct stored_end end;		/* of one job */
	uint64_t newest_run;		/* that is named there; 0: none */
	unsigned unreadable;		/* directories and files that were
					 * passed over, or are damaged */
	struct sk_err first;		/* the first of them */
	/* private: */
	struct sk_link link;
	uint64_t round;			/* of the user's processes */
	uint64_t since_ns;		/* it waits */
	struct scan *scan;		/* whose next portion it waits for, in
					 * the name of all whom that serves */
	bool taken;			/* by a look that is under way */
};

/** Without a store, and with one that hangs (-EIO), it is granted at once,
 * before this returns. */
void stored_scan(struct agent *a, struct stored_wish *wish);
/** Nobody waits for it any more: whether it is let go of. Else a look has it,
 * and it is granted when that is over. */
bool stored_unwish(struct stored_wish *wish);
/** Somebody may soon ask about the job: what has changed of it is looked at
 * before, and the newest @most step directories into. */
void stored_foresee(struct agent *a, const struct sk_cat_job *job,
		    size_t most);
/** What only the disk has need not be known of all steps: the oldest are left
 * to it, some at a time, and not while somebody may use what it was told. */
void stored_leave(struct agent *a);
/** Begins what waits for the histories, if they are free. */
void stored_go_on(struct agent *a);
/** The store does not answer, and store-hangs has been said: who waits for a
 * look is told so (-EIO), and goes on with what is known. */
void stored_hangs(struct agent *a);
/** Somebody has waited for so long for a look at what memory has as well, and
 * could go on without. */
bool stored_kept_waiting(struct agent *a, uint64_t ns);
/** Nothing is looked at any more: wishes that wait are refused. */
void stored_close(struct agent *a);
/** How the store names the image. */
void stored_name(const struct sk_cat_image *image, struct sk_stored *ret);

#endif
