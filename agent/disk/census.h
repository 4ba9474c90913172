/* SPDX-License-Identifier: Apache-2.0 */
/* What lies on the store of a job, as retention counts it. */
#ifndef SK_AGENT_DISK_CENSUS_H
#define SK_AGENT_DISK_CENSUS_H

#include "catalogue/catalogue.h"
#include "catalogue/retention.h"
#include "store/history.h"

struct agent;

struct census {
	struct sk_retain_step *steps;	/* newest first */
	char (*dirs)[SK_STEP_DIR_MAX];	/* of each */
	uint64_t *bits;			/* all of their ranks */
	size_t n;
};

/** Of a job that was looked at just now; step directories of which nothing
 * says the run are not counted. -ENOMEM. */
int census_take(struct agent *a, const struct sk_cat_job *job,
		struct census *ret);
void census_free(struct census *census);

#endif
