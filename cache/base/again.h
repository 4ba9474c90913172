/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Again: when to ask once more for what was refused for want of room. Whoever
 * had it may have given it back, but to ask is not free: a minute later, then
 * two, four, up to about an hour.
 *
 * All zeroes: nothing was refused. Times are of sk_os.now_ns(). Thread-safety:
 * one at a time.
 */
#ifndef SK_CACHE_BASE_AGAIN_H
#define SK_CACHE_BASE_AGAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/os.h"

struct sk_again {
	uint64_t at_ns;		/* not before */
	unsigned refusals;	/* in a row */
};

static inline bool sk_again_is_due(const struct sk_again *again,
				   uint64_t now_ns)
{
	return now_ns >= again->at_ns;
}

static inline void sk_again_refused(struct sk_again *again, uint64_t now_ns)
{
	unsigned doubled = again->refusals < 6 ? again->refusals : 6;

	again->at_ns = now_ns + (UINT64_C(60000000000) << doubled);
	again->refusals++;
}

/** What no time changes. */
static inline void sk_again_never(struct sk_again *again)
{
	again->at_ns = SK_FOREVER;
}

#endif
