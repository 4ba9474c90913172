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

int bytes_fd(const struct sk_os *os, const char *name, const void *data,
	     size_t bytes, struct sk_err *err)
{
	_cleanup_close_ int fd = -1;
	int r;

	assert(data || !bytes);
	fd = os->memfd_create(os, name, MFD_ALLOW_SEALING);
	if (fd < 0)
		return sk_err_errno(err, fd, "cannot make memory for a "
				    "reply");
	r = write_all(os, fd, data, bytes);
	if (r < 0)
		return sk_err_errno(err, r, "cannot fill a reply of %zu "
				    "bytes", bytes);
	/* A client that maps it must not be killed by another's truncation. */
	r = os->fcntl_seal(os, fd, F_SEAL_SHRINK | F_SEAL_GROW |
			   F_SEAL_WRITE | F_SEAL_SEAL);
	if (r < 0)
		return sk_err_errno(err, r, "cannot seal a reply of %zu "
				    "bytes", bytes);
	return sk_take_fd(&fd);
}
