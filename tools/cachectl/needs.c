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

uint64_t still_needs(const struct sk_retention *keep,
		     const struct sk_wire_snapshot *all, size_t n)
{
	uint64_t largest = 0, there = 0, most;
	bool complete = false;

	for (size_t i = 0; i < n; i++) {
		largest = larger(largest, larger(all[i].bytes_disk,
						 all[i].bytes_memory));
		there += all[i].bytes_disk;
		complete |= all[i].flags & SK_SNAP_COMPLETE;
	}
	most = largest * kept(keep, complete, n);
	if (keep->keep_bytes && keep->keep_bytes < most)
		most = larger(keep->keep_bytes, largest);
	return most + largest > there ? most + largest - there : 0;
}
