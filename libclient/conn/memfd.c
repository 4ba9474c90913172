/* SPDX-License-Identifier: Apache-2.0 */
#include "conn/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>

int sk_file_check(const struct sk_os *os, uint64_t bytes)
{
	struct rlimit limit;

	if (os->getrlimit(os, RLIMIT_FSIZE, &limit) < 0)
		return 0;
	return bytes > limit.rlim_cur ? -EFBIG : 0;
}

static int write_all(const struct sk_os *os, int fd, const void *buf,
		     uint64_t bytes, uint64_t offset)
{
	uint64_t done = 0;

	while (done < bytes) {
		ssize_t n = os->pwrite(os, fd, (const char *)buf + done,
				       bytes - done, offset + done);

		if (n <= 0)
			return n < 0 ? (int)n : -EIO;
		done += (uint64_t)n;
	}
	return 0;
}

int sk_memfd_with(const struct sk_os *os, const char *name,
		  const struct iovec *parts, int n)
{
	uint64_t bytes = 0, at = 0;
	int fd, r;

	for (int i = 0; i < n; i++)
		bytes += parts[i].iov_len;
	r = sk_file_check(os, bytes);
	if (r < 0)
		return r;
	fd = os->memfd_create(os, name, MFD_ALLOW_SEALING);
	if (fd < 0)
		return fd;
	for (int i = 0; i < n && r >= 0; i++) {
		r = write_all(os, fd, parts[i].iov_base, parts[i].iov_len,
			      at);
		at += parts[i].iov_len;
	}
	if (r >= 0)
		r = os->fcntl_seal(os, fd, F_SEAL_SHRINK | F_SEAL_GROW);
	if (r < 0) {
		(void)os->close(os, fd);
		return r;
	}
	return fd;
}

int sk_read_all(const struct sk_os *os, int fd, void *buf, uint64_t bytes,
		uint64_t offset)
{
	uint64_t done = 0;

	while (done < bytes) {
		ssize_t n = os->pread(os, fd, (char *)buf + done,
				      bytes - done, offset + done);

		if (n < 0)
			return (int)n;
		if (!n)
			return -ENODATA;
		done += (uint64_t)n;
	}
	return 0;
}

void sk_close_fds(const struct sk_os *os, const int *fds, int n)
{
	while (n > 0)
		(void)os->close(os, fds[--n]);
}
