/* SPDX-License-Identifier: Apache-2.0 */
/* Store, the step directories: whose they are, and how they come and go. */
#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "store/private.h"

#define ACQUIRE_TRIES 64	/* each lost to another agent that won */

struct run_search {
	struct sk_store *store;
	struct sk_store_run run;
};

/* The run that one image's header names; 1 ends the walk. */
static int run_of_image(void *ctx, int fd, const char *name)
{
	struct run_search *search = ctx;
	const struct sk_os *os = search->store->os;
	struct sk_layout *layout = NULL;
	struct sk_stamp stamp = { 0 };
	int32_t rank, world;
	int image, r;

	if (!sk_image_name_parse(name, &rank, &world))
		return 0;
	image = os->openat(os, fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK |
			   O_CLOEXEC, 0);
	if (image < 0)
		return sk_is_gone(image) ? 0 : image;
	r = sk_store_read_layout(search->store, image, &layout, &stamp, NULL);
	os->close(os, image);
	if (r == -EBADMSG || r == -ENODATA)
		return 0;	/* not ours, or hurt: another may tell */
	if (r < 0)
		return r;
	search->run = (struct sk_store_run){ stamp.run, stamp.run_id };
	free(stamp.sums);
	sk_layout_free(layout);
	return 1;
}

int sk_step_run_file(struct sk_store *store, int fd,
		     struct sk_store_run *ret_run)
{
	char text[SK_RUN_TEXT_MAX + 1];
	int r;

	*ret_run = (struct sk_store_run){ 0 };
	r = sk_not_stale(sk_dir_read_text(store->os, fd, SK_RUN_FILE, text,
					  sizeof(text)));
	if (r == 0)
		(void)sk_run_text_parse(text, ret_run);
	return r == -EBADMSG || sk_is_gone(r) ? 0 : r;
}

int sk_step_run(struct sk_store *store, int fd, struct sk_store_run *ret_run)
{
	struct run_search search = { .store = store };
	int r;

	r = sk_step_run_file(store, fd, &search.run);
	if (r == 0 && !search.run.number)
		r = sk_dir_each(store->os, fd, run_of_image, &search);
	if (r < 0)
		return r;
	*ret_run = search.run;
	return 0;
}

/* Fills a new directory under its temporary name. */
static int fill_step(struct sk_store *store, int job_fd, const char *temporary,
		     const struct sk_store_run *run, mode_t mode, int *ret_fd,
		     struct sk_err *err)
{
	char text[SK_RUN_TEXT_MAX + 1];
	int fd, r;

	r = store->os->mkdirat(store->os, job_fd, temporary, mode);
	if (r < 0)
		return sk_err_errno(err, r, "cannot make the directory \"%s\"",
				    temporary);
	fd = sk_dir_open(store->os, job_fd, temporary);
	if (fd < 0)
		return sk_err_errno(err, fd, "cannot open the directory \"%s\"",
				    temporary);
	sk_run_text_format(text, run);
	strcat(text, "\n");
	r = sk_dir_write_text(store, fd, SK_RUN_FILE, text, err);
	if (r < 0) {
		store->os->close(store->os, fd);
		return r;
	}
	*ret_fd = fd;
	return 0;
}

/*
 * Makes the step's directory of @run. Renaming a directory onto another only
 * works where that one is empty, and ours never are: the loser of a race gets
 * -EEXIST or -ENOTEMPTY.
 */
static int create_step(struct sk_store *store, int job_fd, const char *name,
		       const struct sk_store_run *run, mode_t mode,
		       struct sk_err *err)
{
	char temporary[SK_STORE_NAME_MAX];
	int fd = -1, r;

	assert(run->number);
	sk_temporary_name(store, name, temporary);
	r = fill_step(store, job_fd, temporary, run, mode, &fd, err);
	if (r == 0) {
		r = store->os->renameat(store->os, job_fd, temporary, job_fd,
					name, 0);
		r = r == -EEXIST ? -ENOTEMPTY : r;
		if (r < 0)
			sk_err_errno(err, r, "cannot rename \"%s\" to \"%s\"",
				     temporary, name);
	}
	if (r == 0)
		return fd;
	if (fd >= 0)
		store->os->close(store->os, fd);
	(void)sk_dir_remove(store->os, job_fd, temporary);
	return sk_not_stale(r);
}

/*
 * Moves an older run's directory, open as @fd, out of the way. -EAGAIN: the
 * name stands for something else by now, look again.
 */
static int displace_step(struct sk_store *store, int job_fd, const char *name,
			 uint64_t step, int fd, uint64_t run,
			 struct sk_err *err)
{
	char aside[SK_STORE_NAME_MAX];
	int r = -ENOTEMPTY;

	assert(fd >= 0);
	for (unsigned i = 1; i < SK_DISPLACED_MAX && r == -ENOTEMPTY; i++) {
		r = sk_dir_is(store->os, job_fd, name, fd);
		if (r == 0)
			return -EAGAIN;
		sk_step_name_displaced(aside, step, run, i);
		if (r > 0)
			r = store->os->renameat(store->os, job_fd, name,
						job_fd, aside, 0);
		/* Or something else has that name; or ours, which is told. */
		if (r == -EEXIST || r == -ENOTDIR)
			r = -ENOTEMPTY;
	}
	if (r == -ENOENT)
		return -EAGAIN;
	if (r < 0)
		return sk_not_stale(sk_err_errno(err, r, "cannot move \"%s\" "
						 "of run %" PRIu64 " to \"%s\"",
						 name, run, aside));
	/* Had another agent moved it and made the new one in that instant?
	 * Give that one its name back. Where there is one of that name again,
	 * the agent that writes into ours sees that it lost its name. */
	if (sk_dir_is(store->os, job_fd, aside, fd) == 0)
		(void)store->os->renameat(store->os, job_fd, aside, job_fd,
					  name, 0);
	return -EAGAIN;
}

/* Whether @run may have the step that @theirs has: 0 has it, 1 once that is
 * out of the way, -ESTALE. */
static int judge(const char *name, const struct sk_store_run *theirs,
		 const struct sk_store_run *run, struct sk_err *err)
{
	assert(run->number && run->id);
	if (theirs->number > run->number)
		return sk_err_set(err, -ESTALE, "\"%s\" belongs to run %" PRIu64
				  ", which is newer than run %" PRIu64, name,
				  theirs->number, run->number);
	if (theirs->number == run->number && theirs->id != run->id)
		return sk_err_set(err, -ESTALE, "\"%s\" belongs to another run "
				  "%" PRIu64 " (%016" PRIx64 ", this one is "
				  "%016" PRIx64 "): two jobs of one name, or "
				  "two agents on one store?", name,
				  run->number, theirs->id, run->id);
	return theirs->number < run->number;
}

/* A stranger of the number that was ended before it wrote anything, and that
 * no one will know of, has nothing to lose: -EAGAIN once it is gone. */
static int judge_empty(struct sk_store *store, int job_fd, const char *name,
		       int fd, const struct sk_store_run *theirs,
		       const struct sk_store_run *run, struct sk_err *err)
{
	int r;

	if (theirs->number != run->number)
		return -ESTALE;
	/* What it was writing when it was ended is nothing either. */
	(void)sk_store_sweep(store, SK_STORE_DEAD_ONLY);
	r = sk_step_delete_empty(store, job_fd, name, fd, theirs, err);
	if (r == -ENOTEMPTY)
		return sk_dir_is(store->os, job_fd, name, fd) == 0 ? -EAGAIN :
								     -ESTALE;
	return r == 0 ? -EAGAIN : sk_not_stale(r);
}

/* 1 where anything bears a name of ours; else the walk goes on. */
static int find_ours(void *ctx, int fd, const char *name)
{
	bool *others = ctx;
	struct sk_leftover left;
	int32_t rank, world;

	(void)fd;
	*others = true;
	return strcmp(name, SK_RUN_FILE) == 0 ||
	       strcmp(name, SK_PINNED_FILE) == 0 ||
	       sk_image_name_parse(name, &rank, &world) ||
	       sk_leftover_name(name, &left);
}

/* What says no run may be ours and damaged; what has nothing of ours in it,
 * and something, is somebody's. */
static int judge_foreign(struct sk_store *store, const char *name, int fd,
			 struct sk_err *err)
{
	bool others = false;
	int r = sk_dir_each(store->os, fd, find_ours, &others);

	if (r < 0)
		return sk_not_stale(sk_err_errno(err, r, "cannot tell whose "
						 "\"%s\" is", name));
	if (r == 0 && others)
		return sk_err_set(err, -EEXIST, "\"%s\" stands there and holds "
				  "nothing of Shardkeep's: move it away", name);
	return 0;
}

/* Has the directory that stands there: its descriptor, -ESTALE, or -EAGAIN
 * after it was moved away. */
static int claim_step(struct sk_store *store, int job_fd, const char *name,
		      uint64_t step, const struct sk_store_run *run,
		      bool *ret_displaced, struct sk_err *err)
{
	struct sk_store_run theirs;
	int fd, r;

	fd = sk_dir_open(store->os, job_fd, name);
	if (fd < 0)
		return sk_not_stale(sk_err_errno(err, fd, "cannot open the "
						 "directory \"%s\"", name));
	r = sk_not_stale(sk_step_run(store, fd, &theirs));
	if (r < 0)
		sk_err_errno(err, r, "cannot tell the run of \"%s\"", name);
	else if (!theirs.number)
		r = judge_foreign(store, name, fd, err);
	if (r == 0)
		r = judge(name, &theirs, run, err);
	if (r == -ESTALE)
		r = judge_empty(store, job_fd, name, fd, &theirs, run, err);
	if (r > 0) {
		*ret_displaced = true;
		r = displace_step(store, job_fd, name, step, fd,
				  theirs.number, err);
	}
	if (r == 0)
		return fd;
	store->os->close(store->os, fd);
	return r;
}

int sk_step_acquire(struct sk_store *store, int job_fd, uint64_t step,
		    const struct sk_store_run *run, mode_t mode,
		    bool *ret_displaced, struct sk_err *err)
{
	char name[SK_STORE_NAME_MAX];
	bool displaced = false;
	int fd = -EAGAIN, r;

	assert(run->number && run->id);
	sk_step_name_format(name, step);
	for (int i = 0; i < ACQUIRE_TRIES; i++) {
		fd = claim_step(store, job_fd, name, step, run, &displaced,
				err);
		if (fd == -ENOENT)
			fd = create_step(store, job_fd, name, run, mode, err);
		if (fd != -ENOENT && fd != -EAGAIN && fd != -ENOTEMPTY)
			break;
	}
	if (displaced && ret_displaced)
		*ret_displaced = true;
	if (fd == -EAGAIN || fd == -ENOTEMPTY || fd == -ENOENT)
		return sk_err_set(err, -EAGAIN, "\"%s\" changed hands %d times "
				  "while run %" PRIu64 " asked for it", name,
				  ACQUIRE_TRIES, run->number);
	if (fd < 0)
		return fd;
	/* Also where another agent made it: it may not have come so far. */
	r = sk_dir_sync(store->os, job_fd);
	if (r == 0)
		return fd;
	store->os->close(store->os, fd);
	return sk_not_stale(sk_err_errno(err, r, "cannot make the directory "
					 "\"%s\" durable", name));
}
