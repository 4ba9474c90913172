/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deal: items one by one to whichever of equal holders has the fewest bytes,
 * the first of them where several have. Private to split.c.
 *
 * A heap of those that have something. The others have nothing and are served
 * in their order, so a deal costs O(log items), however many holders there
 * are.
 */
#ifndef SK_CACHE_LAYOUT_DEAL_H
#define SK_CACHE_LAYOUT_DEAL_H

#include <stddef.h>
#include <stdint.h>

struct sk_hand {
	uint64_t bytes;
	int64_t holder;
};

/** Zeroes but for @holders begin one. */
struct sk_deal {
	int64_t holders;
	struct sk_hand *heap;	/* fewest bytes first; owned, to be freed */
	size_t n, room;		/* of the heap: holders that were served */
	uint64_t steps;		/* hands looked at, for tests of growth */
};

/** Who of 0 .. holders-1 gets an item of @bytes; -ENOMEM. */
int64_t sk_deal_next(struct sk_deal *deal, uint64_t bytes);

#endif
