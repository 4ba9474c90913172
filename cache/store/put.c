/* SPDX-License-Identifier: Apache-2.0 */
/* Store, the writing of one image: the order of operations. */
#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "store/private.h"

static int check_put(const struct sk_store_put *put, struct sk_err *err)
{
	int r = sk_job_check(put->job, err);

	if (r < 0)
		return r;
	if (put->rank < 0 || put->rank >= put->world)
		return sk_err_set(err, -EINVAL, "rank %" PRId32 " is not one "
				  "of a world of %" PRId32, put->rank,
				  put->world);
	if (!put->run.number || put->run.number > SK_RUN_MAX || !put->run.id)
		return sk_err_set(err, -EINVAL, "rank %" PRId32 " of job "
				  "\"%s\" has no run: number %" PRIu64 ", id %"
				  PRIx64, put->rank, put->job,
				  put->run.number, put->run.id);
	return 0;
}

/* Whether the open file has the header that is to be written: its checksums
 * are those of the same bytes. */
static int has_head(struct sk_store *store, int fd,
		    const struct sk_store_put *put, struct sk_err *err)
{
	_cleanup_free_ void *header = NULL;
	struct sk_file_id file;
	uint64_t size;
	int r;

	assert(put->head || !put->head_bytes);
	r = sk_store_read_header(store, fd, &header, &size, &file, err);
	if (r < 0)
		return r;
	return size == put->head_bytes && !memcmp(header, put->head, size);
}

/*
 * May what bears the name be replaced? Yes, by the same content, which mends
 * it, and where it is not whole. A whole image of other content stays.
 */
static int check_replaced(struct sk_store *store, int dirfd, const char *name,
			  const struct sk_store_put *put, struct sk_err *err)
{
	const struct sk_os *os = store->os;
	struct sk_layout *layout = NULL;
	int fd, r;

	fd = os->openat(os, dirfd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK |
			O_CLOEXEC, 0);
	if (fd < 0)
		return sk_is_gone(fd) ? 0 : sk_err_errno(err, fd, "cannot "
							 "open \"%s\"", name);
	r = has_head(store, fd, put, err);
	if (r == 0)
		r = sk_store_read_layout(store, fd, &layout, NULL, err) ? : 2;
	os->close(os, fd);
	sk_layout_free(layout);
	if (r == 1 || r == -EBADMSG || r == -ENODATA)
		return 0;
	/* One error in reading says nothing of what is there. */
	if (r < 0)
		return sk_err_prefix(err, sk_not_stale(r), "whether \"%s\", "
				     "which stands there already, is whole",
				     name);
	return sk_err_set(err, -ESTALE, "\"%s\" of run %" PRIu64 " stands "
			  "there already with other content; it is not "
			  "replaced", name, put->run.number);
}

/* Gives the file its name, over nothing but what may be replaced. */
static int name_file(struct sk_store *store, int fd, const char *temporary,
		     const char *name, const struct sk_store_put *put,
		     struct sk_err *err)
{
	const struct sk_os *os = store->os;
	int r;

	assert(fd >= 0);
	r = os->renameat(os, fd, temporary, fd, name, RENAME_NOREPLACE);
	/* There are filesystems that cannot tell. */
	if (r == -EEXIST || r == -EINVAL || r == -ENOSYS) {
		r = check_replaced(store, fd, name, put, err);
		if (r < 0)
			return r;
		r = os->renameat(os, fd, temporary, fd, name, 0);
	}
	if (r < 0)
		return sk_not_stale(sk_err_errno(err, r, "cannot rename \"%s\" "
						 "to \"%s\"", temporary,
						 name));
	return 0;
}

/* What file it has become, for who asks; its name changes its change time. */
static int tell_file(struct sk_store *store, int fd, const char *name,
		     const struct sk_store_put *put, struct sk_err *err)
{
	struct stat st;
	int r = store->os->fstatat(store->os, fd, name, AT_SYMLINK_NOFOLLOW,
				   &st);

	if (r < 0)
		return sk_not_stale(sk_err_errno(err, r, "cannot look at "
						 "\"%s\"", name));
	if (put->ret_file)
		*put->ret_file = sk_file_id_of(&st);
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
		.progress = put->progress, .see = put->see,
		.ctx = put->ctx,
		.owner = put->owner, .ret_owned = put->ret_owned,
	};
	int r;

	sk_image_name_format(name, put->rank, put->world);
	sk_temporary_name(store, name, temporary);
	r = sk_io_write_file(io, &w, err);
	if (r < 0)
		return sk_not_stale(r);
	r = name_file(store, fd, temporary, name, put, err);
	if (r < 0) {
		(void)store->os->unlinkat(store->os, fd, temporary, 0);
		return r;
	}
	r = sk_dir_sync(store->os, fd);
	if (r < 0) {
		/* What has a name is durable to who looks. */
		(void)store->os->unlinkat(store->os, fd, name, 0);
		return sk_not_stale(sk_err_errno(err, r, "cannot make the name "
						 "of \"%s\" durable", name));
	}
	return tell_file(store, fd, name, put, err);
}

/* The directory may have been moved, or removed while it was empty, by those
 * who have its name now: what was written there is not the step's. */
static int check_place(struct sk_store *store, int job_fd, int fd,
		       const struct sk_store_put *put, struct sk_err *err)
{
	char name[SK_STORE_NAME_MAX];
	int r;

	sk_step_name_format(name, put->step);
	r = sk_dir_is(store->os, job_fd, name, fd);
	if (r < 0)
		return sk_not_stale(sk_err_errno(err, r, "cannot look at "
						 "\"%s\" again", name));
	if (r == 0)
		return sk_err_set(err, -EAGAIN, "\"%s\" was taken from run %"
				  PRIu64 " while rank %" PRId32 " was written",
				  name, put->run.number, put->rank);
	return 0;
}

static int put_step(struct sk_store *store, struct sk_io *io, int job_fd,
		    const struct sk_store_put *put, struct sk_err *err)
{
	int fd, r;

	fd = sk_step_acquire(store, job_fd, put->step, &put->run,
			     put->owner ? SK_DIR_LISTED : SK_DIR_OURS,
			     put->ret_displaced, err);
	if (fd < 0)
		return fd;
	r = put_file(store, io, fd, put, err);
	/* In one that was removed there is nothing, and nothing can be made. */
	if (r == 0)
		r = check_place(store, job_fd, fd, put, err);
	else if (sk_is_gone(r) &&
		 check_place(store, job_fd, fd, put, err) == -EAGAIN)
		r = -EAGAIN;
	store->os->close(store->os, fd);
	return r;
}

/* It may have been moved away, with the image in it. */
static int check_store(struct sk_store *store, struct sk_err *err)
{
	int r = sk_store_find(store);

	return r < 0 ? sk_store_lost(store, r, "cannot find again the store",
				     err) : 0;
}

int sk_store_put_image(struct sk_store *store, struct sk_io *io,
		       const struct sk_store_put *put, struct sk_err *err)
{
	int fd, r;

	r = check_put(put, err);
	if (r < 0)
		return r;
	fd = sk_store_make_job_dir(store, put->job, put->owner ?
				   SK_DIR_ENTERED : SK_DIR_OURS, err);
	if (fd < 0)
		return sk_not_stale(fd);
	r = put_step(store, io, fd, put, err);
	store->os->close(store->os, fd);
	if (r == 0)
		r = check_store(store, err);
	if (r < 0)
		return sk_err_prefix(err, r, "%s, step %" PRIu64, put->job,
				     put->step);
	return 0;
}
