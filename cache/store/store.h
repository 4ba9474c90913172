/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Store: names on disk, and the order of operations that makes them true.
 *
 *   <store>/<job>/step-000000001000/rank-00003-of-00008.safetensors
 *
 * A file under its final name is whole; what is not whole is called
 * ".<final name>.<id>.tmp". Deleting renames the step directory to
 * ".deleted-<id>-<inode>-<name>" first. The first half of the id is the
 * writer's, who holds a lock on ".agent-<half>" in the store while it lives; a
 * directory of another inode got there by a race, and gets its name back.
 *
 * A step directory belongs to one run, the one its images name; an older run's
 * directory in the way of a newer one is renamed to "step-....run-<K>" and
 * deleted when the newer is complete. A run of the same number and another id
 * is a stranger: whoever comes second is refused.
 *
 * ".pinned" in a step directory keeps it from retention; ".retain" in a job's
 * says what is to stay of it: keep.c, and ".agreed" what the ranks of several
 * agents say of that: staying.c.
 *
 * ".index" in the store is an agent's memory of the steps: index.c. Whatever
 * becomes of it, nothing is lost.
 *
 * What cannot be looked at is not taken for nothing: it is an error, or a
 * record that says so.
 *
 * Thread-safety: functions on one store may run in several threads.
 */
#ifndef SK_CACHE_STORE_H
#define SK_CACHE_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/file-id.h"
#include "base/retention.h"
#include "base/staying.h"
#include "io/io.h"
#include "layout/layout.h"
#include "base/os.h"

struct sk_store;
struct statfs;

/** Opens (and creates) the directory; -ENOTSUP with a sentence where it
 * cannot hold images durably is not an error but *ret_volatile = 1 (tmpfs,
 * ramfs). Sweeps, see below, unless that is for later. The path is looked up
 * again from time to time: where it has become another directory, made anew or
 * mounted, that one is the store from then on; but not what is left of it when
 * its filesystem is unmounted: the directory on which it was mounted. */
int sk_store_open(const struct sk_os *os, const char *path, unsigned stale_s,
		  struct sk_store **ret_store, int *ret_volatile,
		  struct sk_err *err);
/** What that filesystem holds is in memory. */
bool sk_store_is_volatile(const struct statfs *fs);
/** -EROFS: nothing can be written to the filesystem of the directory @fd, which
 * need not be mounted so: after an error the kernel may refuse all writes.
 * Hangs where writes do. 0: else, and where that cannot be told. */
int sk_store_probe(const struct sk_os *os, int fd);
struct sk_store *sk_store_close(struct sk_store *store);
SK_DEFINE_CLEANUP(struct sk_store *, sk_store_close)
const char *sk_store_path(const struct sk_store *store);

/** Where a store lies: numbers of filesystems, as stat() has them. */
struct sk_store_place {
	uint64_t device;
	uint64_t below;		/* on which that is mounted; device: none is */
};

/** Any thread; waits for nobody. */
struct sk_store_place sk_store_place(const struct sk_store *store);
/** Whether a directory of that filesystem is below the place: its own is not
 * mounted, and will not have what is written there. */
static inline bool sk_store_is_below(const struct sk_store_place *place,
				     uint64_t device)
{
	return device == place->below && device != place->device;
}

#define SK_STORE_DEAD_ONLY UINT32_MAX
/** Opening sweeps nothing, and writes nothing where the directory is there: it
 * does not hang where reading does not. */
#define SK_STORE_LATER (UINT32_MAX - 1)
/** Removes left-over ".tmp" and ".deleted-" names of agents that are known to
 * be dead, and of those of whom nothing is known what is older than @stale_s
 * seconds. SK_STORE_DEAD_ONLY: not the latter; it costs little where nobody
 * has died. Returns how many agents were found dead. */
unsigned sk_store_sweep(struct sk_store *store, unsigned stale_s);

/** A run of a job; number 0: nothing says which. */
struct sk_store_run {
	uint64_t number;
	uint64_t id;
};

static inline bool sk_store_run_equal(const struct sk_store_run *a,
				      const struct sk_store_run *b)
{
	return a->number == b->number && a->id == b->id;
}

/** One image file as a scan finds it; or what it could not look at. */
struct sk_stored {
	char job[SK_JOB_MAX + 1];
	char dir[64];		/* the step directory's name */
	uint64_t step;
	int32_t rank;		/* -1: the directory, with an error */
	int32_t world;
	int32_t error;		/* < 0: why it could not be looked at */
	struct sk_store_run run;	/* as the directory says */
	bool pinned;			/* the directory is */
	struct sk_file_id file;
};

/** Names of job directories, malloc'ed array of malloc'ed strings. */
int sk_store_jobs(struct sk_store *store, char ***ret_jobs, size_t *ret_n,
		  struct sk_err *err);
/** All whole images of a job, by (step, dir, world, rank), and what could not
 * be looked at. No such job: 0. Errors: the job could not be looked at, or
 * this process lacks what it takes (-EMFILE, -ENFILE, -ENOMEM). */
int sk_store_scan(struct sk_store *store, const char *job,
		  struct sk_stored **ret_images, size_t *ret_n,
		  struct sk_err *err);

/** Looks again at @n images of one job: ret_gone says of each whether it is
 * another file by now, or none. Returns how many are. Errors: one could not
 * be looked at. */
int sk_store_gone(struct sk_store *store, const struct sk_stored *images,
		  size_t n, bool *ret_gone, struct sk_err *err);

/** Opens an image for reading (buffered). */
int sk_store_open_image(struct sk_store *store, const struct sk_stored *image,
			struct sk_err *err);
/** Reads the header of an open image, malloc'ed, and tells what file it is.
 * Errors: -EBADMSG it has none, -ENOMEM, those of reading. */
int sk_store_read_header(struct sk_store *store, int fd, void **ret_header,
			 uint64_t *ret_size, struct sk_file_id *ret_file,
			 struct sk_err *err);
/** Reads and parses the header of an open image: layout, and the stamp when
 * wanted (ret_stamp->sums is malloc'ed). Errors as sk_layout_parse. */
int sk_store_read_layout(struct sk_store *store, int fd,
			 struct sk_layout **ret_layout,
			 struct sk_stamp *ret_stamp, struct sk_err *err);

struct sk_store_put {
	const char *job;
	struct sk_store_run run;
	uint64_t step;
	int32_t rank;
	int32_t world;
	const void *head;	/* the stamped header */
	size_t head_bytes;
	const void *data;	/* the slot's mapping */
	uint64_t bytes;		/* of the image */
	uint64_t max_rate;
	int (*progress)(void *ctx, uint64_t done);
	/* Is shown the data as it is written; see struct sk_write. */
	int (*see)(void *ctx, const void *bytes, size_t n,
		   struct sk_err *err);
	void *ctx;
	struct sk_file_id *ret_file;	/* what it became; NULL: not wanted */
	/* Whose the file shall be, where that is not this process's user:
	 * NULL, or a user who can then reach and read it. Directories stay
	 * this process's: nobody else renames or makes anything in them. */
	const uid_t *owner;
	int *ret_owned;		/* 0, or why the file stayed ours, which is
				 * no failure; NULL: not wanted */
	bool *ret_displaced;	/* set where an older run's directory of the
				 * step was moved aside; NULL: not wanted */
};

/**
 * Writes one image: directories (each synced into its parent), temporary
 * file, data, fsync, rename to the final name, fsync of the directory.
 * Returns 0 only when all of that is durable. A failure leaves no file under
 * a final name that is not whole; after a failed fsync a new try writes a new
 * file. An image of the same name and an older run is replaced. -ESTALE: the
 * step is a newer run's, or of another one of the same number, or the name
 * stands for a whole image of other content. -EAGAIN: another agent took the
 * step's directory away meanwhile; nothing was made durable, and trying again
 * tells whose the step is.
 */
int sk_store_put_image(struct sk_store *store, struct sk_io *io,
		       const struct sk_store_put *put, struct sk_err *err);

/** Called when all images of (run, step) are durable: deletes step-N.run-K
 * directories of older runs. Nothing is deleted where the step is another
 * run's by now. */
int sk_store_settle(struct sk_store *store, const char *job, uint64_t step,
		    const struct sk_store_run *run, struct sk_err *err);

/** Deletes the step directory @dir of a job: renamed first, then removed.
 * -ESTALE: it is another run's than @run's. */
int sk_store_delete(struct sk_store *store, const char *job, const char *dir,
		    const struct sk_store_run *run, struct sk_err *err);

/** The same, but -EBUSY where the step is pinned, and -EAGAIN where ranks of
 * the job restore: whether they do is looked at right before the renaming and
 * after it, when the step gets its name back. */
int sk_store_retire(struct sk_store *store, const char *job, const char *dir,
		    const struct sk_store_run *run, struct sk_err *err);

/** The same, but -EEXIST where anything in it is not of this agent's ranks,
 * @own[rank] of @world: an image, or one that another agent has begun. */
int sk_store_retire_own(struct sk_store *store, const char *job,
			const char *dir, const struct sk_store_run *run,
			const bool *own, int32_t world, struct sk_err *err);

/** Ranks of the job restore at this agent: none of its steps is retired, by
 * this agent or any other on the store, until sk_store_restored(). It is to be
 * said anew each SK_STORE_RENEW_NS. An error, with a sentence: the other agents
 * do not know it. */
int sk_store_restoring(struct sk_store *store, const char *job,
		       struct sk_err *err);
#define SK_STORE_RENEW_NS (120 * UINT64_C(1000000000))
void sk_store_restored(struct sk_store *store, const char *job);
/** 1: at this agent, or at another that has said so and seems to live; 0;
 * errno. Whose name stands as it is for five times SK_STORE_RENEW_NS of this
 * agent's clock does not. */
int sk_store_is_restoring(struct sk_store *store, const char *job);

/** Pins the step directory @dir, durably, for all agents, or does so no more.
 * -ENOENT, -ESTALE: it is gone, or another run's than @run's. */
int sk_store_pin(struct sk_store *store, const char *job, const char *dir,
		 const struct sk_store_run *run, bool pinned,
		 struct sk_err *err);

/** Who said what is to stay of a job; the later ones are heard first. */
enum sk_retention_from {
	SK_RETENTION_NONE,	/* nobody: everything stays */
	SK_RETENTION_DEFAULT,	/* nobody, of a job that began with retention */
	SK_RETENTION_AGENT,	/* an agent's options; never on a store */
	SK_RETENTION_JOB,	/* the trainer */
	SK_RETENTION_OPERATOR
};

/** What the job's ".retain" says. *ret_from SK_RETENTION_NONE: there is none.
 * Errors, with a sentence: it cannot be read, -EBADMSG it makes no sense. */
int sk_store_retention(struct sk_store *store, const char *job,
		       enum sk_retention_from *ret_from,
		       struct sk_retention *ret, struct sk_err *err);
/** Writes it durably; NONE removes it. -ENOENT: the store has no such job. */
int sk_store_set_retention(struct sk_store *store, const char *job,
			   enum sk_retention_from from,
			   const struct sk_retention *retention,
			   struct sk_err *err);
/** "default", "agent", ... */
const char *sk_retention_from_name(enum sk_retention_from from);

/** What the job's ".agreed" says; all 0: there is none. Errors, with a sentence:
 * it cannot be read, -EBADMSG it makes no sense. */
int sk_store_staying(struct sk_store *store, const char *job,
		     struct sk_staying *ret, struct sk_err *err);
/** Writes it durably. -ENOENT: the store has no such job. */
int sk_store_set_staying(struct sk_store *store, const char *job,
			 const struct sk_staying *staying, struct sk_err *err);

/** False: there is no directory of that name, as far as one can tell. */
bool sk_store_has_job(struct sk_store *store, const char *job);
/** The uid a job's directory belongs to (.owner), or -ENOENT. */
int sk_store_owner(struct sk_store *store, const char *job, uid_t *ret_uid,
		   struct sk_err *err);
/** Makes a job's directory where there is none, and says of one of which nobody
 * has said so that it is @uid's. *ret_owner is whose it is then, which may be
 * another one's: of several agents that do so at once the first has it. */
int sk_store_claim(struct sk_store *store, const char *job, uid_t uid,
		   uid_t *ret_owner, struct sk_err *err);

#endif
