/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks say of the steps that their job goes back to; of a job's ranks,
 * the newest run that says so. */
#ifndef SK_CACHE_CATALOGUE_BEGUN_H
#define SK_CACHE_CATALOGUE_BEGUN_H

#include <stdbool.h>
#include <stdint.h>

/** What the ranks of a run began with: they restored it. */
struct sk_cat_begun {
	uint64_t run, run_id;		/* the snapshot; run 0: none */
	int64_t step;
	bool newest;			/* what is newer was found lacking, with
					 * what all nodes had */
	uint64_t by;			/* the run that began with it */
};

#endif
