/* SPDX-License-Identifier: Apache-2.0 */
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>	/* renameat2 */
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

/* What a system call returned, as a value or a negative errno. */
static int result(int r)
{
	return r < 0 ? -errno : r;
}

static int linux_openat(const struct sk_os *os, int dirfd, const char *path,
			int flags, mode_t mode)
{
	int fd;

	(void)os;
	/* A program that a trainer starts must not inherit our files. */
	do {
		fd = openat(dirfd, path, flags | O_CLOEXEC, mode);
	} while (fd < 0 && errno == EINTR);
	return result(fd);
}

static int linux_close(const struct sk_os *os, int fd)
{
	(void)os;
	/* Linux has released the descriptor even where it says EINTR. */
	if (close(fd) < 0 && errno != EINTR)
		return -errno;
	return 0;
}

static ssize_t linux_pread(const struct sk_os *os, int fd, void *buf,
			   size_t size, uint64_t offset)
{
	ssize_t n;

	(void)os;
	do {
		n = pread(fd, buf, size, (off_t)offset);
	} while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : n;
}

static ssize_t linux_pwrite(const struct sk_os *os, int fd, const void *buf,
			    size_t size, uint64_t offset)
{
	ssize_t n;

	(void)os;
	do {
		n = pwrite(fd, buf, size, (off_t)offset);
	} while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : n;
}

static int linux_fallocate(const struct sk_os *os, int fd, int mode,
			   uint64_t offset, uint64_t size)
{
	int r;

	(void)os;
	do {
		r = fallocate(fd, mode, (off_t)offset, (off_t)size);
	} while (r < 0 && errno == EINTR);
	return result(r);
}

static int linux_ftruncate(const struct sk_os *os, int fd, uint64_t size)
{
	int r;

	(void)os;
	do {
		r = ftruncate(fd, (off_t)size);
	} while (r < 0 && errno == EINTR);
	return result(r);
}

static int linux_fsync(const struct sk_os *os, int fd)
{
	int r;

	(void)os;
	do {
		r = fsync(fd);
	} while (r < 0 && errno == EINTR);
	return result(r);
}

static int linux_fstat(const struct sk_os *os, int fd, struct stat *ret_st)
{
	struct stat st;

	(void)os;
	if (fstat(fd, &st) < 0)
		return -errno;
	*ret_st = st;
	return 0;
}

static int linux_mkdirat(const struct sk_os *os, int dirfd, const char *path,
			 mode_t mode)
{
	(void)os;
	return result(mkdirat(dirfd, path, mode));
}

static int linux_renameat(const struct sk_os *os, int olddir,
			  const char *old, int newdir, const char *new_name,
			  unsigned flags)
{
	(void)os;
	return result(renameat2(olddir, old, newdir, new_name, flags));
}

static int linux_unlinkat(const struct sk_os *os, int dirfd, const char *path,
			  int flags)
{
	(void)os;
	return result(unlinkat(dirfd, path, flags));
}

static int linux_memfd_create(const struct sk_os *os, const char *name,
			      unsigned flags)
{
	(void)os;
	return result(memfd_create(name, flags));
}

static int linux_fcntl_seal(const struct sk_os *os, int fd, int seals)
{
	(void)os;
	return result(fcntl(fd, F_ADD_SEALS, seals));
}

static int linux_mmap(const struct sk_os *os, void *at, size_t size,
		      int prot, int flags, int fd, uint64_t offset,
		      void **ret_map)
{
	void *map;

	(void)os;
	map = mmap(at, size, prot, flags, fd, (off_t)offset);
	if (map == MAP_FAILED)
		return -errno;
	*ret_map = map;
	return 0;
}

static int linux_munmap(const struct sk_os *os, void *map, size_t size)
{
	(void)os;
	return result(munmap(map, size));
}

static int linux_madvise(const struct sk_os *os, void *map, size_t size,
			 int advice)
{
	int r;

	(void)os;
	do {
		r = madvise(map, size, advice);
	} while (r < 0 && errno == EINTR);
	return result(r);
}

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec ts = { 0 };

	/* These two clocks cannot fail on Linux. */
	(void)clock_gettime(clock, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static uint64_t linux_now_ns(const struct sk_os *os)
{
	(void)os;
	return clock_ns(CLOCK_MONOTONIC);
}

static uint64_t linux_wall_ns(const struct sk_os *os)
{
	(void)os;
	return clock_ns(CLOCK_REALTIME);
}

static int linux_random(const struct sk_os *os, void *buf, size_t size)
{
	char *at = buf;
	ssize_t n;

	(void)os;
	while (size) {
		n = getrandom(at, size, 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		at += n;
		size -= (size_t)n;
	}
	return 0;
}

static int linux_uring_result(const struct sk_os *os, enum sk_uring_op op,
			      int uring_result)
{
	(void)os;
	(void)op;
	return uring_result;
}

static const struct sk_os linux_os = {
	.openat = linux_openat,
	.close = linux_close,
	.pread = linux_pread,
	.pwrite = linux_pwrite,
	.fallocate = linux_fallocate,
	.ftruncate = linux_ftruncate,
	.fsync = linux_fsync,
	.fstat = linux_fstat,
	.mkdirat = linux_mkdirat,
	.renameat = linux_renameat,
	.unlinkat = linux_unlinkat,
	.memfd_create = linux_memfd_create,
	.fcntl_seal = linux_fcntl_seal,
	.mmap = linux_mmap,
	.munmap = linux_munmap,
	.madvise = linux_madvise,
	.now_ns = linux_now_ns,
	.wall_ns = linux_wall_ns,
	.random = linux_random,
	.uring_result = linux_uring_result,
};

const struct sk_os *sk_os_linux(void)
{
	return &linux_os;
}
