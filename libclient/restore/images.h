/* SPDX-License-Identifier: Apache-2.0 */
/* The images of one snapshot. */
#ifndef SK_LIBCLIENT_RESTORE_IMAGES_H
#define SK_LIBCLIENT_RESTORE_IMAGES_H

#include "restore/restoring.h"

/** By which the agent says that where the restore may look is the whole:
 * SK_SNAP_... */
uint32_t sk_restore_whole_flag(const struct sk_restoring *rs);
/** Lists the images of one offer; opens none. */
int sk_restore_images(struct sk_restoring *rs,
		      const struct sk_restore_offer *offer);
/** Of those, all that ranks have to see alike. */
uint64_t sk_restore_images_digest(const struct sk_restoring *rs);
/** The first image of @rank, or where it would be. */
uint32_t sk_restore_first_of(const struct sk_restoring *rs, int32_t rank);
/** What SK_MSG_OPEN calls a place. */
enum sk_place sk_restore_place_number(uint32_t place);
/** Whether the restore may look where that image lies, on whichever node. */
bool sk_restore_allowed(const struct sk_restoring *rs,
			const struct sk_wire_part *part);
/** The first listed image of that snapshot that is damaged where the restore
 * may look, else NULL; also one that sk_restore_set_aside() was told of. */
const struct sk_wire_part *sk_restore_damaged(const struct sk_restoring *rs);
/** "on disk", "in memory". */
const char *sk_restore_where(bool disk);
/** Sets a place aside and says so to the agent. */
void sk_restore_set_aside(struct sk_restoring *rs, uint32_t image,
			  uint32_t place, bool tell);
/** Lets go of the images and of what was listed; mappings in the
 * background. */
void sk_restore_release_images(struct sk_restoring *rs);

#endif
