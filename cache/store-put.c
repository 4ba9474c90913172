/* SPDX-License-Identifier: Apache-2.0 */
/* Store, the writing of one image: the order of operations. */
#include <inttypes.h>
#include <string.h>

#include "store-private.h"

static int check_put(const struct sk_store_put *put, struct sk_err *err)
{
	int r = sk_job_check(put->job, err);

	if (r < 0)
		return r;
	if (put->rank < 0 || put->rank >= put->world)
		return sk_err_set(err, -EINVAL, "rank %" PRId32 " is not one "
				  "of a world of %" PRId32, put->rank,
				  put->world);
	if (!put->run)
		return sk_err_set(err, -EINVAL, "rank %" PRId32 " of job "
				  "\"%s\" has no run number", put->rank,
				  put->job);
	return 0;
}

/* File, then name, then directory: what has the name is whole. */
static int put_file(struct sk_store *store, struct sk_io *io, int fd,
		    const struct sk_store_put *put, struct sk_err *err)
{
	char name[SK_STORE_NAME_MAX], temporary[SK_STORE_NAME_MAX];
	const struct sk_write w = {
		.dirfd = fd, .name = temporary,
		.head = put->head, .head_bytes = put->head_bytes,
		.data = put->data, .bytes = put->bytes,
		.max_rate = put->max_rate,
		.progress = put->progress, .ctx = put->ctx,
	};
	int r;

	sk_image_name_format(name, put->rank, put->world);
	r = sk_temporary_name(store->os, name, temporary, err);
	if (r == 0)
		r = sk_io_write_file(io, &w, err);
	if (r < 0)
		return r;
	r = store->os->renameat(store->os, fd, temporary, fd, name, 0);
	if (r < 0) {
		(void)store->os->unlinkat(store->os, fd, temporary, 0);
		return sk_err_errno(err, r, "cannot rename \"%s\" to \"%s\"",
				    temporary, name);
	}
	r = sk_dir_sync(store->os, fd);
	if (r < 0)
		return sk_err_errno(err, r, "cannot make the name of \"%s\" "
				    "durable", name);
	return 0;
}

/* A newer run may have moved the directory while this was writing. */
static int check_place(struct sk_store *store, int job_fd, const char *name,
		       int fd, const struct sk_store_put *put,
		       struct sk_err *err)
{
	int r = sk_dir_is(store->os, job_fd, name, fd);

	if (r < 0)
		return sk_err_errno(err, r, "cannot look at \"%s\" again",
				    name);
	if (r == 0)
		return sk_err_set(err, -ESTALE, "\"%s\" was taken from run %"
				  PRIu64 " while rank %" PRId32 " was written",
				  name, put->run, put->rank);
	return 0;
}

static int put_step(struct sk_store *store, struct sk_io *io, int job_fd,
		    const struct sk_store_put *put, struct sk_err *err)
{
	char name[SK_STORE_NAME_MAX];
	int fd, r;

	fd = sk_step_acquire(store, job_fd, put->step, put->run, err);
	if (fd < 0)
		return fd;
	r = put_file(store, io, fd, put, err);
	sk_step_name_format(name, put->step);
	if (r == 0)
		r = check_place(store, job_fd, name, fd, put, err);
	store->os->close(store->os, fd);
	return r;
}

int sk_store_put_image(struct sk_store *store, struct sk_io *io,
		       const struct sk_store_put *put, struct sk_err *err)
{
	int fd, r;

	r = check_put(put, err);
	if (r < 0)
		return r;
	fd = sk_store_make_job_dir(store, put->job, err);
	if (fd < 0)
		return fd;
	r = put_step(store, io, fd, put, err);
	store->os->close(store->os, fd);
	if (r < 0)
		return sk_err_prefix(err, r, "%s, step %" PRIu64, put->job,
				     put->step);
	return 0;
}
