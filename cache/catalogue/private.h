/* SPDX-License-Identifier: Apache-2.0 */
/* Catalogue: what its files share. */
#ifndef SK_CACHE_CATALOGUE_PRIVATE_H
#define SK_CACHE_CATALOGUE_PRIVATE_H

#include "catalogue/catalogue.h"
#include "layout/coverage.h"

/** True where the image can be read from somewhere. */
static inline bool sk_cat_in_memory(const struct sk_cat_image *image)
{
	return image->slot && !image->bad_memory;
}

static inline bool sk_cat_on_store(const struct sk_cat_image *image)
{
	return image->stored.dir[0] && !image->bad_disk;
}

/** What the catalogue has that is equal, whole or a sketch; NULL. */
struct sk_cat_layout *sk_cat_layout_find(const struct sk_catalogue *cat,
					 const struct sk_layout *layout);
/** A new image in the snapshot; the layout's reference is taken over. */
struct sk_cat_image *sk_cat_image_new(struct sk_cat_snapshot *snapshot,
				      struct sk_cat_layout *layout);
/** Drops it, whatever holds it. */
void sk_cat_image_drop(struct sk_cat_image *image);
/** The same, and its images. */
void sk_cat_snapshot_drop(struct sk_cat_snapshot *snapshot);
/** Drops the image if no place holds it and nobody uses it. */
void sk_cat_image_trim(struct sk_cat_image *image);

/** Takes the slot out of the catalogue and hands its memory back. */
void sk_cat_slot_release(struct sk_cat_slot *slot);
/** The budget, its job and its user's share have that much less; or again
 * more. */
void sk_cat_charge(struct sk_cat_job *job, const struct sk_cat_amount *by,
		   bool more);
/** Tells the catalogue's owner. */
void sk_cat_slot_noted(const struct sk_cat_slot *slot);
/** The free slot is being filled for the snapshot. */
void sk_cat_slot_fill(struct sk_cat_slot *slot, struct sk_cat_snapshot *s,
		      uint32_t flags);
/** The slot goes to another state, with what is in it. */
struct sk_cat_slot *sk_cat_slot_move(struct sk_cat_slot *slot,
				     struct sk_cat_state *state);
/** A run that is not there yet. */
int sk_cat_run_new(struct sk_cat_job *job, const struct sk_cat_ask *ask,
		   uint64_t number, struct sk_cat_run **ret_run,
		   struct sk_err *err);
/** The rank lives, or does no more, and then is nobody's. */
void sk_cat_state_live(struct sk_cat_state *state, bool living);
/** The state has no slots. */
void sk_cat_state_free(struct sk_cat_state *state);
/** It is found by that id from now on, 0: no more. -ENOMEM: nothing happened;
 * not where another state has lost its id since this one got its. */
int sk_cat_state_name(struct sk_cat_state *state, uint64_t id);
/** Its slots, images or ranks are others. */
void sk_cat_changed(struct sk_cat_job *job);
/** Something happened to it that may change what is complete. */
void sk_cat_touch(struct sk_cat_snapshot *snapshot);
/** The same, of what the disk has of it. */
void sk_cat_touch_disk(struct sk_cat_snapshot *snapshot);
/** The run's ranks are others: of what is not complete. */
void sk_cat_touch_run(struct sk_cat_run *run);
/** Slots hold it, or do no more. */
void sk_cat_snapshot_settle(struct sk_cat_snapshot *snapshot);
/** The run of the snapshot, or NULL: nothing but the snapshot is left. */
struct sk_cat_run *sk_cat_run_of(const struct sk_cat_snapshot *snapshot);

/* ---- told.c ---- */

/** The job is found by what it takes; not while that changes. */
void sk_cat_told_add(struct sk_cat_job *job);
void sk_cat_told_remove(struct sk_cat_job *job);

/* ---- order.c ---- */

/** The job has its name and user. */
/** The newest run that says so began with it. */
bool sk_cat_is_begun(const struct sk_cat_snapshot *snapshot);
void sk_cat_order_add(struct sk_cat_job *job);
void sk_cat_order_remove(struct sk_cat_job *job);

/* ---- awake.c ---- */

/** None is awake; of a job too. */
void sk_cat_awake_init(struct sk_link lists[SK_CAT_DUTIES]);
/** The job goes. */
void sk_cat_awake_leave(struct sk_cat_job *job);

/* ---- rules.c ---- */

/** The newest complete one that counts for it, or NULL. */
const struct sk_cat_snapshot *
sk_cat_newest_for(const struct sk_cat_snapshot *snapshot);
/** It is to be written, and that would help. */
bool sk_cat_awaits_disk(const struct sk_cat_snapshot *snapshot);

/* ---- verdict.c ---- */

/** Images that are asked about, each there or not. */
struct sk_cat_set {
	uint64_t key[2];
	size_t n;
};

/** Images, and what is to be told of them. */
struct sk_cat_question {
	struct sk_cat_job *job;		/* NULL: gone since */
	uid_t uid;
	int32_t world;
	uint64_t key[2];
	struct sk_coverage_image *images;
	struct sk_layout **layouts;	/* references, of the same */
	size_t n, room;
	int result;
	struct sk_err err;
};

/** What the layout adds to sets that it is part of. */
void sk_cat_layout_mark(struct sk_cat_layout *layout);
/** The empty one, of a job of @world ranks. */
struct sk_cat_set sk_cat_set_new(int32_t world);
void sk_cat_set_add(struct sk_cat_set *set, const struct sk_cat_layout *layout,
		    bool present);
/** True: it is known, 0 or an error with the sentence. */
bool sk_cat_verdict(struct sk_cat_job *job, const struct sk_cat_set *set,
		    int *ret_result, struct sk_err *err);
/** For as many as the set has. NULL: no memory. */
struct sk_cat_question *sk_cat_question_new(struct sk_cat_job *job,
					    const struct sk_cat_set *set,
					    int32_t world);
void sk_cat_question_add(struct sk_cat_question *question,
			 const struct sk_cat_layout *layout, bool present);
/** Takes it over. The result, with the sentence; -EINPROGRESS: it is out. */
int sk_cat_question_ask(struct sk_cat_question *question, struct sk_err *err);
/** None of the job's verdicts is known any more. */
void sk_cat_verdicts_free(struct sk_cat_job *job);

static inline bool sk_cat_is_of(const struct sk_cat_snapshot *snapshot,
				const struct sk_cat_run *run)
{
	return snapshot->run == run->number && snapshot->run_id == run->id;
}

#endif
