/* SPDX-License-Identifier: Apache-2.0 */
/* Standard input, output and error of a program that was started without. */
#ifndef SK_CACHE_BASE_STANDARD_H
#define SK_CACHE_BASE_STANDARD_H

#include <fcntl.h>
#include <unistd.h>

#include "base/os.h"

/** Puts /dev/null, opened for @access (O_RDONLY: what is printed fails, O_RDWR:
 * it is lost), where one of the three is closed: else the next file or socket
 * that is opened has that number, and what is printed goes there. Before
 * anything else is opened. */
static inline void sk_standard_hold(const struct sk_os *os, int access)
{
	int null = os->openat(os, AT_FDCWD, "/dev/null", access, 0);

	if (null < 0)
		return;
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0)
			(void)os->dup2(os, null, fd);
	/* A table that is not Linux's own may have given one of the three. */
	if (null > STDERR_FILENO)
		(void)os->close(os, null);
}

#endif
