/* SPDX-License-Identifier: Apache-2.0 */
/* Store, the directories: walked, synced, removed; small files in them. */
#include <assert.h>
#include <fcntl.h>
#include <stdio.h>	/* RENAME_NOREPLACE */
#include <string.h>

#include "store/private.h"

#define RECORDS_BYTES 8192u	/* on the stack of each level */
#define DEPTH_MAX 8	/* of what is removed; ours are two deep */
#define REMOVE_TRIES 3	/* while others still write into it */

int sk_dir_open(const struct sk_os *os, int dirfd, const char *name)
{
	return os->openat(os, dirfd, name, O_RDONLY | O_DIRECTORY |
			  O_NOFOLLOW | O_CLOEXEC, 0);
}

int sk_dir_sync(const struct sk_os *os, int fd)
{
	int r = os->fsync(os, fd);

	/* There are filesystems that cannot sync a directory, and need not. */
	return r == -EINVAL ? 0 : r;
}

int sk_dir_is(const struct sk_os *os, int dirfd, const char *name, int fd)
{
	struct stat a, b;
	int r, other;

	other = sk_dir_open(os, dirfd, name);
	if (other < 0)
		return sk_is_gone(other) ? 0 : other;
	r = os->fstat(os, other, &a);
	os->close(os, other);
	if (r == 0)
		r = os->fstat(os, fd, &b);
	if (r < 0)
		return r;
	return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static bool is_dot(const char *name)
{
	return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/* Calls @fn for the @bytes of records that the system gave. */
static int each_record(const char *records, size_t bytes, int fd,
		       int (*fn)(void *ctx, int fd,
				 const struct dirent64 *entry),
		       void *ctx)
{
	int r = 0;

	for (size_t at = 0; at < bytes && r == 0;) {
		const struct dirent64 *entry = (const void *)(records + at);

		assert(entry->d_reclen && entry->d_reclen <= bytes - at);
		at += entry->d_reclen;
		if (!is_dot(entry->d_name))
			r = fn(ctx, fd, entry);
	}
	return r;
}

int sk_dir_entries(const struct sk_os *os, int fd,
		   int (*fn)(void *ctx, int fd, const struct dirent64 *entry),
		   void *ctx)
{
	char records[RECORDS_BYTES]
		__attribute__((aligned(_Alignof(struct dirent64))));
	ssize_t n;
	int own, r = 0;

	/* A descriptor of its own: @fd keeps its place for walks that other
	 * threads make. */
	own = sk_dir_open(os, fd, ".");
	if (own < 0)
		return own;
	do {
		n = os->getdents(os, own, records, sizeof(records));
		if (n > 0)
			r = each_record(records, (size_t)n, fd, fn, ctx);
	} while (n > 0 && r == 0);
	os->close(os, own);
	return n < 0 ? (int)n : r;
}

struct by_name {
	int (*fn)(void *ctx, int fd, const char *name);
	void *ctx;
};

static int call_by_name(void *ctx, int fd, const struct dirent64 *entry)
{
	const struct by_name *by = ctx;

	return by->fn(by->ctx, fd, entry->d_name);
}

int sk_dir_each(const struct sk_os *os, int fd,
		int (*fn)(void *ctx, int fd, const char *name), void *ctx)
{
	struct by_name by = { fn, ctx };

	return sk_dir_entries(os, fd, call_by_name, &by);
}

struct removal {
	const struct sk_os *os;
	int depth;
};

static int remove_entry(void *ctx, int dirfd, const char *name);

static int remove_dir(const struct removal *up, int dirfd, const char *name)
{
	struct removal down = { .os = up->os, .depth = up->depth + 1 };
	int fd, r = -ENOTEMPTY;

	if (down.depth > DEPTH_MAX)
		return -ELOOP;
	fd = sk_dir_open(up->os, dirfd, name);
	if (fd < 0)
		return fd;
	for (int i = 0; i < REMOVE_TRIES && r == -ENOTEMPTY; i++) {
		r = sk_dir_each(up->os, fd, remove_entry, &down);
		if (r == 0)
			r = up->os->unlinkat(up->os, dirfd, name,
					     AT_REMOVEDIR);
	}
	up->os->close(up->os, fd);
	return r;
}

static int remove_entry(void *ctx, int dirfd, const char *name)
{
	const struct removal *removal = ctx;
	int r;

	r = removal->os->unlinkat(removal->os, dirfd, name, 0);
	if (r == -EISDIR || r == -EPERM)
		r = remove_dir(removal, dirfd, name);
	return r == -ENOENT ? 0 : r;
}

int sk_dir_remove(const struct sk_os *os, int dirfd, const char *name)
{
	struct removal removal = { .os = os };

	return remove_entry(&removal, dirfd, name);
}

/* What is no file holds no text. */
static int no_text(int r)
{
	return r == -EISDIR || r == -ESPIPE || r == -ENXIO ? -EBADMSG : r;
}

int sk_dir_read_text(const struct sk_os *os, int dirfd, const char *name,
		     char *buf, size_t size)
{
	size_t done = 0;
	ssize_t n;
	int fd;

	fd = os->openat(os, dirfd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK |
			O_CLOEXEC, 0);
	if (fd < 0)
		return no_text(fd);
	do {
		n = os->pread(os, fd, buf + done, size - 1 - done, done);
		if (n > 0)
			done += (size_t)n;
	} while (n > 0 && done < size - 1);
	os->close(os, fd);
	if (n < 0)
		return no_text((int)n);
	buf[done] = 0;
	/* A line of text without its end is a part of a line. */
	if (!done || buf[done - 1] != '\n' || strlen(buf) != done)
		return -EBADMSG;
	buf[done - 1] = 0;
	return 0;
}

int sk_file_write(const struct sk_os *os, int fd, const char *data,
		  size_t bytes)
{
	size_t done = 0;
	ssize_t n;

	while (done < bytes) {
		n = os->pwrite(os, fd, data + done, bytes - done, done);
		if (n <= 0)
			return n < 0 ? (int)n : -EIO;
		done += (size_t)n;
	}
	return 0;
}

/* There are filesystems that cannot tell whether the name is taken: there the
 * last one stands. */
static int name_new(const struct sk_os *os, int dirfd, const char *temporary,
		    const char *name)
{
	int r = os->renameat(os, dirfd, temporary, dirfd, name,
			     RENAME_NOREPLACE);

	if (r == -EINVAL || r == -ENOSYS)
		r = os->renameat(os, dirfd, temporary, dirfd, name, 0);
	return r;
}

int sk_file_make(const struct sk_os *os, int dirfd, const char *temporary,
		 const char *name, const void *data, size_t bytes,
		 unsigned flags)
{
	int fd, r, r_close;

	fd = os->openat(os, dirfd, temporary, O_WRONLY | O_CREAT | O_EXCL |
			O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return fd;
	r = sk_file_write(os, fd, data, bytes);
	if (r == 0 && flags & SK_FILE_SYNC)
		r = os->fsync(os, fd);
	r_close = os->close(os, fd);
	if (r == 0)
		r = r_close;
	if (r == 0)
		r = flags & SK_FILE_NEW ?
		    name_new(os, dirfd, temporary, name) :
		    os->renameat(os, dirfd, temporary, dirfd, name, 0);
	if (r < 0)
		(void)os->unlinkat(os, dirfd, temporary, 0);
	return r;
}

static int write_text(struct sk_store *store, int dirfd, const char *name,
		      const char *text, unsigned flags, struct sk_err *err)
{
	const struct sk_os *os = store->os;
	char temporary[SK_STORE_NAME_MAX];
	int r;

	sk_temporary_name(store, name, temporary);
	r = sk_file_make(os, dirfd, temporary, name, text, strlen(text),
			 flags | SK_FILE_SYNC);
	if (r < 0)
		return sk_err_errno(err, r, "cannot write \"%s\"", name);
	r = sk_dir_sync(os, dirfd);
	if (r < 0)
		return sk_err_errno(err, r, "cannot make \"%s\" durable",
				    name);
	return 0;
}

int sk_dir_write_text(struct sk_store *store, int dirfd, const char *name,
		      const char *text, struct sk_err *err)
{
	return write_text(store, dirfd, name, text, 0, err);
}

int sk_dir_write_new_text(struct sk_store *store, int dirfd, const char *name,
			  const char *text, struct sk_err *err)
{
	return write_text(store, dirfd, name, text, SK_FILE_NEW, err);
}
