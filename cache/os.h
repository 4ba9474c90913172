/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the system does for us, as one table of operations.
 *
 * Files, memory, clock and randomness pass through it, so that failing the
 * N-th call, losing power after any write and running on a virtual clock are
 * loops in a test. Every function returns a value >= 0 or a negative errno;
 * errno itself is not used. EINTR is retried inside, where retrying is right
 * (never close).
 *
 * Completions of io_uring pass through uring_result, which may replace a
 * result but normally returns it.
 *
 * Thread-safety: the table is immutable; functions are as safe as the system
 * calls they make.
 */
#ifndef SK_CACHE_OS_H
#define SK_CACHE_OS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

enum sk_uring_op { SK_URING_READ, SK_URING_WRITE, SK_URING_FSYNC };

struct sk_os {
	/* files */
	int (*openat)(const struct sk_os *os, int dirfd, const char *path,
		      int flags, mode_t mode);
	int (*close)(const struct sk_os *os, int fd);
	ssize_t (*pread)(const struct sk_os *os, int fd, void *buf,
			 size_t size, uint64_t offset);
	ssize_t (*pwrite)(const struct sk_os *os, int fd, const void *buf,
			  size_t size, uint64_t offset);
	int (*fallocate)(const struct sk_os *os, int fd, int mode,
			 uint64_t offset, uint64_t size);
	int (*ftruncate)(const struct sk_os *os, int fd, uint64_t size);
	int (*fsync)(const struct sk_os *os, int fd);
	int (*fstat)(const struct sk_os *os, int fd, struct stat *ret_st);
	int (*mkdirat)(const struct sk_os *os, int dirfd, const char *path,
		       mode_t mode);
	int (*renameat)(const struct sk_os *os, int olddir, const char *old,
			int newdir, const char *new_name, unsigned flags);
	int (*unlinkat)(const struct sk_os *os, int dirfd, const char *path,
			int flags);
	/* memory */
	int (*memfd_create)(const struct sk_os *os, const char *name,
			    unsigned flags);
	int (*fcntl_seal)(const struct sk_os *os, int fd, int seals);
	int (*mmap)(const struct sk_os *os, void *at, size_t size, int prot,
		    int flags, int fd, uint64_t offset, void **ret_map);
	int (*munmap)(const struct sk_os *os, void *map, size_t size);
	int (*madvise)(const struct sk_os *os, void *map, size_t size,
		       int advice);
	/* clock and randomness */
	uint64_t (*now_ns)(const struct sk_os *os);	/* monotonic */
	uint64_t (*wall_ns)(const struct sk_os *os);	/* since 1970, UTC */
	int (*random)(const struct sk_os *os, void *buf, size_t size);
	/* io_uring */
	int (*uring_result)(const struct sk_os *os, enum sk_uring_op op,
			    int result);
	void *ctx;	/* of a table that wraps another */
};

/** The real system. */
const struct sk_os *sk_os_linux(void);

#endif
