/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of snapshots and images, however long: merged, and looked up in. */
#ifndef SK_CACHECTL_LISTS_H
#define SK_CACHECTL_LISTS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/table.h"
#include "wire/message.h"

/** Newest first over all jobs, of a list that comes job by job, each newest
 * first. Within a job the order stays, whatever the clock said: that of run and
 * step is what counts. Of jobs with equal times the one listed before comes
 * first. -ENOMEM. */
int list_merge(struct sk_wire_snapshot *all, size_t n);

/** Records that begin with a struct sk_wire_id, by job, step and rank. Zeroes
 * are one of nothing. */
struct listed {
	struct sk_table table;
	const void *first;
	size_t record_bytes;
};

/** Of @n records at @first, which are borrowed. -ENOMEM. */
int listed_note(struct listed *l, const void *first, size_t record_bytes,
		size_t n);
void listed_free(struct listed *l);

struct listed_walk {
	const struct listed *listed;
	const struct sk_wire_id *id;
	struct sk_table_walk walk;
};

/** All of that job, step and rank: of other runs as well. */
struct listed_walk listed_find(const struct listed *l,
			       const struct sk_wire_id *id);
/** The next one, in no set order; NULL: no more. */
const void *listed_next(struct listed_walk *w);

#endif
