/* SPDX-License-Identifier: Apache-2.0 */
/*
 * History: the step directories of a job, newest first, without what is in
 * them.
 *
 * Only the file ".run" in a directory says which run it is of, and that never
 * changes. So each is opened once: as long as it is the same directory, by
 * device, inode, and the times of its last change, its run is known. While
 * nothing was made, renamed or removed in the job's directory, which its own
 * times tell, not even the names are read again. Where something was, names
 * and inodes are, which cost no call for each, and times only of what is new:
 * the others are what they were until sk_history_prove() has looked at them,
 * in whatever portions, for a directory that was removed may have left its
 * inode to the next one of its name. Times count in ticks, so one that was not
 * yet past by some ticks when it was looked at says nothing.
 *
 * All that may be kept in a file, the store's index, from which the first look
 * of a later process goes on; where it is gone, or no good, everything is
 * looked at anew. Nothing else depends on it.
 *
 * Thread-safety: none; one history is one thread's at a time.
 */
#ifndef SK_CACHE_STORE_HISTORY_H
#define SK_CACHE_STORE_HISTORY_H

#include <stdbool.h>

#include "layout/layout.h"
#include "store/store.h"

struct sk_history;

/** A step directory, as it was when it was looked at last. */
struct sk_history_step {
	uint64_t step;
	struct sk_store_run run;	/* number 0: nothing says it */
	char *aside;			/* its name, where a newer run moved it
					 * aside; NULL: the step's own */
	uint64_t inode;
	uint64_t mtime_ns, ctime_ns;	/* wall clock */
	int32_t error;			/* why its run could not be read */
	bool unproved;			/* since a look that has seen its name
					 * and inode alone */
	uint32_t mark;			/* its user's; 0 when it is new, or
					 * another directory by now */
	struct sk_history_file *files;	/* by (world, rank) */
	uint32_t n_files, room_files;
	struct sk_history_brief *briefs;	/* what the index said of them,
						 * in the same order */
	uint32_t n_briefs;
};

/** What the header of an image said, who noted it: that stands as long as the
 * name is the same file. */
struct sk_history_file {
	int32_t rank, world;
	struct sk_file_id id;
	struct sk_store_run run;
	struct sk_layout *layout;	/* a reference */
	uint64_t content[2];		/* its user's: of its checksums */
	uint64_t image;			/* the same: who has it */
};

#define SK_STEP_DIR_MAX 64u	/* longest name that is seen, with its NUL */

/** Of a job of which nothing was looked at; NULL: no memory. */
struct sk_history *sk_history_new(const char *job);
struct sk_history *sk_history_free(struct sk_history *history);

/** Looks whether it still is what it was, and reads what is new. No such job:
 * 0, and none. Errors: the job could not be looked at, or this process lacks
 * what it takes (-EMFILE, -ENFILE, -ENOMEM); what was known stays. */
int sk_history_look(struct sk_history *history, struct sk_store *store,
		    struct sk_err *err);

/** Looks at those of the @n steps that are unproved. *ret_others: some are
 * others by now, and the order is another one. Errors: as above, and the rest
 * stays unproved. */
int sk_history_prove(struct sk_history *history, struct sk_store *store,
		     struct sk_history_step *const *steps, size_t n,
		     bool *ret_others, struct sk_err *err);
/** Looks at @most of those that are, beginning where the last portion ended. */
int sk_history_prove_some(struct sk_history *history, struct sk_store *store,
			  size_t most, struct sk_err *err);
/** The next look takes it for another one than it was. */
void sk_history_doubt(struct sk_history_step *step);
/** How many are. */
size_t sk_history_unproved(const struct sk_history *history);

/** Whether a look has learnt what the index does not say. */
bool sk_history_unsaved(const struct sk_history *history);
/** Writes the index, over the one that was there. Errors, with a sentence: it
 * could not be, and the one that was there, or none, is as good. */
int sk_history_save(struct sk_history *history, struct sk_store *store,
		    struct sk_err *err);

/** Whether the directories are those, and the same runs', that they were when
 * sk_history_note_merged() was called. */
bool sk_history_merged(const struct sk_history *history);
/** Its user has forgotten what is gone of them; or (@merged false) not all. */
void sk_history_note_merged(struct sk_history *history, bool merged);

const char *sk_history_job(const struct sk_history *history);
size_t sk_history_count(const struct sk_history *history);
/** By (run, step, id of the run), descending; before all those of which
 * nothing says the run. Valid until the next look. */
struct sk_history_step *sk_history_at(const struct sk_history *history,
				      size_t i);
/** The same ones by (step, name). */
struct sk_history_step *sk_history_by_name(const struct sk_history *history,
					   size_t i);
/** That of the directory's name, or NULL. */
struct sk_history_step *sk_history_find(const struct sk_history *history,
					const char *dir);
/** Whether another run has, or may have, a directory of that number. */
bool sk_history_has_others(const struct sk_history *history, uint64_t step,
			   const struct sk_store_run *run);
void sk_history_name(const struct sk_history_step *step,
		     char buf[SK_STEP_DIR_MAX]);

/** What a process before this one noted: of the layout no more than it takes to
 * sketch it. As it stands in the index. */
struct sk_history_brief {
	int32_t rank, world;
	uint64_t inode, bytes, mtime_ns, ctime_ns;	/* as in sk_file_id */
	uint64_t content[2];
	struct sk_digest digest;
	uint64_t description;
	uint32_t n_sums;
	uint32_t header_pages;		/* of 4 KiB */
	uint32_t n_locals, locals_at;	/* in the history's */
};

/** What the index said of that file; false: nothing, or it is another one by
 * now. ret_brief->locals is valid until the next look. */
bool sk_history_brief_find(const struct sk_history *history,
			   const struct sk_history_step *step, int32_t rank,
			   int32_t world, const struct sk_file_id *id,
			   struct sk_layout_brief *ret_brief,
			   uint64_t ret_content[2]);
/** All that it said of the step is noted by now, or no matter. */
void sk_history_briefs_forget(struct sk_history_step *step);
/** The index of it cannot be right: nothing of what it says of files is
 * believed any more. */
void sk_history_briefs_doubt(struct sk_history *history);
/** What was noted since is to be in the index. */
void sk_history_learnt(struct sk_history *history);

/** What is noted of that name, or NULL. Valid until something is noted. */
struct sk_history_file *
sk_history_file_find(const struct sk_history_step *step, int32_t rank,
		     int32_t world);
/** Notes it, over what was noted of that name; takes a reference of its own.
 * NULL: no memory, nothing is noted. */
struct sk_history_file *
sk_history_file_note(struct sk_history_step *step,
		     const struct sk_history_file *file);
/** Forgets what was noted of all files of the step. */
void sk_history_files_forget(struct sk_history_step *step);

/** What sk_store_scan() finds in these @n directories of the job, in their
 * order. Errors: as there. */
int sk_history_scan(const struct sk_history *history, struct sk_store *store,
		    struct sk_history_step *const *steps, size_t n,
		    struct sk_stored **ret_images, size_t *ret_n,
		    struct sk_err *err);

#endif
