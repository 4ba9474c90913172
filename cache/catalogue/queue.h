/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Catalogue, the queue to the disk: which job is written next, without a look
 * at all that wait. Its owner says which of a job's snapshots that would be,
 * and where the job stands: anew when the job has waked for SK_CAT_WRITE, for
 * what it said before may be so no more. What goes leaves by itself.
 */
#ifndef SK_CACHE_CATALOGUE_QUEUE_H
#define SK_CACHE_CATALOGUE_QUEUE_H

#include "catalogue/catalogue.h"

/** Where a job stands in it, the lowest first; jobs that are alike in all of it
 * by the age of what they have. */
struct sk_cat_queue_place {
	uint64_t before;	/* counts before whose user's turn it is */
	uint64_t turn;		/* among its user's */
	uint64_t served;	/* of those of one turn */
};

/** The snapshot is what its owner would write next of the job, which stands
 * there from now on, and nowhere else. */
void sk_cat_queue_put(struct sk_cat_snapshot *snapshot,
		      const struct sk_cat_queue_place *place);
/** The job has nothing to write, or is served: then it is its user's next turn,
 * of which flush_turn has been set. */
void sk_cat_queue_leave(struct sk_cat_job *job);
/** NULL: none is in it. */
struct sk_cat_snapshot *sk_cat_queue_first(const struct sk_catalogue *cat);

#endif
