/* SPDX-License-Identifier: Apache-2.0 */
/* A chunk of an entry, hashed whole, and what is wanted of it stored. */
#ifndef SK_LIBCLIENT_RESTORE_PASSING_H
#define SK_LIBCLIENT_RESTORE_PASSING_H

#include "restore/shape.h"

/** What is copied of a chunk, and how. */
struct sk_passing {
	struct sk_copy copy;	/* its src: of the entry at ->base */
	struct sk_restore_shape shape;
	const char *base;	/* byte 0 of the entry */
	uint64_t from, to;	/* the chunk, in bytes of the entry */
	uint64_t first, last;	/* to be stored, in bytes of the piece: all
				 * that the chunk has of it, or less */
	bool shared;		/* others may write to it */
};

/**
 * Stores what is wanted, and hashes all: *ret_sum is the XXH3 of the very bytes
 * that were stored from, whoever writes to them meanwhile. Any thread. -ENOMEM.
 */
int sk_passing_run(const struct sk_passing *passing, uint64_t *ret_sum,
		   struct sk_err *err);

/** The copy of the part that lies in bytes [@at, ...) of the entry, out of
 * @bytes, which are those. */
struct sk_copy sk_passing_out_of(const struct sk_passing *passing, uint64_t at,
				 const char *bytes);
/** memcpy(), of pages that lie scattered. */
void sk_passing_gather(char *to, const char *from, uint64_t n);
/** The same, and the XXH3 of what lies at @to then, whoever writes to @from
 * meanwhile. Any thread, where nobody else writes to @to. */
uint64_t sk_passing_gather_hashed(char *to, const char *from, uint64_t bytes);

#endif
