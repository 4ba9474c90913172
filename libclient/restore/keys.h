/* SPDX-License-Identifier: Apache-2.0 */
/* The names in the snapshot, and those that this rank asks for. */
#ifndef SK_LIBCLIENT_RESTORE_KEYS_H
#define SK_LIBCLIENT_RESTORE_KEYS_H

#include "restore/restoring.h"

/** Which locals the options ask for; each time that there is another agent.
 * -EINVAL: a name that none can have; -ENOMEM. */
int sk_restore_wanted(struct sk_restoring *rs);
int sk_restore_index(struct sk_restoring *rs);
/** Lets go of the names, and of what was missing. */
void sk_restore_forget_keys(struct sk_restoring *rs);
struct sk_restore_key *sk_restore_key(const struct sk_restoring *rs,
				      enum sk_item_kind kind,
				      const char *name);
/** What the snapshot has of that local's kind and name, or NULL. */
struct sk_restore_key *sk_restore_key_of(const struct sk_restoring *rs,
					 uint32_t local);
/** Compares each wanted local with the snapshot; fills rs->missing. */
int sk_restore_compare(struct sk_restoring *rs);
/** One more of them. -ENOMEM. */
int sk_restore_note_missing(struct sk_restoring *rs, const char *name);

#endif
