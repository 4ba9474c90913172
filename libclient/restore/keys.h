/* SPDX-License-Identifier: Apache-2.0 */
/* The names in the snapshot, and those that this rank asks for. */
#ifndef SK_LIBCLIENT_RESTORE_KEYS_H
#define SK_LIBCLIENT_RESTORE_KEYS_H

#include "restore/restoring.h"

/** Which locals the options ask for; each time that there is another agent.
 * -EINVAL: a name that none can have; -ENOMEM. */
int sk_restore_wanted(struct sk_restoring *rs);
/** The names of all images, once they are listed. -ENOMEM, and as of opening
 * an image. */
int sk_restore_index(struct sk_restoring *rs);
/** Lets go of the names, and of what was missing. */
void sk_restore_forget_keys(struct sk_restoring *rs);
struct sk_restore_key *sk_restore_key(const struct sk_restoring *rs,
				      enum sk_item_kind kind,
				      const char *name);
/** What the snapshot has of that local's kind and name, or NULL. */
struct sk_restore_key *sk_restore_key_of(const struct sk_restoring *rs,
					 uint32_t local);
/** Of its kind and name, the same on all ranks. */
uint64_t sk_restore_key_hash(const struct sk_restore_key *key);
/** Whether @item, the @i-th of its layout, is what the rank is registered by
 * for its @i-th local: then nothing of the two differs. */
bool sk_restore_is_registered_as(const struct sk_restoring *rs, uint32_t i,
				 const struct sk_item *item);
/** Compares each wanted local with the snapshot; fills rs->missing. */
int sk_restore_compare(struct sk_restoring *rs);
/** One more of them. -ENOMEM. */
int sk_restore_note_missing(struct sk_restoring *rs, const char *name);

#endif
