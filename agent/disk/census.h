/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Census: what lies on the store of a job, as retention counts it. The names
 * are the background's, which looks at the store; what is known of them the
 * catalogue's, where it is counted in portions (disk/tally.h).
 */
#ifndef SK_AGENT_DISK_CENSUS_H
#define SK_AGENT_DISK_CENSUS_H

#include "catalogue/retention.h"
#include "store/history.h"

struct tally;

/** Zeroed: of nothing. */
struct census {
	struct sk_retain_step *steps;	/* newest first */
	char (*dirs)[SK_STEP_DIR_MAX];	/* of each */
	size_t n;
};

/** The names alone; step directories of which nothing says the run are not
 * counted. -ENOMEM. */
int census_names(const struct sk_history *history, struct census *ret);
/** And what the tally, which is over, has counted of each. The steps have
 * pointers into it. Any thread. */
void census_join(struct census *census, const struct tally *tally);
void census_free(struct census *census);

#endif
