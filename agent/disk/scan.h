/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scan: one look at the store, in the background. stored.c asks for it,
 * merge.c puts what it finds into the catalogue.
 */
#ifndef SK_AGENT_DISK_SCAN_H
#define SK_AGENT_DISK_SCAN_H

#include <stdbool.h>

#include "catalogue/catalogue.h"
#include "disk/census.h"
#include "disk/stored.h"
#include "disk/wrote.h"
#include "loop/work.h"
#include "store/history.h"
#include "store/store.h"

/** A file that need not be read again while it is the same. */
struct file_key {
	char job[SK_JOB_MAX + 1];
	char dir[SK_CAT_DIR_MAX];
	int32_t rank, world;
	struct sk_file_id file;
};

struct file_key file_key_of(const struct sk_stored *stored);
/** Orders by the names alone, for qsort() and bsearch(). */
int file_key_compare(const void *a, const void *b);

/**
 * An image that the store has; or with rank -1, and dir "" for the whole job,
 * what could not be looked at.
 */
struct found {
	struct sk_stored stored;
	uid_t owner;
	struct sk_layout *layout;	/* NULL: ignored before, or not read */
	struct sk_store_run run;	/* as its header says */
	uint64_t content[2];		/* sk_cat_hash_sums() */
	struct sk_history_step *step;	/* where it is noted */
	uint64_t image;			/* who had it; 0: nobody */
	bool known;			/* the catalogue has it */
	int result;			/* < 0: not an image of ours, or
					 * nobody can tell */
	bool told;			/* of what is wrong with it */
	struct sk_err err;
};

/** Nobody can tell what is there: not even that it is gone, or damaged. Of a
 * whole job that what says whose it is is damaged tells nothing of the rest. */
static inline bool found_unreadable(const struct found *f)
{
	bool whole_job = f->stored.rank < 0 && !f->stored.dir[0];

	return f->result < 0 && f->result != -ENOENT &&
	       (whole_job || (f->result != -EBADMSG && f->result != -ENODATA));
}

/** A file of one of our steps that is no whole image, or not that of its name:
 * what it was when it got that name is lost, and no reason to begin anew. */
static inline bool found_damaged(const struct found *f)
{
	return f->stored.rank >= 0 && f->stored.run.number && !f->layout &&
	       (f->result == 0 || f->result == -EBADMSG ||
		f->result == -ENODATA);
}

/**
 * One look, in portions: others' looks come in between. Each is merged before
 * the next one begins, by the same mark.
 */
struct scan {
	struct work work;
	struct agent *agent;
	struct sk_link wishes;		/* that it serves */
	char job[SK_JOB_MAX + 1];	/* "": all */
	struct stored_range range;
	uint64_t serial;		/* of the catalogue when it began */
	uint32_t mark;			/* of what it has looked into */
	bool restores;			/* ranks of the one job do */
	bool counts;			/* takes a census of the one job */
	struct wrote_list wrote;	/* of the jobs that it looks at */
	/* The portion: */
	size_t spent;			/* see scan_has_room() */
	char from[SK_JOB_MAX + 1];	/* of all jobs those before it are
					 * over; "": none */
	char to[SK_JOB_MAX + 1];	/* the last one that was looked at */
	bool resumed;			/* it is not the first one */
	bool again;			/* of @from some is over, not all */
	struct stored_end place;	/* up to there */
	bool goes_on;			/* with that job */
	bool cut;			/* there is more of the last job */
	bool partial;			/* there is more, of any */
	/* The answer: */
	struct found *found;		/* sorted */
	size_t n_found, room;
	uid_t owner;			/* of the one job; -1: nobody */
	struct stored_end end;
	uint64_t newest_run;		/* that a directory names; 0: none */
	struct census census;
	bool learnt;			/* what the index does not say */
	bool unproved;			/* some steps are, yet */
	unsigned unreadable;		/* of what was found, or damaged */
	struct sk_err first;		/* the first of those */
	int result;			/* < 0: nothing is known of the disk */
	struct sk_err err;
	int told;			/* < 0: the other agents were not */
	struct sk_err untold;
};

/** Fills the answer in; the run of its work. Until it is merged it has the
 * agent's histories, and what is ignored. */
void scan_run(struct work *work);
/** What reading a header weighs against a look at a file's name. */
#define SCAN_HEADER 32u
/** What a portion weighs: 0.1 s of a disk that is not slow. */
#ifndef SCAN_PORTION
#define SCAN_PORTION (512u * SCAN_HEADER)
#endif
/** Step directories that are looked into before it is known how many files such
 * a one has. */
#ifndef SCAN_STEPS
#define SCAN_STEPS 16u
#endif
/** Whether there is room in the portion for more. */
bool scan_has_room(const struct scan *scan);
/** Whether the portion tells of the job what is gone. */
bool scan_has_reached(const struct scan *scan, const char *job);
/** What the look has seen of a step directory; not of one that it has looked
 * into, which is in what it found. */
enum scan_seen {
	SCAN_GONE,
	SCAN_NAMED,		/* it is there; *ret_run if that is known */
	SCAN_INSIDE
};
enum scan_seen scan_seen(const struct scan *scan, const char *job,
			 const char *dir, struct sk_store_run *ret_run);
/** Frees what it found, on any thread; not the look itself. */
void scan_drop(struct scan *scan);

#endif
