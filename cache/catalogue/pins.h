/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Catalogue, pins: what they keep, what of it is to be on disk, and whom they
 * leave no slot.
 *
 * Thread-safety: as the catalogue.
 */
#ifndef SK_CACHE_CATALOGUE_PINS_H
#define SK_CACHE_CATALOGUE_PINS_H

#include "catalogue/catalogue.h"

/** What its pin is for is so without memory, which a rank of its job may have
 * that would get none else. */
bool sk_cat_pinned_on_disk(const struct sk_cat_snapshot *snapshot);
/** It is on disk as far as that can be, and its pin is not yet: so its owner
 * writes that. */
bool sk_cat_pin_missing(const struct sk_cat_snapshot *snapshot);
/** It is to be on disk and is not yet, memory has something of it, and it may
 * be whole: what will not be is not written. */
bool sk_cat_goes_to_disk(const struct sk_cat_snapshot *snapshot);
/** It is to be on disk, whatever becomes of its pin. */
void sk_cat_want(struct sk_cat_snapshot *snapshot);
/** A pinned snapshot of which memory alone has something is to be on disk,
 * unless its ranks never have theirs written. True: from now on. */
bool sk_cat_want_pinned(struct sk_cat_snapshot *snapshot);
/** It is pinned no more: nor is it to be, if that was all that had it so. */
void sk_cat_unwant_pinned(struct sk_cat_snapshot *snapshot);
/** How many of the rank's slots have what is pinned in memory alone, where no
 * slot can be had before that is unpinned or written, which nothing under way
 * does; else 0. @why says so. */
unsigned sk_cat_state_held(const struct sk_cat_state *state,
			   struct sk_err *why);

#endif
