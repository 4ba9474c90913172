/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Store, inside: names, directories, and which run a step directory is of.
 *
 * Beside the images a step directory holds ".run": the number of its run, its
 * id, and a checksum of both. The
 * directory is made under a temporary name with that file in it and renamed:
 * no one ever sees it without a run, its run never changes, and of several
 * agents that make it at once one wins and the others use what it made.
 * Whoever holds its descriptor writes into the right run, whatever the
 * directory is called by then. Where ".run" is missing (images that somebody
 * copied) or damaged, the images' headers say the run.
 */
#ifndef SK_CACHE_STORE_PRIVATE_H
#define SK_CACHE_STORE_PRIVATE_H

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "base/link.h"
#include "store/history.h"
#include "store/store.h"

#define SK_RUN_FILE ".run"
#define SK_OWNER_FILE ".owner"
#define SK_PINNED_FILE ".pinned"	/* of a step */
#define SK_RETAIN_FILE ".retain"	/* of a job */
#define SK_AGREED_FILE ".agreed"	/* the same */
#define SK_INDEX_DIR ".index"	/* of the store; a file for each job */
#define SK_RESTORING_DIR ".restoring"	/* of the store; restoring.c */
#define SK_INDEX_TEMPORARY "index"
/*
 * Directories that another user's files are reached through: a job is entered
 * but not listed, as its neighbours' steps are nobody else's matter; a step is
 * listed, as programs look for the files of one.
 */
#define SK_DIR_OURS 0700
#define SK_DIR_ENTERED 0711
#define SK_DIR_LISTED 0755
#define SK_DISPLACED_MAX 1000u	/* names of one step and run */
#define SK_STORE_NAME_MAX 128	/* longest name of ours, NUL included; but */
#define SK_RESTORING_NAME_MAX (32 + SK_JOB_MAX)	/* with a job in it */
/* A name that stands for so long is of nobody; who lives renews it. */
#define SK_RESTORING_NS (5 * SK_STORE_RENEW_NS)

struct sk_store {
	const struct sk_os *os;	/* immutable, but for what is said */
	char *path;
	int fd;			/* its number; sk_store_find() changes which
				 * directory it is */
	_Atomic uint32_t instance;	/* stands in our temporary names */
	_Atomic uint64_t device;	/* of the directory */
	_Atomic uint64_t below;	/* what that one is mounted on */
	atomic_uint names;	/* that were given */
	pthread_mutex_t lock;	/* while the path is looked up */
	pthread_mutex_t alive_lock;	/* after it; guards: */
	int alive;		/* the file that is locked; -1: none */
	atomic_bool lives;	/* that was said, or tried; set under it */
	pthread_mutex_t restoring_lock;	/* before the other; guards: */
	struct sk_link restoring;	/* jobs, ours; restoring.c */
	struct sk_link seen;		/* others' names of that kind */
};

/* names: names.c */

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
/** ".<name>.<id>.tmp"; no two of a store are alike. */
void sk_temporary_name(struct sk_store *store, const char *name,
		       char buf[SK_STORE_NAME_MAX]);
/** ".deleted-<id>-<inode>-<name>", of the step directory @name: only the one
 * with that inode is to be removed. */
void sk_deleted_name(struct sk_store *store, const char *name, uint64_t inode,
		     char buf[SK_STORE_NAME_MAX]);

struct sk_leftover {
	uint32_t instance;	/* whose it is */
	uint64_t inode;
	const char *of;		/* the step directory that was to be deleted,
				 * within the name; NULL: a temporary name */
};

/** Whether it is exactly one of those, of a name of ours. */
bool sk_leftover_name(const char *name, struct sk_leftover *ret_left);
/** ".agent-<instance>". */
void sk_alive_name_format(char buf[SK_STORE_NAME_MAX], uint32_t instance);
bool sk_alive_name_parse(const char *name, uint32_t *ret_instance);
/** "<id>-<job>"; no two of a store are alike. */
void sk_restoring_name(struct sk_store *store, const char *job,
		       char buf[SK_RESTORING_NAME_MAX]);
/** Whose it is, and the job, within the name. */
bool sk_restoring_name_parse(const char *name, uint32_t *ret_instance,
			     const char **ret_job);
/** A decimal number and nothing else. */
bool sk_decimal_parse(const char *text, uint64_t *ret_value);
/** What stands in ".run", without the end of the line. */
#define SK_RUN_TEXT_MAX 64
void sk_run_text_format(char buf[SK_RUN_TEXT_MAX],
			const struct sk_store_run *run);
bool sk_run_text_parse(const char *text, struct sk_store_run *ret_run);

/* directories: dir.c */

/** Opens a directory below @dirfd, not through a symbolic link. */
int sk_dir_open(const struct sk_os *os, int dirfd, const char *name);
/** Makes what is new in a directory durable. */
int sk_dir_sync(const struct sk_os *os, int fd);
/** Whether @name in @dirfd is the directory that @fd is: 1, 0 or errno. */
int sk_dir_is(const struct sk_os *os, int dirfd, const char *name, int fd);
/** Calls @fn for each entry but "." and ".." until it returns non-zero. */
int sk_dir_entries(const struct sk_os *os, int fd,
		   int (*fn)(void *ctx, int fd, const struct dirent64 *entry),
		   void *ctx);
/** The same, of the names alone. */
int sk_dir_each(const struct sk_os *os, int fd,
		int (*fn)(void *ctx, int fd, const char *name), void *ctx);
/** Removes a file, or a directory and what is in it. Gone already: 0. */
int sk_dir_remove(const struct sk_os *os, int dirfd, const char *name);
/** The first bytes of a small file, as a string. -EBADMSG: it is no line of
 * text, or no file. */
int sk_dir_read_text(const struct sk_os *os, int dirfd, const char *name,
		     char *buf, size_t size);
/** Writes all of it from the beginning of the file. 0 or errno. */
int sk_file_write(const struct sk_os *os, int fd, const char *data,
		  size_t bytes);
enum {
	SK_FILE_SYNC = 1,	/* the bytes are on the disk before the name */
	SK_FILE_NEW = 2,	/* -EEXIST: there is one */
};
/** Makes the file @name of its bytes under @temporary, which no other has, and
 * renames it. Nothing is left of one that fails. */
int sk_file_make(const struct sk_os *os, int dirfd, const char *temporary,
		 const char *name, const void *data, size_t bytes,
		 unsigned flags);
/** Writes a small file durably: temporary name, fsync, rename, fsync. */
int sk_dir_write_text(struct sk_store *store, int dirfd, const char *name,
		      const char *text, struct sk_err *err);
/** The same, but that it replaces none: -EEXIST. */
int sk_dir_write_new_text(struct sk_store *store, int dirfd, const char *name,
			  const char *text, struct sk_err *err);

/** Whether an errno says that what was listed is gone, or is not ours. */
static inline bool sk_is_gone(int r)
{
	return r == -ENOENT || r == -ENOTDIR || r == -ELOOP || r == -ESTALE;
}

/** -ESTALE is said of runs here, and is final. From a filesystem it says that
 * a server lost what is open: then it is an error like others. */
static inline int sk_not_stale(int r)
{
	return r == -ESTALE ? -EIO : r;
}

/** Whether an errno says more of this process than of what it looked at. */
static inline bool sk_is_shortage(int r)
{
	return r == -EMFILE || r == -ENFILE || r == -ENOMEM;
}

/* sweep.c */

/** Says that we live, by the number that was drawn, or by another one where
 * that is somebody's; once, and before anything bears it. Waits as writes to
 * the store do. */
void sk_store_live(struct sk_store *store);
void sk_store_die(struct sk_store *store);
/** The directory is another one: we live there. */
void sk_store_move(struct sk_store *store);

/* restoring.c */

void sk_restoring_open(struct sk_store *store);
/** What is ours of it is removed. */
void sk_restoring_close(struct sk_store *store);
/** What is known of it is freed, and the names stay. */
void sk_restoring_forget(struct sk_store *store);
/** Removes the names that @is_left says are left over. */
void sk_restoring_sweep(struct sk_store *store,
			bool (*is_left)(void *ctx, int dirfd, const char *name,
					uint32_t instance),
			void *ctx);

/* history.c */

struct sk_history {
	char job[SK_JOB_MAX + 1];
	bool loaded;			/* the index was looked for */
	bool unsaved;			/* it does not say all of this */
	bool merged;			/* see sk_history_merged() */
	struct sk_file_id dir;		/* the job's; inode 0: none */
	uint64_t looked_ns;		/* wall clock, when that look began */
	uint64_t known_ns;		/* the same of the first one */
	struct sk_history_step *steps;	/* by step and name */
	size_t n, room;
	size_t unproved;		/* of them */
	uint64_t prove_from;		/* the step that is next */
	uint32_t *order;		/* newest first */
	int64_t *locals;		/* of briefs */
};

/** For qsort(): by step and name. */
int sk_history_order(const void *a, const void *b);
/** Newest first, too. -ENOMEM. */
int sk_history_put_in_order(struct sk_history *history);
/** Nothing is known, nor of what directory. */
void sk_history_forget(struct sk_history *history);

/* look.c */

/** Looks what the directory of the step's name is: inode, times, error.
 * -ENOENT: there is none. -EMFILE, -ENFILE, -ENOMEM. */
int sk_history_stat(const struct sk_history *history, struct sk_store *store,
		    int job_fd, struct sk_history_step *step);
/** Whether that was the same both times. */
bool sk_history_same(const struct sk_history_step *a,
		     const struct sk_history_step *b);
/** Opens it for its run; number 0: nothing says it, or its error does. Errors
 * are as above. */
int sk_history_ask(struct sk_store *store, int job_fd,
		   struct sk_history_step *step);

/* noted.c */

/** Files as they stand in the index, one after the other, and the sizes that
 * they name; without arrays they are counted. */
struct sk_briefs {
	struct sk_history_brief *files;
	int64_t *locals;
	size_t n;
	uint32_t n_locals;
};

/** Adds those of the step; returns how many. */
uint32_t sk_history_briefs(const struct sk_history *history,
			   const struct sk_history_step *step,
			   struct sk_briefs *all);

/* index.c */

/** What the file says is what the history knows; nothing where there is none
 * that can be believed. The history must know nothing yet. */
void sk_index_load(struct sk_history *history, struct sk_store *store);
/** Removes the files of jobs that are gone, and those temporary ones that
 * @is_left says are left over. */
void sk_index_sweep(struct sk_store *store,
		    bool (*is_left)(void *ctx, int dirfd, const char *name,
				    uint32_t instance),
		    void *ctx);

/* store.c */

/** The directory that the path is by now. Any thread. -ENOENT, -ENODEV (its
 * filesystem is not mounted), or why it cannot be opened: who reads goes on in
 * the one that is open, and who writes or deletes does not, for nobody looks
 * for it there. */
int sk_store_find(struct sk_store *store);
/** The sentence of an error that it returned. */
int sk_store_lost(const struct sk_store *store, int r, const char *what,
		  struct sk_err *err);

/** The job's directory. -ENOENT without a sentence. */
int sk_store_job_dir(struct sk_store *store, const char *job,
		     struct sk_err *err);
/** Makes it where there is none, of that mode (less the umask); durable in
 * the store either way. */
int sk_store_make_job_dir(struct sk_store *store, const char *job,
			  mode_t mode, struct sk_err *err);

/* step.c */

/** What ".run" says of a step directory; number 0 where it says nothing. */
int sk_step_run_file(struct sk_store *store, int fd,
		     struct sk_store_run *ret_run);
/** The run of a step directory; number 0 where nothing says it. */
int sk_step_run(struct sk_store *store, int fd, struct sk_store_run *ret_run);
/** For whose sake a step directory stays. */
struct sk_spare {
	const char *job;	/* ranks that restore it */
	const bool *own;	/* of @world: ranks whose images alone may go;
				 * NULL: any may */
	int32_t world;
};

/** Deletes the step directory @dir: renamed first. -ESTALE: it is another
 * run's. Where @spare is not NULL also what sk_step_spared() says. In drop.c.
 */
int sk_step_delete(struct sk_store *store, int job_fd, const char *dir,
		   const struct sk_store_run *run,
		   const struct sk_spare *spare, struct sk_err *err);
/** Whether the step directory open as @fd may go: 0; -EBUSY: it is pinned;
 * -EEXIST: others have written there; -EAGAIN: ranks of the job restore; what
 * cannot be told. In spare.c. */
int sk_step_spared(struct sk_store *store, int fd, const char *dir,
		   const struct sk_spare *spare, struct sk_err *err);
/** The directory of that name, if it is @run's: its descriptor, or -ESTALE. In
 * drop.c. */
int sk_step_open_of(struct sk_store *store, int job_fd, const char *dir,
		    const struct sk_store_run *run, struct sk_err *err);
/** 1: the step directory open as @fd is pinned; 0; errno. In keep.c. */
int sk_step_pinned(const struct sk_store *store, int fd);
/** Gives back what was hidden as @deleted, and is not the directory that was to
 * be deleted: the name @dir, or where that is taken again, one that readers
 * look under as well. In drop.c. */
int sk_step_unhide(struct sk_store *store, int job_fd, const char *dir,
		   const char *deleted);
/**
 * Removes the step directory @dir, open as @fd and @run's, unless something
 * but ".run" is in it. -ENOTEMPTY: it stays, or is not under that name. A
 * file that comes into it meanwhile is never removed: either it stays with
 * the directory, or who writes it finds that it cannot.
 */
int sk_step_delete_empty(struct sk_store *store, int job_fd, const char *dir,
			 int fd, const struct sk_store_run *run,
			 struct sk_err *err);
/**
 * The directory of (step, run), made where there is none; an older run's is
 * moved out of the way, and one of the same number in which there is nothing
 * is removed. Durable in the job's directory. -ESTALE: it is a newer run's, or
 * one's of the same number and another id. @mode: of one that is made, less
 * the umask. *ret_displaced is set where one was moved, and else left as it
 * is; NULL: not wanted.
 */
int sk_step_acquire(struct sk_store *store, int job_fd, uint64_t step,
		    const struct sk_store_run *run, mode_t mode,
		    bool *ret_displaced, struct sk_err *err);

/** What the file of that name in the job's directory says; "" where it makes no
 * sense, 1: there is none. Errors, with a sentence: it cannot be read. */
int sk_store_job_text(struct sk_store *store, const char *job,
		      const char *name, char *text, size_t room,
		      struct sk_err *err);

#endif
