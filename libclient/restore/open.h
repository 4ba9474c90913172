/* SPDX-License-Identifier: Apache-2.0 */
/* What is known of an image, and what opening it brings. */
#ifndef SK_LIBCLIENT_RESTORE_OPEN_H
#define SK_LIBCLIENT_RESTORE_OPEN_H

#include "restore/restoring.h"

/**
 * Has the image's layout: remembered, computed from another one of its
 * description, or read from its header. Errors: -ENOENT it is not to be had
 * any more; others end the restore, with the sentence.
 */
int sk_restore_know(struct sk_restoring *rs, uint32_t image);
/** The same without any header; -ENOENT where that does not give it. */
int sk_restore_derive(struct sk_restoring *rs, uint32_t image);
/** Whether arithmetic on what was learnt gives it, as it gives it to whoever
 * has learnt the same: 0, or -ENOENT; nothing of it is kept. -ENOMEM. */
int sk_restore_follows(struct sk_restoring *rs, uint32_t image);
/** Opens what is known at @place, which no byte is taken from before: it is
 * what was listed, and the checksums of what this rank takes of it are there.
 * Errors: as sk_restore_know(); -ENOENT has set the place aside. */
int sk_restore_open(struct sk_restoring *rs, uint32_t image, uint32_t place);
/** The entry of that index in an image whose layout is known, which somebody
 * else has named: *ret is NULL where it has none. Errors: -ENOMEM. */
int sk_restore_named_entry(struct sk_restoring *rs, uint32_t image,
			   uint32_t index, const struct sk_entry **ret);
/** Has the checksums of such an entry, of an image that is open at @place.
 * Errors: -ENOENT it is not to be had any more; others end the restore. */
int sk_restore_need_sums(struct sk_restoring *rs, uint32_t image,
			 uint32_t place, const struct sk_entry *entry);
/** Opens, several in one round trip, those that sk_restore_open() has put off
 * while rs->later; *ret_lost: one of them is not to be had, and is not there
 * any more. Errors end the restore. */
int sk_restore_open_asked(struct sk_restoring *rs, bool *ret_lost);
/** Has the data of a place that was opened at hand, mapped if it is memory. */
int sk_restore_reach(struct sk_restoring *rs, uint32_t image, uint32_t place);
/** Has its file no longer open. */
void sk_restore_leave(struct sk_restoring *rs, uint32_t image);

/** Remembers that @layout is one of its description. */
int sk_restore_learn(struct sk_restoring *rs, const struct sk_layout *layout);
/** Remembers none. */
void sk_restore_unlearn(struct sk_restoring *rs);
/** That description; NULL: none was learnt. */
struct sk_restore_description *
sk_restore_description(const struct sk_restoring *rs, uint64_t hash);
/** A layout of it, or NULL. */
const struct sk_layout *sk_restore_described(const struct sk_restoring *rs,
					     uint64_t description);

#endif
