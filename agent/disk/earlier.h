/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files of a snapshot that were there before its last one is written. The
 * store, or the step in it, may have gone between two of them: only who finds
 * the earlier ones when the last is there may call the snapshot durable.
 */
#ifndef SK_AGENT_DISK_EARLIER_H
#define SK_AGENT_DISK_EARLIER_H

#include <stdbool.h>

#include "catalogue/catalogue.h"
#include "store/store.h"

struct earlier {
	struct sk_stored *images;
	bool *gone;
	size_t n;
	int n_gone;		/* after the look; or a negative errno */
};

/** Lists what the disk has of @s. -ENOMEM. */
int earlier_list(struct earlier *e, const struct sk_cat_snapshot *s);
/** Looks: n_gone. In the background. A negative errno comes with a sentence. */
int earlier_look(struct earlier *e, struct sk_store *store,
		 struct sk_err *err);
/** The catalogue forgets those that are gone. */
void earlier_forget(const struct earlier *e, struct sk_cat_snapshot *s);
/** Empties it. */
void earlier_free(struct earlier *e);

#endif
