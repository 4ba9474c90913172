/* SPDX-License-Identifier: Apache-2.0 */
/* Catalogue: what its files share. */
#ifndef SK_CACHE_CATALOGUE_PRIVATE_H
#define SK_CACHE_CATALOGUE_PRIVATE_H

#include "catalogue/catalogue.h"

/** True where the image can be read from somewhere. */
static inline bool sk_cat_in_memory(const struct sk_cat_image *image)
{
	return image->slot && !image->bad_memory;
}

static inline bool sk_cat_on_disk(const struct sk_cat_image *image)
{
	return image->stored.dir[0] && !image->bad_disk;
}

/** A new image in the snapshot; the layout's reference is taken over. */
struct sk_cat_image *sk_cat_image_new(struct sk_cat_snapshot *snapshot,
				      struct sk_cat_layout *layout);
/** Drops the image if no place holds it and nobody uses it. */
void sk_cat_image_trim(struct sk_cat_image *image);

/** Takes the slot out of the catalogue and hands its memory back. */
void sk_cat_slot_release(struct sk_cat_slot *slot);
/** The state has no slots. */
void sk_cat_state_free(struct sk_cat_state *state);
/** A living rank may still seal the snapshot. */
bool sk_cat_expected(const struct sk_cat_state *state,
		     const struct sk_cat_snapshot *snapshot);
/** Looks again at all snapshots of the run that are not complete. */
void sk_cat_update_run(const struct sk_cat_run *run);
/** The run of the snapshot, or NULL: nothing but the snapshot is left. */
struct sk_cat_run *sk_cat_run_of(const struct sk_cat_snapshot *snapshot);

static inline bool sk_cat_is_of(const struct sk_cat_snapshot *snapshot,
				const struct sk_cat_run *run)
{
	return snapshot->run == run->number && snapshot->run_id == run->id;
}

#endif
