/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files of a snapshot that were there before its last one is written. The
 * store, or the step in it, may have gone between two of them, or during the
 * last: only who finds all of them where readers look may call the snapshot
 * durable.
 */
#ifndef SK_AGENT_DISK_EARLIER_H
#define SK_AGENT_DISK_EARLIER_H

#include <stdbool.h>

#include "catalogue/catalogue.h"
#include "store/store.h"

struct earlier {
	struct sk_stored *images;
	bool *gone;		/* after the look */
	size_t n;		/* 0: this is not to be looked at */
};

/** Lists what the disk has of @s, and @last, which it is to have. -ENOMEM. */
int earlier_list(struct earlier *e, const struct sk_cat_image *last);
/** Looks, in the background: which are gone. @file: what the last one became.
 * -EAGAIN: it is gone itself; each error comes with a sentence. */
int earlier_look(struct earlier *e, const struct sk_file_id *file,
		 struct sk_store *store, struct sk_err *err);
/** The catalogue forgets those that are gone; how many were. */
unsigned earlier_forget(const struct earlier *e, struct sk_cat_snapshot *s);
/** Empties it. */
void earlier_free(struct earlier *e);

#endif
