/* SPDX-License-Identifier: Apache-2.0 */
/* Catalogue: what outlived another agent, and nobody has read yet. */
#ifndef SK_CACHE_CATALOGUE_UNREAD_H
#define SK_CACHE_CATALOGUE_UNREAD_H

#include "catalogue/catalogue.h"

/** Slots of so much of the job's are there whose images nobody has read yet:
 * they are charged, and the job stays, until sk_cat_job_was_read(). */
void sk_cat_job_unread(struct sk_cat_job *job,
		       const struct sk_cat_amount *slots);
/** They are charged no more; what became slots is to be. */
void sk_cat_job_was_read(struct sk_cat_job *job);

#endif
