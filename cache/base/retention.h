/* SPDX-License-Identifier: Apache-2.0 */
/* What is to stay on disk of a job. All 0: everything. */
#ifndef SK_CACHE_BASE_RETENTION_H
#define SK_CACHE_BASE_RETENTION_H

#include <stdbool.h>
#include <stdint.h>

struct sk_retention {
	uint32_t keep_last;	/* complete snapshots; 0: any number */
	uint32_t keep_every;	/* steps that are multiples of it stay as well,
				 * whatever keep_last says; 0: none do */
	uint64_t keep_age_s;	/* how much older than the newest complete one
				 * a snapshot may be; 0: any */
	uint64_t keep_bytes;	/* of all, the newest first; 0: any number */
};

/** Whether it lets anything go. */
static inline bool sk_retention_limits(const struct sk_retention *r)
{
	return r->keep_last || r->keep_age_s || r->keep_bytes;
}

static inline bool sk_retention_equal(const struct sk_retention *a,
				      const struct sk_retention *b)
{
	return a->keep_last == b->keep_last &&
	       a->keep_every == b->keep_every &&
	       a->keep_age_s == b->keep_age_s &&
	       a->keep_bytes == b->keep_bytes;
}

#endif
