/* SPDX-License-Identifier: Apache-2.0 */
/* What other nodes want of this one: found, read, verified, packed. */
#ifndef SK_LIBCLIENT_RESTORE_SOURCE_H
#define SK_LIBCLIENT_RESTORE_SOURCE_H

#include "restore/wants.h"

/** A want that this rank is the source of. */
struct sk_sourced {
	uint32_t image;
	uint32_t place;
	const struct sk_entry *entry;	/* NULL: it cannot be given */
	const struct sk_item *item;
};

/**
 * Finds what @want asks for and has it at hand. What cannot be given, for the
 * image is gone or damaged, is noted in rs->bad and sent as zeros: who asked
 * is told afterwards. -EPROTO: nothing that a rank asks for; -ENOMEM.
 */
int sk_restore_find_source(struct sk_restoring *rs,
			   const struct sk_want *want,
			   struct sk_sourced *ret);
/** Packs bytes [@from, @to) of what is wanted at @dst. Every chunk is verified
 * by whoever packs a part of it first; one that is bad is noted in rs->bad.
 * Any thread of the pool. -ENOMEM, -EIO. */
int sk_restore_read_source(struct sk_restoring *rs, const struct sk_want *want,
			   const struct sk_sourced *sourced, uint64_t from,
			   uint64_t to, char *dst, struct sk_err *err);

#endif
