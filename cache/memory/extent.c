/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/extent.h"

#include <stdbool.h>

#include "base/util.h"

#define GRAIN 512u	/* so that copies to and from it are aligned */

uint64_t sk_extent_next(const struct sk_extent *p, uint64_t at)
{
	return sk_round_up(at + (p->to - p->from), GRAIN);
}

static bool is_within(const struct sk_extent *p, const uint64_t from[2],
		      const uint64_t to[2])
{
	return p->kind < 2 && !p->reserved && p->from < p->to &&
	       p->from >= from[p->kind] && p->to <= to[p->kind];
}

static bool is_behind(const struct sk_extent *p, const struct sk_extent *before)
{
	return p->kind > before->kind ||
	       (p->kind == before->kind && p->from >= before->to);
}

int sk_extents_check(const struct sk_extent *extents, uint32_t n,
		    const uint64_t from[2], const uint64_t to[2],
		    uint64_t *ret_bytes, struct sk_err *err)
{
	uint64_t at = 0;

	for (uint32_t i = 0; i < n; i++) {
		const struct sk_extent *p = &extents[i];

		if (!is_within(p, from, to) ||
		    (i && !is_behind(p, &extents[i - 1])))
			return sk_err_set(err, -EINVAL, "extent %u of a device "
					  "slot is bytes %llu to %llu of image "
					  "kind %u, which cannot be", i,
					  (unsigned long long)p->from,
					  (unsigned long long)p->to, p->kind);
		at = sk_extent_next(p, at);
	}
	*ret_bytes = at;
	return 0;
}
