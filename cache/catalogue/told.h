/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Catalogue, what is told of it: counts that are kept, and the jobs by the
 * memory that they take, so that who asks costs the same however many there
 * are.
 */
#ifndef SK_CACHE_CATALOGUE_TOLD_H
#define SK_CACHE_CATALOGUE_TOLD_H

#include "catalogue/catalogue.h"

/** What n_to_write counts, of each job and of all, is so from now on until
 * something changes. */
void sk_cat_tell(struct sk_catalogue *cat);
/** The job whose slots take most, or most of those that come after @after;
 * @user's, or (NULL) of all. NULL: no more. */
struct sk_cat_job *sk_cat_largest(const struct sk_catalogue *cat,
				  const struct sk_cat_user *user,
				  const struct sk_cat_job *after);

#endif
