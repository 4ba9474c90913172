/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that do not fit a message travel as files, mostly in memory. */
#ifndef SK_LIBCLIENT_CONN_MEMFD_H
#define SK_LIBCLIENT_CONN_MEMFD_H

#include <sys/uio.h>

#include "base/os.h"

/**
 * Whether this process may write @bytes to a file, one in memory as well: who
 * goes beyond RLIMIT_FSIZE is ended by SIGXFSZ, and that a library must not.
 * Errors: -EFBIG.
 */
int sk_file_check(const struct sk_os *os, uint64_t bytes);

/**
 * A memfd that holds the @n parts one behind the other and can neither shrink
 * nor grow; the caller's. @name is seen in /proc/PID/fd.
 * Errors: those of sk_file_check(), memfd_create(2) and pwrite(2).
 */
int sk_memfd_with(const struct sk_os *os, const char *name,
		  const struct iovec *parts, int n);

/**
 * Reads [@offset, @offset + @bytes) of a descriptor, all of it.
 * Errors: -ENODATA it ends before that; those of pread(2).
 */
int sk_read_all(const struct sk_os *os, int fd, void *buf, uint64_t bytes,
		uint64_t offset);

/** Closes @n descriptors. */
void sk_close_fds(const struct sk_os *os, const int *fds, int n);

#endif
