/* SPDX-License-Identifier: Apache-2.0 */
/* Catalogue: what outlived another agent. */
#ifndef SK_CACHE_CATALOGUE_REVIVE_H
#define SK_CACHE_CATALOGUE_REVIVE_H

#include "catalogue/catalogue.h"

/** The run of that number and id, which has lost its ranks: who was in it may
 * come back, others begin a newer one. Errors: -EINVAL it has another world,
 * or cannot be; -ENOMEM. */
int sk_cat_run_revive(struct sk_cat_job *job, uint64_t number, uint64_t id,
		      int32_t world, struct sk_cat_run **ret_run,
		      struct sk_err *err);
/** A rank that was registered, and is awaited; those of one rank come in the
 * order of their serials. Takes the references of @layouts over. NULL: no
 * memory, nothing was taken. */
struct sk_cat_state *
sk_cat_state_revive(struct sk_cat_run *run, int32_t rank, uint64_t serial,
		    struct sk_cat_layout *const layouts[2]);
/** The free slot holds the sealed image of its rank of @step; as
 * sk_cat_slot_seal(), but that the disk wants it is for the caller to say.
 * -EEXIST: another slot does. */
int sk_cat_slot_revive(struct sk_cat_slot *slot, int64_t step,
		       uint64_t *const sums[2], uint64_t (*content)[2],
		       uint64_t wall_ns);
/** The free slot goes on being filled with that step, by whoever has what it
 * is to hold; then it is sealed or cleared as any. Errors as above. */
int sk_cat_slot_resume(struct sk_cat_slot *slot, int64_t step,
		       uint32_t flags);
/** Slots of so much of the job's are there whose images nobody has read yet:
 * they are charged, and the job stays, until sk_cat_job_was_read(). */
void sk_cat_job_unread(struct sk_cat_job *job,
		       const struct sk_cat_amount *slots);
/** They are charged no more; what became slots is to be. */
void sk_cat_job_was_read(struct sk_cat_job *job);

#endif
