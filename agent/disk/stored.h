/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What lies on the store. Names are read anew for each question, because
 * other agents may write there too; a header is read once, and parsed only
 * where its layout is a new one.
 */
#ifndef SK_AGENT_DISK_STORED_H
#define SK_AGENT_DISK_STORED_H

#include <stdbool.h>

#include "catalogue/catalogue.h"
#include "store/store.h"

struct agent;

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
	bool headers;			/* all, not only what tells runs */
	/* The answer, beside the catalogue: */
	uint64_t newest_run;		/* that is named there; 0: none */
	unsigned unreadable;		/* directories and files that were
					 * passed over */
	struct sk_err first;		/* the first of them */
	/* private: */
	struct sk_link link;
};

/** Without a store it is granted at once, before this returns. */
void stored_scan(struct agent *a, struct stored_wish *wish);
/** Nothing is looked at any more: wishes that wait are refused. */
void stored_close(struct agent *a);
/** How the store names the image. */
void stored_name(const struct sk_cat_image *image, struct sk_stored *ret);

#endif
