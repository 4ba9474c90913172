/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/bytes.h"

#include <assert.h>
#include <fcntl.h>
#include <sys/mman.h>

#include "base/util.h"

static int write_all(const struct sk_os *os, int fd, const char *from,
		     size_t bytes)
{
	while (bytes) {
		ssize_t n = os->write(os, fd, from, bytes);

		if (n <= 0)
			return n < 0 ? (int)n : -EIO;
		from += n;
		bytes -= (size_t)n;
	}
	return 0;
}

int bytes_begin(const struct sk_os *os, const char *name, struct sk_err *err)
{
	int fd = os->memfd_create(os, name, MFD_ALLOW_SEALING);

	return fd >= 0 ? fd : sk_err_errno(err, fd, "cannot make memory for a "
					   "reply");
}

int bytes_add(const struct sk_os *os, int fd, const void *data, size_t bytes,
	      struct sk_err *err)
{
	int r;

	assert(data || !bytes);
	r = write_all(os, fd, data, bytes);
	return r == 0 ? 0 : sk_err_errno(err, r, "cannot fill a reply of %zu "
					 "bytes", bytes);
}

int bytes_end(const struct sk_os *os, int fd, struct sk_err *err)
{
	/* A client that maps it must not be killed by another's truncation. */
	int r = os->fcntl_seal(os, fd, F_SEAL_SHRINK | F_SEAL_GROW |
			       F_SEAL_WRITE | F_SEAL_SEAL);

	return r == 0 ? 0 : sk_err_errno(err, r, "cannot seal a reply");
}

int bytes_fd(const struct sk_os *os, const char *name, const void *data,
	     size_t bytes, struct sk_err *err)
{
	_cleanup_close_ int fd = bytes_begin(os, name, err);
	int r;

	if (fd < 0)
		return fd;
	r = bytes_add(os, fd, data, bytes, err);
	if (r == 0)
		r = bytes_end(os, fd, err);
	return r < 0 ? r : sk_take_fd(&fd);
}
