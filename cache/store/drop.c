/* SPDX-License-Identifier: Apache-2.0 */
/* Store, the step directories' end: deleted, or settled by a newer run. */
#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "store/private.h"

/* Who deletes it may have taken what says whose it is already. */
static int not_of(struct sk_store *store, int job_fd, const char *dir, int fd,
		  const struct sk_store_run *theirs,
		  const struct sk_store_run *run, struct sk_err *err)
{
	int r = sk_not_stale(sk_dir_is(store->os, job_fd, dir, fd));

	if (r < 0)
		return sk_err_errno(err, r, "cannot tell whether \"%s\" is "
				    "still there", dir);
	if (r == 0)
		return sk_err_set(err, -ENOENT, "\"%s\" went just now", dir);
	return sk_err_set(err, -ESTALE, "\"%s\" belongs to run %" PRIu64
			  " (%016" PRIx64 ") by now, not to run %" PRIu64
			  " (%016" PRIx64 ")", dir, theirs->number, theirs->id,
			  run->number, run->id);
}

int sk_step_open_of(struct sk_store *store, int job_fd, const char *dir,
		    const struct sk_store_run *run, struct sk_err *err)
{
	struct sk_store_run theirs;
	int fd, r;

	assert(job_fd >= 0);
	fd = sk_not_stale(sk_dir_open(store->os, job_fd, dir));
	if (fd < 0)
		return sk_err_errno(err, fd, "cannot open \"%s\"", dir);
	r = sk_not_stale(sk_step_run(store, fd, &theirs));
	if (r < 0)
		sk_err_errno(err, r, "cannot tell the run of \"%s\"", dir);
	else if (!sk_store_run_equal(&theirs, run))
		r = not_of(store, job_fd, dir, fd, &theirs, run, err);
	if (r == 0)
		return fd;
	store->os->close(store->os, fd);
	return r;
}

int sk_step_unhide(struct sk_store *store, int job_fd, const char *dir,
		   const char *deleted)
{
	const struct sk_os *os = store->os;
	char aside[SK_STORE_NAME_MAX];
	struct sk_step_name step;
	int r;

	/* Never onto another one: none of ours is empty. */
	r = os->renameat(os, job_fd, deleted, job_fd, dir, 0);
	if (!sk_step_name_parse(dir, &step))
		return r;
	for (unsigned i = 1; i < SK_DISPLACED_MAX &&
	     (r == -ENOTEMPTY || r == -EEXIST || r == -ENOTDIR); i++) {
		sk_step_name_displaced(aside, step.step, step.run, i);
		r = os->renameat(os, job_fd, deleted, job_fd, aside, 0);
	}
	return r;
}

/* What is hidden: durably the directory that is open as @fd, else it gets its
 * name back. Another agent may have put its own in the place just then; who is
 * ended before this leaves that to who finds it, by the inode. */
static int check_hidden(struct sk_store *store, int job_fd, const char *dir,
			int fd, const char *deleted)
{
	int back, r = sk_not_stale(sk_dir_is(store->os, job_fd, deleted, fd));

	/* Only when it is durable is it removed: a half removed step must not
	 * come back by a power loss under its own name. */
	if (r > 0)
		r = sk_not_stale(sk_dir_sync(store->os, job_fd));
	else if (r == 0)
		r = -ESTALE;
	if (r == 0)
		return 0;
	back = sk_step_unhide(store, job_fd, dir, deleted);
	return back < 0 ? back : r;
}

/* Gives the directory, open as @fd, a name under which nobody looks for it. */
static int hide_step(struct sk_store *store, int job_fd, const char *dir,
		     int fd, char deleted[SK_STORE_NAME_MAX],
		     struct sk_err *err)
{
	struct stat st;
	int r = sk_not_stale(store->os->fstat(store->os, fd, &st));

	assert(job_fd >= 0 && fd >= 0);
	if (r == 0)
		r = sk_not_stale(sk_dir_is(store->os, job_fd, dir, fd)) ? :
		    -ESTALE;
	if (r > 0) {
		sk_deleted_name(store, dir, st.st_ino, deleted);
		r = sk_not_stale(store->os->renameat(store->os, job_fd, dir,
						     job_fd, deleted, 0));
	}
	if (r == 0)
		r = check_hidden(store, job_fd, dir, fd, deleted);
	if (r < 0)
		return sk_err_errno(err, r, "cannot delete \"%s\"", dir);
	return 0;
}

/* Who pins it, writes into it, or comes to restore, looks afterwards whether it
 * bears its name still: so either they learn that it is gone, or they are found
 * here, and it gets its name back. */
static int check_again(struct sk_store *store, int job_fd, const char *dir,
		       int fd, const char *deleted,
		       const struct sk_spare *spare, struct sk_err *err)
{
	int r = sk_step_spared(store, fd, dir, spare, err), back;

	if (r == 0)
		return 0;
	back = sk_step_unhide(store, job_fd, dir, deleted);
	return back < 0 ? sk_err_errno(err, back, "cannot give \"%s\" its name "
				       "back", dir) : r;
}

int sk_step_delete(struct sk_store *store, int job_fd, const char *dir,
		   const struct sk_store_run *run,
		   const struct sk_spare *spare, struct sk_err *err)
{
	char deleted[SK_STORE_NAME_MAX];
	int fd, r;

	fd = sk_step_open_of(store, job_fd, dir, run, err);
	if (fd < 0)
		return fd;
	r = spare ? sk_step_spared(store, fd, dir, spare, err) : 0;
	if (r == 0)
		r = hide_step(store, job_fd, dir, fd, deleted, err);
	if (r == 0 && spare)
		r = check_again(store, job_fd, dir, fd, deleted, spare, err);
	store->os->close(store->os, fd);
	if (r < 0)
		return r;
	r = sk_not_stale(sk_dir_remove(store->os, job_fd, deleted));
	if (r < 0)
		return sk_err_errno(err, r, "cannot remove what is left of "
				    "\"%s\"", dir);
	return 0;
}

static int find_content(void *ctx, int fd, const char *name)
{
	(void)ctx;
	(void)fd;
	return strcmp(name, SK_RUN_FILE) != 0;
}

/* Something came into it: whose it is is said again. Where it is gone, another
 * agent has removed it. */
static int keep_step(struct sk_store *store, const char *dir, int fd,
		     const struct sk_store_run *run, struct sk_err *err)
{
	char text[SK_RUN_TEXT_MAX + 1];
	int r;

	sk_run_text_format(text, run);
	strcat(text, "\n");
	r = sk_dir_write_text(store, fd, SK_RUN_FILE, text, err);
	if (r < 0 && !sk_is_gone(r))
		return sk_err_prefix(err, r, "\"%s\"", dir);
	return -ENOTEMPTY;
}

int sk_step_delete_empty(struct sk_store *store, int job_fd, const char *dir,
			 int fd, const struct sk_store_run *run,
			 struct sk_err *err)
{
	const struct sk_os *os = store->os;
	int r;

	assert(fd >= 0 && run->number);
	r = sk_dir_each(os, fd, find_content, NULL);
	if (r > 0)
		return -ENOTEMPTY;
	if (r == 0)
		r = os->unlinkat(os, fd, SK_RUN_FILE, 0);
	if (r < 0 && r != -ENOENT)
		return sk_err_errno(err, r, "cannot remove \"%s\"", dir);
	/* Whoever has put a file in since keeps it: the system looks. */
	r = os->unlinkat(os, job_fd, dir, AT_REMOVEDIR);
	if (r == -ENOTEMPTY || r == -EEXIST)
		return keep_step(store, dir, fd, run, err);
	if (r < 0 && !sk_is_gone(r)) {
		(void)keep_step(store, dir, fd, run, NULL);
		return sk_err_errno(err, r, "cannot remove \"%s\"", dir);
	}
	return 0;
}

static int delete_of_job(struct sk_store *store, const char *job,
			 const char *dir, const struct sk_store_run *run,
			 const struct sk_spare *spare, struct sk_err *err)
{
	struct sk_step_name step;
	int fd, r;

	if (!sk_step_name_parse(dir, &step))
		return sk_err_set(err, -EINVAL, "\"%s\" is not the name of a "
				  "step directory", dir);
	r = sk_store_find(store);
	if (r < 0)
		(void)sk_store_lost(store, r, "cannot find the store", err);
	if (r < 0)
		return -EIO;	/* -ENOENT is of the step: as good as done */
	fd = sk_store_job_dir(store, job, err);
	if (fd < 0)
		return fd;
	r = sk_step_delete(store, fd, dir, run, spare, err);
	store->os->close(store->os, fd);
	if (r < 0)
		return sk_err_prefix(err, r, "job \"%s\"", job);
	return 0;
}

int sk_store_delete(struct sk_store *store, const char *job, const char *dir,
		    const struct sk_store_run *run, struct sk_err *err)
{
	return delete_of_job(store, job, dir, run, NULL, err);
}

int sk_store_retire(struct sk_store *store, const char *job, const char *dir,
		    const struct sk_store_run *run, struct sk_err *err)
{
	const struct sk_spare spare = { .job = job };

	return delete_of_job(store, job, dir, run, &spare, err);
}

int sk_store_retire_own(struct sk_store *store, const char *job,
			const char *dir, const struct sk_store_run *run,
			const bool *own, int32_t world, struct sk_err *err)
{
	const struct sk_spare spare = {
		.job = job, .own = own, .world = world,
	};

	assert(own && world > 0);
	return delete_of_job(store, job, dir, run, &spare, err);
}

/* ---- settling ---- */

struct settling {
	struct sk_store *store;
	const char *job;
	uint64_t step;
	const struct sk_store_run *run;
	struct sk_err *err;
};

/* Deletes @name if it is the step's and of an older run. */
static int settle_entry(void *ctx, int job_fd, const char *name)
{
	struct settling *s = ctx;
	const struct sk_spare spare = { .job = s->job };
	struct sk_store_run run;
	struct sk_step_name step;
	int fd, r;

	if (!sk_step_name_parse(name, &step) || !step.displaced ||
	    step.step != s->step)
		return 0;
	fd = sk_not_stale(sk_dir_open(s->store->os, job_fd, name));
	if (fd < 0)
		return sk_is_gone(fd) ? 0 :
			sk_err_errno(s->err, fd, "cannot open \"%s\"", name);
	r = sk_not_stale(sk_step_run(s->store, fd, &run));
	s->store->os->close(s->store->os, fd);
	if (r < 0)
		return sk_err_errno(s->err, r, "cannot tell the run of \"%s\"",
				    name);
	if (run.number >= s->run->number)
		return 0;
	r = sk_step_delete(s->store, job_fd, name, &run, &spare, s->err);
	/* Retention has it later, where ranks may want it now. */
	return r == -ENOENT || r == -ESTALE || r == -EBUSY || r == -EAGAIN ?
	       0 : r;
}

/* Whether the step's name still stands for @run: a newer one, which is not
 * whole yet, may have moved it aside. */
static int still_has(struct sk_store *store, int job_fd, uint64_t step,
		     const struct sk_store_run *run, struct sk_err *err)
{
	char name[SK_STORE_NAME_MAX];
	int fd;

	sk_step_name_format(name, step);
	fd = sk_step_open_of(store, job_fd, name, run, err);
	if (fd < 0)
		return sk_is_gone(fd) ? 0 : fd;
	store->os->close(store->os, fd);
	return 1;
}

int sk_store_settle(struct sk_store *store, const char *job, uint64_t step,
		    const struct sk_store_run *run, struct sk_err *err)
{
	struct sk_err why = { "" };
	struct settling s = {
		.store = store, .job = job, .step = step, .run = run,
		.err = &why,
	};
	int fd, r;

	r = sk_store_find(store);
	if (r < 0)
		return r == -ENOENT ? 0 :
		       sk_store_lost(store, r, "cannot find the store", err);
	fd = sk_store_job_dir(store, job, err);
	if (fd < 0)
		return fd == -ENOENT ? 0 : fd;
	r = still_has(store, fd, step, run, err);
	if (r > 0) {
		r = sk_dir_each(store->os, fd, settle_entry, &s);
		if (r < 0 && !why.text[0])
			sk_err_errno(&why, r, "cannot list the steps of job "
				     "\"%s\"", job);
		if (r < 0 && err)
			*err = why;
	}
	store->os->close(store->os, fd);
	return r;
}
