/* SPDX-License-Identifier: Apache-2.0 */
/* Store, the step directories: whose they are, and how they come and go. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "store-private.h"

#define ACQUIRE_TRIES 64	/* each lost to another agent that won */
#define DISPLACED_MAX 1000u

struct run_search {
	struct sk_store *store;
	uint64_t run;
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
	search->run = stamp.run;
	free(stamp.sums);
	sk_layout_free(layout);
	return 1;
}

int sk_step_run(struct sk_store *store, int fd, uint64_t *ret_run)
{
	struct run_search search = { .store = store };
	char text[32];
	uint64_t run;
	int r;

	r = sk_dir_read_text(store->os, fd, SK_RUN_FILE, text, sizeof(text));
	if (r == 0 && sk_decimal_parse(text, &run)) {
		*ret_run = run;
		return 0;
	}
	if (r < 0 && r != -EBADMSG && !sk_is_gone(r))
		return r;
	r = sk_dir_each(store->os, fd, run_of_image, &search);
	if (r < 0)
		return r;
	*ret_run = search.run;
	return 0;
}

/* Fills a new directory under its temporary name. */
static int fill_step(struct sk_store *store, int job_fd, const char *temporary,
		     uint64_t run, int *ret_fd, struct sk_err *err)
{
	char text[32];
	int fd, r;

	r = store->os->mkdirat(store->os, job_fd, temporary, 0700);
	if (r < 0)
		return sk_err_errno(err, r, "cannot make the directory \"%s\"",
				    temporary);
	fd = sk_dir_open(store->os, job_fd, temporary);
	if (fd < 0)
		return sk_err_errno(err, fd, "cannot open the directory \"%s\"",
				    temporary);
	(void)snprintf(text, sizeof(text), "%" PRIu64 "\n", run);
	r = sk_dir_write_text(store->os, fd, SK_RUN_FILE, text, err);
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
		       uint64_t run, struct sk_err *err)
{
	char temporary[SK_STORE_NAME_MAX];
	int fd = -1, r;

	r = sk_temporary_name(store->os, name, temporary, err);
	if (r < 0)
		return r;
	r = fill_step(store, job_fd, temporary, run, &fd, err);
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
	return r;
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

	for (unsigned i = 1; i < DISPLACED_MAX && r == -ENOTEMPTY; i++) {
		r = sk_dir_is(store->os, job_fd, name, fd);
		if (r == 0)
			return -EAGAIN;
		sk_step_name_displaced(aside, step, run, i);
		if (r > 0)
			r = store->os->renameat(store->os, job_fd, name,
						job_fd, aside, 0);
		r = r == -EEXIST ? -ENOTEMPTY : r;
	}
	if (r == -ENOENT)
		return -EAGAIN;
	if (r < 0)
		return sk_err_errno(err, r, "cannot move \"%s\" of run %"
				    PRIu64 " to \"%s\"", name, run, aside);
	/* Had another agent moved it and made the new one in that instant?
	 * Give that one its name back. Where there is one of that name again,
	 * the agent that writes into ours sees that it lost its name. */
	if (sk_dir_is(store->os, job_fd, aside, fd) == 0)
		(void)store->os->renameat(store->os, job_fd, aside, job_fd,
					  name, 0);
	return -EAGAIN;
}

/* Judges the directory that stands there: its descriptor, -ESTALE, or
 * -EAGAIN after it was moved away. */
static int claim_step(struct sk_store *store, int job_fd, const char *name,
		      uint64_t step, uint64_t run, struct sk_err *err)
{
	uint64_t theirs;
	int fd, r;

	fd = sk_dir_open(store->os, job_fd, name);
	if (fd < 0)
		return sk_err_errno(err, fd, "cannot open the directory \"%s\"",
				    name);
	r = sk_step_run(store, fd, &theirs);
	if (r < 0)
		sk_err_errno(err, r, "cannot tell the run of \"%s\"", name);
	else if (theirs > run)
		r = sk_err_set(err, -ESTALE, "\"%s\" belongs to run %" PRIu64
			       ", which is newer than run %" PRIu64, name,
			       theirs, run);
	else if (theirs < run)
		r = displace_step(store, job_fd, name, step, fd, theirs, err);
	if (r == 0)
		return fd;
	store->os->close(store->os, fd);
	return r;
}

int sk_step_acquire(struct sk_store *store, int job_fd, uint64_t step,
		    uint64_t run, struct sk_err *err)
{
	char name[SK_STORE_NAME_MAX];
	int fd = -EAGAIN, r;

	sk_step_name_format(name, step);
	for (int i = 0; i < ACQUIRE_TRIES; i++) {
		fd = claim_step(store, job_fd, name, step, run, err);
		if (fd == -ENOENT)
			fd = create_step(store, job_fd, name, run, err);
		if (fd != -ENOENT && fd != -EAGAIN && fd != -ENOTEMPTY)
			break;
	}
	if (fd == -EAGAIN || fd == -ENOTEMPTY || fd == -ENOENT)
		return sk_err_set(err, -EAGAIN, "\"%s\" changed hands %d times "
				  "while run %" PRIu64 " asked for it", name,
				  ACQUIRE_TRIES, run);
	if (fd < 0)
		return fd;
	/* Also where another agent made it: it may not have come so far. */
	r = sk_dir_sync(store->os, job_fd);
	if (r == 0)
		return fd;
	store->os->close(store->os, fd);
	return sk_err_errno(err, r, "cannot make the directory \"%s\" durable",
			    name);
}

int sk_store_delete(struct sk_store *store, const char *job, const char *dir,
		    struct sk_err *err)
{
	char deleted[SK_STORE_NAME_MAX];
	struct sk_step_name step;
	int fd, r;

	if (!sk_step_name_parse(dir, &step))
		return sk_err_set(err, -EINVAL, "\"%s\" is not the name of a "
				  "step directory", dir);
	r = sk_deleted_name(store->os, deleted, err);
	if (r < 0)
		return r;
	fd = sk_store_job_dir(store, job, err);
	if (fd < 0)
		return fd;
	r = store->os->renameat(store->os, fd, dir, fd, deleted, 0);
	/* Only then: a half removed step must not come back by a power loss
	 * under its own name. */
	if (r == 0)
		r = sk_dir_sync(store->os, fd);
	if (r == 0)
		r = sk_dir_remove(store->os, fd, deleted);
	store->os->close(store->os, fd);
	if (r < 0)
		return sk_err_errno(err, r, "cannot delete \"%s\" of job "
				    "\"%s\"", dir, job);
	return 0;
}

struct settling {
	struct sk_store *store;
	const char *job;
	uint64_t step, run;
	struct sk_err *err;
};

/* Deletes @name if it is the step's and of an older run. */
static int settle_entry(void *ctx, int job_fd, const char *name)
{
	struct settling *s = ctx;
	struct sk_step_name step;
	uint64_t run;
	int fd, r;

	if (!sk_step_name_parse(name, &step) || !step.displaced ||
	    step.step != s->step)
		return 0;
	fd = sk_dir_open(s->store->os, job_fd, name);
	if (fd < 0)
		return sk_is_gone(fd) ? 0 :
			sk_err_errno(s->err, fd, "cannot open \"%s\"", name);
	r = sk_step_run(s->store, fd, &run);
	s->store->os->close(s->store->os, fd);
	if (r < 0)
		return sk_err_errno(s->err, r, "cannot tell the run of \"%s\"",
				    name);
	if (run >= s->run)
		return 0;
	r = sk_store_delete(s->store, s->job, name, s->err);
	return r == -ENOENT ? 0 : r;
}

/* The run that holds the step's name; 0: none does. */
static int settled_run(struct sk_store *store, int job_fd, uint64_t step,
		       uint64_t *ret_run, struct sk_err *err)
{
	char name[SK_STORE_NAME_MAX];
	int fd, r;

	sk_step_name_format(name, step);
	fd = sk_dir_open(store->os, job_fd, name);
	if (sk_is_gone(fd)) {
		*ret_run = 0;
		return 0;
	}
	r = fd < 0 ? fd : sk_step_run(store, fd, ret_run);
	if (fd >= 0)
		store->os->close(store->os, fd);
	if (r < 0)
		return sk_err_errno(err, r, "cannot tell the run of \"%s\"",
				    name);
	return 0;
}

int sk_store_settle(struct sk_store *store, const char *job, uint64_t step,
		    struct sk_err *err)
{
	struct settling s = {
		.store = store, .job = job, .step = step, .err = err,
	};
	int fd, r;

	fd = sk_store_job_dir(store, job, err);
	if (fd < 0)
		return fd == -ENOENT ? 0 : fd;
	r = settled_run(store, fd, step, &s.run, err);
	if (r == 0)
		r = sk_dir_each(store->os, fd, settle_entry, &s);
	store->os->close(store->os, fd);
	return r;
}
