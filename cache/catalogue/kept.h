/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What stays on disk as ranks say, where several agents have a store each and
 * none knows what the others' hold: SK_MSG_KEEP.
 */
#ifndef SK_CACHE_CATALOGUE_KEPT_H
#define SK_CACHE_CATALOGUE_KEPT_H

#include "catalogue/catalogue.h"

/** Ranks say that it stays (base/staying.h); or it is what the newest run began
 * with, whose ranks have not said yet that all of them have written another.
 * What is newer, and complete here, is not asked for. */
bool sk_cat_kept(const struct sk_cat_snapshot *snapshot);
/** Whether all ranks of its run that live here have their primary image on
 * disk; false where none lives. */
bool sk_cat_written_here(const struct sk_cat_snapshot *snapshot);

#endif
