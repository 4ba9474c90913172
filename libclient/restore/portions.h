/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks say at length, some of it at a time: a world's would be too much,
 * and most often one rank has much to say and all others little. */
#ifndef SK_LIBCLIENT_RESTORE_PORTIONS_H
#define SK_LIBCLIENT_RESTORE_PORTIONS_H

#include "restore/restoring.h"

/** Called with each portion: units [at, at + n) of every rank, one rank's after
 * the other's at @all, which is gone afterwards. */
typedef void (*sk_restore_portion_fn)(void *ctx, const void *all, size_t at,
				      size_t n);

/**
 * Every rank gives @n units of @bytes each at @in, the same number on all
 * ranks, who have heard it. No more than a few MiB are there at a time,
 * or one unit of each rank. @r as of sk_restore_gather(); of no units nothing
 * is said.
 */
int sk_restore_gather_long(struct sk_restoring *rs, int r, const void *in,
			   size_t n, size_t bytes, sk_restore_portion_fn take,
			   void *ctx);

#endif
