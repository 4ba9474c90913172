/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Catalogue: which jobs, snapshots and images there are, and the rules about
 * them. Pure data in the agent's own memory; no descriptors, no I/O.
 *
 * Snapshots are ordered by (run, step), newest first. Images of different
 * runs are never in one snapshot.
 *
 * Thread-safety: none; the agent's main thread owns it.
 */
#ifndef SK_CACHE_CATALOGUE_H
#define SK_CACHE_CATALOGUE_H

#include <sys/types.h>

#include "coverage.h"
#include "error.h"
#include "layout.h"

struct sk_cat_image {
	struct sk_cat_image *next;
	struct sk_cat_snapshot *snapshot;
	uint64_t id;
	int32_t rank;
	enum sk_image_kind kind;
	struct sk_layout *layout;	/* a reference */
	uint64_t *sums;			/* owned */
	void *slot;			/* the agent's, NULL: not in memory */
	bool on_disk;
	bool bad_memory, bad_disk;	/* a checksum failed there */
	unsigned leases;
	char dir[64];			/* on disk: the step directory */
};

struct sk_cat_snapshot {
	struct sk_cat_snapshot *next;	/* older */
	struct sk_cat_job *job;
	uint64_t run, step;
	int32_t world;
	struct sk_cat_image *images;
	bool pinned, wanted, failed;
	bool complete, hopeless;	/* hopeless: it never will be */
	unsigned flushing;		/* images in the flusher */
	unsigned tries;
	uint64_t retry_ns;		/* monotonic; of the next flush */
	uint64_t flushed_bytes, created_ns;
	char text[SK_ERR_MAX];		/* what is missing, why it failed */
};

struct sk_cat_job {
	struct sk_cat_job *next;
	char name[SK_JOB_MAX + 1];
	uid_t uid;
	bool scanned;			/* the store was looked at */
	uint64_t newest_run;		/* known so far */
	struct sk_cat_snapshot *snapshots;	/* newest first */
};

struct sk_cat {
	struct sk_cat_job *jobs;
	uint64_t next_id;
};

void sk_cat_free(struct sk_cat *cat);

struct sk_cat_job *sk_cat_find_job(const struct sk_cat *cat,
				   const char *name);
/** Finds or makes; NULL: out of memory. */
struct sk_cat_job *sk_cat_job(struct sk_cat *cat, const char *name,
			      uid_t uid);

struct sk_cat_snapshot *sk_cat_find(const struct sk_cat_job *job,
				    uint64_t run, uint64_t step);
/** Finds or makes, in order; NULL: out of memory. */
struct sk_cat_snapshot *sk_cat_snapshot(struct sk_cat_job *job, uint64_t run,
					uint64_t step, int32_t world);

struct sk_cat_image *sk_cat_find_image(const struct sk_cat_snapshot *s,
				       int32_t rank, enum sk_image_kind kind);
struct sk_cat_image *sk_cat_image_by_id(const struct sk_cat *cat,
					uint64_t id);
/** Adds an image; takes a reference of @layout and copies @sums. A second of
 * the same rank and kind replaces nothing: NULL with errno EEXIST. */
struct sk_cat_image *sk_cat_add(struct sk_cat *cat, struct sk_cat_snapshot *s,
				struct sk_layout *layout,
				const uint64_t *sums);
/** Forgets an image that is nowhere any more, and its snapshot with the last
 * one. Returns true if the snapshot is gone. */
bool sk_cat_drop_image(struct sk_cat_image *image);

/** True if it can be read from somewhere. */
bool sk_cat_image_good(const struct sk_cat_image *image);
bool sk_cat_in_memory(const struct sk_cat_snapshot *s);
bool sk_cat_in_use(const struct sk_cat_snapshot *s);
/** Every primary image is on disk, and it is complete. */
bool sk_cat_durable(const struct sk_cat_snapshot *s);
struct sk_cat_snapshot *sk_cat_newest_complete(const struct sk_cat_job *job);

/** Computes complete and text anew; @known are layouts of registered ranks
 * of the run, whose images may be missing. */
void sk_cat_cover(struct sk_cat_snapshot *s, struct sk_layout *const *known,
		  size_t n_known);

/** 0 if memory of it may be taken; -EBUSY with the reason. */
int sk_cat_may_evict(const struct sk_cat_snapshot *s, bool has_store,
		     struct sk_err *err);

#endif
