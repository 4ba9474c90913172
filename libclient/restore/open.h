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
/** Opens what is known at @place, which no byte is taken from before: it is
 * what was listed, and its checksums are there. Errors: as sk_restore_know();
 * -ENOENT has set the place aside. */
int sk_restore_open(struct sk_restoring *rs, uint32_t image, uint32_t place);
/** Has the data of a place that was opened at hand, mapped if it is memory. */
int sk_restore_reach(struct sk_restoring *rs, uint32_t image, uint32_t place);

/** Remembers that @layout is one of its description. */
int sk_restore_learn(struct sk_restoring *rs, const struct sk_layout *layout);
/** Remembers none. */
void sk_restore_unlearn(struct sk_restoring *rs);
/** A layout of that description; NULL: none was learnt. */
const struct sk_layout *sk_restore_described(const struct sk_restoring *rs,
					     uint64_t description);

#endif
