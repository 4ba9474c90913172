/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Store: names on disk, and the order of operations that makes them true.
 *
 *   <store>/<job>/step-000000001000/rank-00003-of-00008.safetensors
 *
 * A file under its final name is whole; what is not whole is called
 * ".<final name>.<random>.tmp". Deleting renames the step directory to
 * ".deleted-<random>" first. A step directory belongs to one run, the one
 * its images name; an older run's directory in the way of a newer one is
 * renamed to "step-....run-<K>" and deleted when the newer is complete.
 *
 * Thread-safety: functions on one store may run in several threads.
 */
#ifndef SK_CACHE_STORE_H
#define SK_CACHE_STORE_H

#include <stdint.h>

#include "error.h"
#include "io.h"
#include "layout.h"
#include "os.h"

struct sk_store;

/** Opens (and creates) the directory; -ENOTSUP with a sentence where it
 * cannot hold images durably is not an error but *ret_volatile = 1 (tmpfs,
 * ramfs). Removes left-over ".tmp" and ".deleted-" names of dead agents: of
 * those older than @stale_s seconds. */
int sk_store_open(const struct sk_os *os, const char *path, unsigned stale_s,
		  struct sk_store **ret_store, int *ret_volatile,
		  struct sk_err *err);
struct sk_store *sk_store_close(struct sk_store *store);
SK_DEFINE_CLEANUP(struct sk_store *, sk_store_close)
const char *sk_store_path(const struct sk_store *store);

/** One image file as a scan finds it. */
struct sk_stored {
	char job[SK_JOB_MAX + 1];
	char dir[64];		/* the step directory's name */
	uint64_t step;
	int32_t rank;
	int32_t world;
	uint64_t bytes;
	uint64_t mtime_ns;	/* wall clock; for people only */
};

/** Names of job directories, malloc'ed array of malloc'ed strings. */
int sk_store_jobs(struct sk_store *store, char ***ret_jobs, size_t *ret_n,
		  struct sk_err *err);
/** All whole images of a job, by (step, dir, world, rank). No such job: 0. */
int sk_store_scan(struct sk_store *store, const char *job,
		  struct sk_stored **ret_images, size_t *ret_n,
		  struct sk_err *err);

/** Opens an image for reading (buffered). */
int sk_store_open_image(struct sk_store *store, const struct sk_stored *image,
			struct sk_err *err);
/** Reads and parses the header of an open image: layout, and the stamp when
 * wanted (ret_stamp->sums is malloc'ed). Errors as sk_layout_parse. */
int sk_store_read_layout(struct sk_store *store, int fd,
			 struct sk_layout **ret_layout,
			 struct sk_stamp *ret_stamp, struct sk_err *err);

struct sk_store_put {
	const char *job;
	uint64_t run;
	uint64_t step;
	int32_t rank;
	int32_t world;
	const void *head;	/* the stamped header */
	size_t head_bytes;
	const void *data;	/* the slot's mapping */
	uint64_t bytes;		/* of the image */
	uint64_t max_rate;
	int (*progress)(void *ctx, uint64_t done);
	void *ctx;
};

/**
 * Writes one image: directories (each synced into its parent), temporary
 * file, data, fsync, rename to the final name, fsync of the directory.
 * Returns 0 only when all of that is durable. A failure leaves no file under
 * a final name that is not whole; after a failed fsync a new try writes a new
 * file. An image of the same name and an older run is replaced, of a newer
 * run refused: -ESTALE.
 */
int sk_store_put_image(struct sk_store *store, struct sk_io *io,
		       const struct sk_store_put *put, struct sk_err *err);

/** Called when all images of (run, step) are durable: deletes step-N.run-K
 * directories of older runs. */
int sk_store_settle(struct sk_store *store, const char *job, uint64_t step,
		    struct sk_err *err);

/** Deletes the step directory @dir of a job: renamed first, then removed. */
int sk_store_delete(struct sk_store *store, const char *job, const char *dir,
		    struct sk_err *err);

/** The uid a job's directory belongs to (.owner), or -ENOENT. */
int sk_store_owner(struct sk_store *store, const char *job, uid_t *ret_uid,
		   struct sk_err *err);
int sk_store_set_owner(struct sk_store *store, const char *job, uid_t uid,
		       struct sk_err *err);

#endif
