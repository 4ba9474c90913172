/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Retention: which steps of a job on a store need not stay there. Arithmetic
 * over a list; looks at nothing, deletes nothing.
 *
 * Several agents may write to the store, each its ranks' images. So what counts
 * is what lies there, never what one of them has in memory:
 *
 * - A complete step goes for others that are complete, and only where as many
 *   newer ones are as are to be kept. The newest complete one never goes.
 * - An incomplete one that is older than the newest complete one goes once a
 *   newer one was completed after it was last written to.
 * - One that is newer may still become complete. It goes where as many newer
 *   ones have images of all its ranks, and, where steps of its run have images
 *   of others too, RETAIN_AWAIT more. So a store that is one node's alone, on
 *   which no step ever is complete, keeps the last ones of its ranks, and on
 *   one that is shared a node may fall behind. It keeps RETAIN_APART at least:
 *   the newest one that is whole may be the one before, which the others' stores
 *   have as their newest. What a restart passed over is not counted for that.
 *   Those at keep_every stay there, too.
 * - What the ranks of several agents say that they agree on stays, unless a
 *   newer one is complete here: no store knows what the others' have.
 * - What is pinned or in use stays, and so does what a stranger wrote: a run
 *   of a number that another run has as well.
 */
#ifndef SK_CACHE_CATALOGUE_RETENTION_H
#define SK_CACHE_CATALOGUE_RETENTION_H

#include <stddef.h>

#include "base/retention.h"

#define SK_RETAIN_AWAIT 16u
#define SK_RETAIN_APART 2u

/** A step directory of the job. */
struct sk_retain_step {
	uint64_t run, run_id;
	int64_t step;
	bool looked;		/* into it; else world and ranks say nothing */
	bool complete;		/* all of it is on the store */
	bool pinned;
	bool kept;		/* as its ranks say: kept.h */
	bool in_use;		/* read, written, or to be written */
	bool living;		/* ranks of its run live */
	bool passed;		/* incomplete wherever anything of it is:
				 * sk_cat_passed_over() */
	bool ours;		/* the run is known not to be a stranger's */
	uint64_t bytes;		/* 0: not known */
	uint64_t written_ns;	/* when it was last written to */
	int32_t world;
	const uint64_t *ranks;	/* a bit for each of the world whose image is
				 * there */
	bool goes;		/* the answer */
};

/** Says of each of @n steps, newest first by (run, step), whether it goes.
 * Returns how many do. -ENOMEM. */
int sk_retain(struct sk_retain_step *steps, size_t n,
	      const struct sk_retention *policy);
/** After it: whether looking into all steps might let more go. */
bool sk_retain_is_short(const struct sk_retain_step *steps, size_t n,
			const struct sk_retention *policy);

#endif
