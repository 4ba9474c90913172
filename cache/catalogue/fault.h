/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fault: what the store did to a job's last flush, until its flushes are done.
 * The catalogue keeps it, and knows nothing of it.
 */
#ifndef SK_CACHE_CATALOGUE_FAULT_H
#define SK_CACHE_CATALOGUE_FAULT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/link.h"

struct sk_cat_job;

struct sk_cat_fault {
	struct sk_link link;		/* in the catalogue, while it stands */
	int64_t step;
	char *text;			/* why; NULL: there was no memory */
	/* The owner's: */
	bool no_room;
	bool is_short;			/* the store was seen to have less than
					 * these, which it found no room for */
	uint64_t bytes, files;
};

/** It stands from now on, or still, for that step. */
void sk_cat_fault_set(struct sk_cat_job *job, int64_t step, const char *text);
/** Nothing, where there is none. */
void sk_cat_fault_end(struct sk_cat_job *job);

#endif
