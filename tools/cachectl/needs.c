/* SPDX-License-Identifier: Apache-2.0 */
#include "needs.h"

#include <stdbool.h>

#include "catalogue/retention.h"

static uint64_t larger(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* Of one whose other images lie elsewhere the store keeps two at least. */
static uint64_t kept(const struct sk_retention *keep, bool complete, size_t n)
{
	if (!keep->keep_last)
		return n;
	return complete ? keep->keep_last :
	       larger(keep->keep_last, SK_RETAIN_APART);
}

/* What newer ones take the place of, when there are enough. */
static bool goes_in_time(const struct sk_retention *keep,
			 const struct sk_wire_snapshot *s)
{
	return !(s->flags & SK_SNAP_PINNED) &&
	       (!keep->keep_every ||
		s->id.step % (int64_t)keep->keep_every != 0);
}

uint64_t still_needs(const struct sk_retention *keep,
		     const struct sk_wire_snapshot *all, size_t n)
{
	uint64_t largest = 0, there = 0, most;
	bool complete = false;
	size_t go = 0;

	for (size_t i = 0; i < n; i++) {
		largest = larger(largest, larger(all[i].bytes_disk,
						 all[i].bytes_memory));
		if (goes_in_time(keep, &all[i])) {
			there += all[i].bytes_disk;
			go++;
		}
		complete |= all[i].flags & SK_SNAP_COMPLETE;
	}
	most = largest * kept(keep, complete, go);
	if (keep->keep_bytes && keep->keep_bytes < most)
		most = larger(keep->keep_bytes, largest);
	return most + largest > there ? most + largest - there : 0;
}
