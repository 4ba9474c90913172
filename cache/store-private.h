/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Store, inside: names, directories, and which run a step directory is of.
 *
 * Beside the images a step directory holds ".run", its run in decimal. The
 * directory is made under a temporary name with that file in it and renamed:
 * no one ever sees it without a run, its run never changes, and of several
 * agents that make it at once one wins and the others use what it made.
 * Whoever holds its descriptor writes into the right run, whatever the
 * directory is called by then. Where ".run" is missing (images that somebody
 * copied) the images' headers say the run.
 */
#ifndef SK_CACHE_STORE_PRIVATE_H
#define SK_CACHE_STORE_PRIVATE_H

#include <dirent.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "store.h"

#define SK_RUN_FILE ".run"
#define SK_OWNER_FILE ".owner"
#define SK_STORE_NAME_MAX 96	/* longest name of ours, NUL included */

struct sk_store {
	const struct sk_os *os;	/* immutable, all of it */
	char *path;
	int fd;
};

/* names: store-names.c */

struct sk_step_name {
	uint64_t step;
	bool displaced;		/* "step-N.run-K" or "step-N.run-K-i" */
	uint64_t run;		/* K */
};

bool sk_step_name_parse(const char *name, struct sk_step_name *ret_name);
void sk_step_name_format(char buf[SK_STORE_NAME_MAX], uint64_t step);
/** @i from 1: which try at a free name. */
void sk_step_name_displaced(char buf[SK_STORE_NAME_MAX], uint64_t step,
			    uint64_t run, unsigned i);
bool sk_image_name_parse(const char *name, int32_t *ret_rank,
			 int32_t *ret_world);
void sk_image_name_format(char buf[SK_STORE_NAME_MAX], int32_t rank,
			  int32_t world);
/** ".<name>.<random>.tmp", ".deleted-<random>". */
int sk_temporary_name(const struct sk_os *os, const char *name,
		      char buf[SK_STORE_NAME_MAX], struct sk_err *err);
int sk_deleted_name(const struct sk_os *os, char buf[SK_STORE_NAME_MAX],
		    struct sk_err *err);
/** Whether it is exactly one of those, of a name of ours. */
bool sk_leftover_name(const char *name);
/** A decimal number and nothing else. */
bool sk_decimal_parse(const char *text, uint64_t *ret_value);

/* directories: store-dir.c */

/** Opens a directory below @dirfd, not through a symbolic link. */
int sk_dir_open(const struct sk_os *os, int dirfd, const char *name);
/** Makes what is new in a directory durable. */
int sk_dir_sync(const struct sk_os *os, int fd);
/** Whether @name in @dirfd is the directory that @fd is: 1, 0 or errno. */
int sk_dir_is(const struct sk_os *os, int dirfd, const char *name, int fd);
/** Calls @fn for each entry but "." and ".." until it returns non-zero. */
int sk_dir_each(const struct sk_os *os, int fd,
		int (*fn)(void *ctx, int fd, const char *name), void *ctx);
/** Removes a file, or a directory and what is in it. Gone already: 0. */
int sk_dir_remove(const struct sk_os *os, int dirfd, const char *name);
/** The first bytes of a small file, as a string. */
int sk_dir_read_text(const struct sk_os *os, int dirfd, const char *name,
		     char *buf, size_t size);
/** Writes a small file durably: temporary name, fsync, rename, fsync. */
int sk_dir_write_text(const struct sk_os *os, int dirfd, const char *name,
		      const char *text, struct sk_err *err);

/** Whether an errno says that what was listed is gone, or is not ours. */
static inline bool sk_is_gone(int r)
{
	return r == -ENOENT || r == -ENOTDIR || r == -ELOOP || r == -ESTALE;
}

/* store.c */

/** The job's directory. -ENOENT without a sentence. */
int sk_store_job_dir(struct sk_store *store, const char *job,
		     struct sk_err *err);
/** Makes it where there is none; durable in the store either way. */
int sk_store_make_job_dir(struct sk_store *store, const char *job,
			  struct sk_err *err);

/* store-step.c */

/** The run of a step directory; 0 where nothing says it. */
int sk_step_run(struct sk_store *store, int fd, uint64_t *ret_run);
/**
 * The directory of (step, run), made where there is none; an older run's is
 * moved out of the way. Durable in the job's directory. -ESTALE: it is a
 * newer run's.
 */
int sk_step_acquire(struct sk_store *store, int job_fd, uint64_t step,
		    uint64_t run, struct sk_err *err);

#endif
