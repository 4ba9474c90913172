/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tally: what the catalogue knows of what a job has on disk, counted a portion
 * at a time, as it may be all images of a large world. What changes between
 * two portions is seen or not; each snapshot's own images are all counted.
 *
 * Thread-safety: it is the event loop's until it is over, then anybody's.
 */
#ifndef SK_AGENT_DISK_TALLY_H
#define SK_AGENT_DISK_TALLY_H

#include "catalogue/catalogue.h"

struct tally;

/** Of a snapshot, what is in one of the directories that have images of it;
 * dir "": none has any. */
struct tally_step {
	uint64_t run, run_id;
	int64_t step;
	char dir[SK_CAT_DIR_MAX];
	int32_t world;
	bool on_disk;			/* complete there */
	bool kept;			/* sk_cat_kept() */
	bool pinned;
	bool passed;			/* sk_cat_passed_over() */
	bool in_use;			/* read, written, to be written, or
					 * nobody can tell yet */
	uint64_t bytes;			/* of the images */
	size_t ranks_at;		/* see tally_ranks() */
};

struct tally_run {
	uint64_t number, id;
	bool living;
	int64_t *kept;			/* steps, ascending: complete on disk */
	size_t n_kept;
};

/** NULL: no memory. */
struct tally *tally_begin(struct sk_cat_job *job);
/** Counts about @most images more: 1 there are more yet, 0 it is over.
 * -ENOMEM. */
int tally_go_on(struct tally *tally, unsigned most);
/** NULL is fine. */
struct tally *tally_free(struct tally *tally);

/* Of one that is over; what is returned is valid while it is there. */

/** NULL: no rank of it is known here. */
const struct tally_run *tally_run(const struct tally *tally, uint64_t number,
				  uint64_t id);
bool tally_kept(const struct tally_run *run, int64_t step);
/** That of the directory, if one is, else any of the snapshot. NULL: the
 * snapshot is not known. */
const struct tally_step *tally_step(const struct tally *tally, uint64_t run,
				    uint64_t run_id, int64_t step,
				    const char *dir);
/** A bit for each rank of its world whose image is there, and good. */
const uint64_t *tally_ranks(const struct tally *tally,
			    const struct tally_step *step);

#endif
