/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/vfs.h>

#include "store-private.h"

#define SECOND_NS UINT64_C(1000000000)

/* Makes what is missing of @path, each level durable in the one above. */
static int make_path(const struct sk_os *os, const char *path)
{
	_cleanup_free_ char *parent = strdup(path);
	char *slash;
	int fd, r;

	if (!parent)
		return -ENOMEM;
	slash = strrchr(parent, '/');
	if (!slash)
		strcpy(parent, ".");
	else
		slash[slash == parent] = 0;
	fd = os->openat(os, AT_FDCWD, parent, O_RDONLY | O_DIRECTORY |
			O_CLOEXEC, 0);
	if (fd == -ENOENT && slash && slash != parent) {
		r = make_path(os, parent);
		if (r < 0)
			return r;
		fd = os->openat(os, AT_FDCWD, parent, O_RDONLY | O_DIRECTORY |
				O_CLOEXEC, 0);
	}
	if (fd < 0)
		return fd;
	r = os->mkdirat(os, AT_FDCWD, path, 0700);
	if (r == 0 || r == -EEXIST)
		r = sk_dir_sync(os, fd);
	os->close(os, fd);
	return r;
}

static int open_root(const struct sk_os *os, const char *path)
{
	int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
	int fd, r;

	fd = os->openat(os, AT_FDCWD, path, flags, 0);
	if (fd != -ENOENT)
		return fd;
	r = make_path(os, path);
	if (r < 0)
		return r;
	return os->openat(os, AT_FDCWD, path, flags, 0);
}

struct cleaning {
	const struct sk_os *os;
	unsigned stale_s;
	int depth;		/* 0: the store, 1: a job, 2: a step */
};

/* Old enough that its agent must be dead. A clock that went back says no. */
static bool is_stale(const struct cleaning *c, int dirfd, const char *name)
{
	uint64_t now = c->os->wall_ns(c->os);
	uint64_t then;
	struct stat st;
	int fd, r;

	fd = c->os->openat(c->os, dirfd, name, O_PATH | O_NOFOLLOW |
			   O_CLOEXEC, 0);
	if (fd < 0)
		return false;
	r = c->os->fstat(c->os, fd, &st);
	c->os->close(c->os, fd);
	if (r < 0)
		return false;
	/* The change time: renaming to ".deleted-" counts as life. */
	then = (uint64_t)st.st_ctim.tv_sec * SECOND_NS +
	       (uint64_t)st.st_ctim.tv_nsec;
	return now > then && now - then > c->stale_s * SECOND_NS;
}

static int clean_entry(void *ctx, int dirfd, const char *name);

/* Whether left-over names may stand in this directory. */
static bool is_cleaned(const struct cleaning *c, const char *name)
{
	struct sk_step_name step;

	if (c->depth == 0)
		return sk_job_check(name, NULL) == 0;
	return c->depth == 1 && sk_step_name_parse(name, &step);
}

/* What cannot be cleaned is in nobody's way: no error is one here. */
static int clean_entry(void *ctx, int dirfd, const char *name)
{
	const struct cleaning *c = ctx;
	struct cleaning down = *c;
	int fd;

	if (c->depth > 0 && sk_leftover_name(name)) {
		if (is_stale(c, dirfd, name))
			(void)sk_dir_remove(c->os, dirfd, name);
		return 0;
	}
	if (!is_cleaned(c, name))
		return 0;
	fd = sk_dir_open(c->os, dirfd, name);
	if (fd < 0)
		return 0;
	down.depth++;
	(void)sk_dir_each(c->os, fd, clean_entry, &down);
	c->os->close(c->os, fd);
	return 0;
}

static int is_volatile(int fd)
{
	struct statfs sfs;

	if (fstatfs(fd, &sfs) < 0)
		return 0;
	return sfs.f_type == TMPFS_MAGIC || sfs.f_type == RAMFS_MAGIC;
}

/* A copy without slashes at its end. */
static char *trimmed(const char *path)
{
	size_t n = strlen(path);

	while (n > 1 && path[n - 1] == '/')
		n--;
	return strndup(path, n);
}

int sk_store_open(const struct sk_os *os, const char *path, unsigned stale_s,
		  struct sk_store **ret_store, int *ret_volatile,
		  struct sk_err *err)
{
	struct sk_store *store __attribute__((cleanup(sk_store_closep))) = NULL;
	struct cleaning cleaning = { .os = os, .stale_s = stale_s };

	if (!*path)
		return sk_err_set(err, -EINVAL, "the path of the store is "
				  "empty");
	store = calloc(1, sizeof(*store));
	if (!store)
		return sk_err_errno(err, -ENOMEM, "cannot open a store");
	store->os = os;
	store->fd = -1;
	store->path = trimmed(path);
	if (!store->path)
		return sk_err_errno(err, -ENOMEM, "cannot open a store");
	store->fd = open_root(os, store->path);
	if (store->fd < 0)
		return sk_err_errno(err, store->fd, "cannot open or make the "
				    "store \"%s\"", path);
	(void)sk_dir_each(os, store->fd, clean_entry, &cleaning);
	if (ret_volatile)
		*ret_volatile = is_volatile(store->fd);
	*ret_store = sk_take_ptr(store);
	return 0;
}

struct sk_store *sk_store_close(struct sk_store *store)
{
	if (!store)
		return NULL;
	if (store->fd >= 0)
		store->os->close(store->os, store->fd);
	free(store->path);
	free(store);
	return NULL;
}

const char *sk_store_path(const struct sk_store *store)
{
	return store->path;
}

int sk_store_job_dir(struct sk_store *store, const char *job,
		     struct sk_err *err)
{
	int fd, r;

	r = sk_job_check(job, err);
	if (r < 0)
		return r;
	fd = sk_dir_open(store->os, store->fd, job);
	if (fd < 0)
		return sk_err_errno(err, fd, "cannot open job \"%s\" of the "
				    "store \"%s\"", job, store->path);
	return fd;
}

int sk_store_make_job_dir(struct sk_store *store, const char *job,
			  struct sk_err *err)
{
	int r;

	r = sk_job_check(job, err);
	if (r < 0)
		return r;
	r = store->os->mkdirat(store->os, store->fd, job, 0700);
	/* Another agent may have made it and not come to this yet. */
	if (r == 0 || r == -EEXIST)
		r = sk_dir_sync(store->os, store->fd);
	if (r < 0)
		return sk_err_errno(err, r, "cannot make job \"%s\" in the "
				    "store \"%s\"", job, store->path);
	return sk_store_job_dir(store, job, err);
}

int sk_store_owner(struct sk_store *store, const char *job, uid_t *ret_uid,
		   struct sk_err *err)
{
	char text[32];
	uint64_t uid;
	int fd, r;

	fd = sk_store_job_dir(store, job, err);
	if (fd < 0)
		return fd;
	r = sk_dir_read_text(store->os, fd, SK_OWNER_FILE, text, sizeof(text));
	store->os->close(store->os, fd);
	/* (uid_t)-1 means "nobody said" to the system. */
	if (r == 0 && (!sk_decimal_parse(text, &uid) || uid >= (uid_t)-1))
		r = -EBADMSG;
	if (r == -EBADMSG)
		return sk_err_set(err, r, "the file \"%s\" of job \"%s\" does "
				  "not hold a user's number", SK_OWNER_FILE,
				  job);
	if (r < 0)
		return sk_err_errno(err, r, "cannot read the owner of job "
				    "\"%s\"", job);
	*ret_uid = (uid_t)uid;
	return 0;
}

int sk_store_set_owner(struct sk_store *store, const char *job, uid_t uid,
		       struct sk_err *err)
{
	char text[32];
	int fd, r;

	fd = sk_store_make_job_dir(store, job, err);
	if (fd < 0)
		return fd;
	(void)snprintf(text, sizeof(text), "%" PRIu32 "\n", (uint32_t)uid);
	r = sk_dir_write_text(store->os, fd, SK_OWNER_FILE, text, err);
	store->os->close(store->os, fd);
	if (r < 0)
		return sk_err_prefix(err, r, "the owner of job \"%s\"", job);
	return 0;
}
