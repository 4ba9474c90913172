/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>

int sk_text_read(const struct sk_os *os, const char *path, char *ret,
		 size_t room)
{
	size_t at = 0;
	ssize_t n = 1;
	int fd;

	assert(room);
	ret[0] = 0;
	fd = os->openat(os, AT_FDCWD, path, O_RDONLY, 0);
	if (fd < 0)
		return fd;
	while (n > 0 && at < room - 1) {
		n = os->read(os, fd, ret + at, room - 1 - at);
		at += n > 0 ? (size_t)n : 0;
	}
	(void)os->close(os, fd);
	ret[at] = 0;
	return n < 0 ? (int)n : n > 0 ? -EFBIG : 0;
}
