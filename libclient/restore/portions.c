/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/portions.h"

#include <assert.h>

#include "base/util.h"
#include "restore/agree.h"

int sk_restore_gather_long(struct sk_restoring *rs, int r, const void *in,
			   size_t n, size_t bytes, sk_restore_portion_fn take,
			   void *ctx)
{
	size_t some = sk_restore_portion(rs, bytes);

	assert(some);
	for (size_t at = 0; at < n; at += some) {
		_cleanup_free_ void *all = NULL;

		/* The last portion is as long as there is. */
		some = n - at < some ? n - at : some;
		/* Who has none to give says why, and gives nothing. */
		r = sk_restore_gather(rs, r, r < 0 ? NULL :
				      (const char *)in + at * bytes,
				      some * bytes, &all);
		if (r < 0)
			return r;
		take(ctx, all, at, some);
	}
	return r;
}
