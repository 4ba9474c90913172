/* SPDX-License-Identifier: Apache-2.0 */
/* Images of other nodes. */
#ifndef SK_LIBCLIENT_RESTORE_OTHERS_H
#define SK_LIBCLIENT_RESTORE_OTHERS_H

#include "restore/restoring.h"

/**
 * Ranks of several nodes tell each other what lies where: rs->everywhere has
 * what every node listed, by rank of the image. What all of them find on disk
 * is left out. Collective; @r is what became of this rank's own list.
 */
int sk_restore_merge(struct sk_restoring *rs,
		     const struct sk_restore_offer *offer, int r);

/** Once there are images: who has them elsewhere. -ENOMEM. */
int sk_restore_note_holders(struct sk_restoring *rs);

/** The holder that is asked for it at @place, one of those after
 * SK_PLACE_OTHERS; the same for all nodes that it is elsewhere to, which have
 * it of each other then (trees.h). NULL: none is left. */
const struct sk_restore_holder *
sk_restore_holder(const struct sk_restoring *rs, uint32_t image,
		  uint32_t place);
/** It is there no more: the image of that id at that agent; @entry as struct
 * sk_restore_place's bad_entry. */
void sk_restore_holder_gone(struct sk_restoring *rs, uint64_t agent,
			    uint64_t id, uint32_t place, uint32_t entry);

#endif
