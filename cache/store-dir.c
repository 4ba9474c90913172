/* SPDX-License-Identifier: Apache-2.0 */
/* Store, the directories: walked, synced, removed; small files in them. */
#include <fcntl.h>
#include <string.h>

#include "store-private.h"

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

int sk_dir_each(const struct sk_os *os, int fd,
		int (*fn)(void *ctx, int fd, const char *name), void *ctx)
{
	struct dirent *entry;
	int r = 0;
	DIR *dir;

	/* A descriptor of its own, that closedir closes: @fd keeps its place
	 * for walks that other threads make. */
	r = sk_dir_open(os, fd, ".");
	if (r < 0)
		return r;
	dir = fdopendir(r);
	if (!dir) {
		sk_close_fd(r);
		return -errno;
	}
	for (r = 0; r == 0; r = fn(ctx, fd, entry->d_name)) {
		errno = 0;
		do {
			entry = readdir(dir);
		} while (entry && (strcmp(entry->d_name, ".") == 0 ||
				   strcmp(entry->d_name, "..") == 0));
		if (!entry) {
			r = -errno;
			break;
		}
	}
	closedir(dir);
	return r;
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

int sk_dir_read_text(const struct sk_os *os, int dirfd, const char *name,
		     char *buf, size_t size)
{
	size_t done = 0;
	ssize_t n;
	int fd;

	fd = os->openat(os, dirfd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK |
			O_CLOEXEC, 0);
	if (fd < 0)
		return fd;
	do {
		n = os->pread(os, fd, buf + done, size - 1 - done, done);
		if (n > 0)
			done += (size_t)n;
	} while (n > 0 && done < size - 1);
	os->close(os, fd);
	if (n < 0)
		return (int)n;
	buf[done] = 0;
	/* A line of text without its end is a part of a line. */
	if (!done || buf[done - 1] != '\n' || strlen(buf) != done)
		return -EBADMSG;
	buf[done - 1] = 0;
	return 0;
}

static int write_text(const struct sk_os *os, int fd, const char *text)
{
	size_t bytes = strlen(text);
	size_t done = 0;
	ssize_t n;

	while (done < bytes) {
		n = os->pwrite(os, fd, text + done, bytes - done, done);
		if (n <= 0)
			return n < 0 ? (int)n : -EIO;
		done += (size_t)n;
	}
	return os->fsync(os, fd);
}

int sk_dir_write_text(const struct sk_os *os, int dirfd, const char *name,
		      const char *text, struct sk_err *err)
{
	char temporary[SK_STORE_NAME_MAX];
	int fd, r, r_close;

	r = sk_temporary_name(os, name, temporary, err);
	if (r < 0)
		return r;
	fd = os->openat(os, dirfd, temporary, O_WRONLY | O_CREAT | O_EXCL |
			O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return sk_err_errno(err, fd, "cannot create \"%s\"",
				    temporary);
	r = write_text(os, fd, text);
	r_close = os->close(os, fd);
	if (r == 0)
		r = r_close;
	if (r == 0)
		r = os->renameat(os, dirfd, temporary, dirfd, name, 0);
	if (r < 0) {
		(void)os->unlinkat(os, dirfd, temporary, 0);
		return sk_err_errno(err, r, "cannot write \"%s\"", name);
	}
	r = sk_dir_sync(os, dirfd);
	if (r < 0)
		return sk_err_errno(err, r, "cannot make \"%s\" durable",
				    name);
	return 0;
}
